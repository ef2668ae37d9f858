"""Decide where retention truncates a stream. Pure."""
