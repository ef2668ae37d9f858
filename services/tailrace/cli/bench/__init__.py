"""What ``tailrace bench`` measures, and how it does it honestly (performance §5)."""
