"""The data pipeline on Apache Spark: source, lake, ingest, audit, metrics, count."""
