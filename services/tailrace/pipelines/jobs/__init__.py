"""Jobs on streams that run on Spark (docs/spark-jobs.md)."""
