"""State of a reader group in the Java client's format: codec, state machine and distribution policy, all pure.

Every reader of a group, Java's or ours, holds the same state by reading one segment of records and applying them.
"""
