"""Tier 1: the durable log of a container (design §4)."""
