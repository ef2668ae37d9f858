"""Workloads: write, crash, recover, verify; each is one function of a seed."""
