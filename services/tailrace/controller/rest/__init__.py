"""The controller's REST interface, over the same services as gRPC (docs/controller.md)."""
