"""The Pipeline resource: a job on Spark in pods (docs/pipelines.md)."""
