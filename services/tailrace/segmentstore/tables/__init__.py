"""Table segments: hash and fixed-key layouts over a container.

See docs/design.md#table-segments, docs/protocol/wire.md#tables.
"""
