"""Encode, apply and balance the state of a reader group in the Java client's format. Pure.

Every reader of a group, Java's or ours, reads the records of one segment, applies them and so holds the same state.
"""
