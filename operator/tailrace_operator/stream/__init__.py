"""Streams: from a Stream resource to a stream that the controller keeps (design §11, ADR 0014)."""
