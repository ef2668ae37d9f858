"""Connections to the controllers of the clusters."""
