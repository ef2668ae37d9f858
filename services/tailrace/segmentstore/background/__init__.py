"""Background tasks of a container: storage writer, chunk compaction, orphan sweep, snapshots."""
