"""The segment container: append path, segment operations, commit, recovery, checkpoints."""
