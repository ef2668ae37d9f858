"""The Kubernetes API as the operator uses it: objects, watches, leader election."""
