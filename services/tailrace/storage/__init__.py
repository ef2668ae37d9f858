"""Tier 2: the object store port, its implementations, and the chunk format (design §5)."""
