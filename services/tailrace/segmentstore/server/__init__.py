"""The server of the segment store protocol: connections, appends, requests, replies.

See docs/design.md#write-path, docs/protocol/wire.md#commands.
"""
