"""Who owns which segment container: epochs, ownership and placement (design §9)."""
