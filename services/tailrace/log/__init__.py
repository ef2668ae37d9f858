"""Tier 1: the durable log of a container (docs/design.md#tier-1)."""
