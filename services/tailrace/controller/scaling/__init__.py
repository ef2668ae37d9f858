"""Decide how a stream scales by the rates of its segments. Pure."""
