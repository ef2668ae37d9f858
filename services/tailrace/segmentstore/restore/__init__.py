"""``tailrace restore``: makes a data folder from the objects of Tier 2 alone (design §5; docs/adr/0012)."""
