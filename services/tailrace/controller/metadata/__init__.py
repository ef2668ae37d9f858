"""The controller's model, durable records, and the stores that hold them."""
