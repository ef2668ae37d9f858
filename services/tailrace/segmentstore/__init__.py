"""The data plane: segment containers and the server that speaks the segment store protocol."""
