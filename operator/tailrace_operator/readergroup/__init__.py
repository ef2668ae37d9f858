"""Reader groups: made as their resource says, or watched; how far behind they are (design §11)."""
