"""The reconcile loop: when an object is reconciled, and how the result is written to it."""
