"""Manage streams, transactions, scaling and reader groups over segments and table segments (design §10)."""
