"""Proof that a data folder holds what its logs say: `tailrace inspect verify` (docs/operations.md). Changes nothing.

State is rebuilt by the recovery of the server itself; then every byte that it names is read where it lies.
"""
