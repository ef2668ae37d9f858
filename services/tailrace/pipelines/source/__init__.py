"""Read streams into Spark (docs/spark.md)."""
