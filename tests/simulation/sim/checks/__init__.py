"""Checkers that several workloads share (reliability §3); docs/simulation.md says which shows what."""
