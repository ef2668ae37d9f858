"""Runs test suites beside each other, as many as the machine has cores for, and reports what ran and what did not."""
