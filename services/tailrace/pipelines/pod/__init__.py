"""The pods of a Pipeline: how driver and executors start (docs/pipelines.md)."""
