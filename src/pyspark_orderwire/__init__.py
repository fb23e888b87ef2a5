"""Registers the Spark data source `orderwire`: Spark imports top-level `pyspark_*` modules."""
