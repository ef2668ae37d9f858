"""Reader groups: shared state, membership, stream cuts."""
