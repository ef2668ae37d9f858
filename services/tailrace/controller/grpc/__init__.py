"""The controller's calls as plain async classes, one module for each area, and the thin adapter to gRPC."""
