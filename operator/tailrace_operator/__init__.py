"""The operator: Tailrace's resources on Kubernetes, kept as they are asked for (design §11, docs/adr/0013)."""
