"""Checkers that several workloads share (docs/design.md#invariants); docs/simulation.md says which shows what."""
