"""StreamCluster: its checks, its children, its status, its placer (docs/design.md#resources, ADR 0013)."""
