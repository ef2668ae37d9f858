"""Serve the controller's REST interface over the same calls as gRPC (docs/controller.md)."""
