"""How Spark reads and writes S3: libraries of Maven Central, and settings (docs/spark-jobs.md#s3)."""
