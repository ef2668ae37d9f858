"""The measurements of ``tailrace bench`` (performance §5)."""
