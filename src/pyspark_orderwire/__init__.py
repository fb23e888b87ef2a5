"""Registers the Spark data source `orderwire` (Spark imports every top-level `pyspark_*` module)."""
