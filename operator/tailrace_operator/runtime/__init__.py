"""The operator's process: leader election, health, connections to controllers, placement."""
