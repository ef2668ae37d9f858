"""Decide on the watermarks of streams. Pure."""
