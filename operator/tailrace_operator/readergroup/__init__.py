"""ReaderGroup: create or observe the group, and measure its lag (docs/design.md#resources)."""
