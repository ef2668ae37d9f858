"""A container's metadata in memory and its durable form: segments, operations, checkpoints."""
