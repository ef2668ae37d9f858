"""Objects of a container in Tier 2: chunks and metadata snapshots."""
