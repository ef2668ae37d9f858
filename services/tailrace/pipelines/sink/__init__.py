"""Write rows into streams from Spark, each batch exactly once (docs/spark-sink.md)."""
