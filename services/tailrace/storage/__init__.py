"""Tier 2: the object store port, its implementations, and the chunk format (docs/design.md#tier-2)."""
