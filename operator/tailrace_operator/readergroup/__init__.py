"""ReaderGroup: create or observe the group, and measure its lag (design §11)."""
