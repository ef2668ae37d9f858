"""Which segments no record of a stream names, and never will."""
