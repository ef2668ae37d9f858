"""When an object is reconciled, and what is written to it."""
