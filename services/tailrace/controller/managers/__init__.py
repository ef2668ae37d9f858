"""Begin changes of streams, scopes, groups, tables and transactions, and wait for their workflows."""
