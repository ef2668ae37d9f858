"""Write events: routing, append blocks, exactly-once retries, transactions."""
