"""Tailrace: stream storage for Kubernetes, on append-only segments, a durable log and an object store."""
