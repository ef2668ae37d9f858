"""Connect to segment stores and send requests."""
