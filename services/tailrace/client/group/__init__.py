"""Manage reader groups: shared state, membership, checkpoints, stream cuts."""
