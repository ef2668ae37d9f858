"""Writers of events: routing, append blocks, exactly-once retries, transactions."""
