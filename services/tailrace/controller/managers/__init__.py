"""Begin changes of streams, scopes, reader groups, tables and transactions, and wait for their workflows."""
