"""StreamCluster: its checks, its children, its status, its placer (design §11, ADR 0013)."""
