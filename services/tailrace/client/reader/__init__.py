"""Readers of events, alone or as members of a reader group."""
