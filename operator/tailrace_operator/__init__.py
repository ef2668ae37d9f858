"""The operator: Tailrace's resources on Kubernetes, kept as they are asked for.

See docs/design.md#resources, docs/adr/0013.
"""
