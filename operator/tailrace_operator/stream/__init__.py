"""Stream: create, update, scale and delete the stream of a resource (design §11, ADR 0014)."""
