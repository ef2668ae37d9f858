"""Define the controller's model and durable records, and store them."""
