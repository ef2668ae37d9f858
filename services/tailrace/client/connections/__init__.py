"""Connections to segment stores and the requests that go over them."""
