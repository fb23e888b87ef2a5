"""The papers' figures, run again on Spark, with every claim beside what came out."""
