"""Stream: create, update, scale and delete the stream of a resource (docs/design.md#resources, ADR 0014)."""
