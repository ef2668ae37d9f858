"""Who owns which segment container: epochs, ownership and placement (docs/design.md#ownership)."""
