"""StreamCluster: its children, its checks, its status (design §11, ADR 0013)."""
