"""A real single-node Kubernetes for tests, on a machine without a container engine and without an image registry."""
