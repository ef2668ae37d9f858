"""Serve the controller's calls over gRPC."""
