"""Registers the Spark data source `orderwire`: Spark imports top-level `pyspark_*` modules."""

from orderwire.pipeline.datasource import OrderwireDataSource as DefaultSource

__all__ = ["DefaultSource"]
