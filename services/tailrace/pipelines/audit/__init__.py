"""Reads and verifies a whole cluster from Tier 2 alone, in parallel on Spark (docs/spark-audit.md)."""
