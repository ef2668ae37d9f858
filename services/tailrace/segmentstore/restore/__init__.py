"""``tailrace restore``: makes a data folder from the objects of Tier 2 alone (docs/design.md#tier-2; docs/adr/0012)."""
