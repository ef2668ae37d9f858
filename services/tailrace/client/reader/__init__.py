"""Read events, alone or as a member of a reader group."""
