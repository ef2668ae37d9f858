"""``tailrace restore``: a data folder made of nothing but the objects of Tier 2 (design §5; docs/adr/0012)."""
