"""The segment store's binary protocol, sans I/O: commands, codec and append-block reassembly (wire).

What others use (ids of writers and attributes are 16 bytes everywhere):

- `tailrace.wire.commands`: one dataclass per command (``SetupAppend``, ``DataAppended``, ``NoSuchSegment`` ...) and the
  values inside them (``TableKey``, ``TableEntry``, ``AttributeCondition`` ...).
- `tailrace.wire.codec`: ``encode(command) -> bytes``, ``encode_parts(command) -> list of buffers`` (no copy of
  large data), ``decode(code, payload) -> command`` (raises ProtocolError only).
- `tailrace.wire.appends`: ``BlockAssembler`` joins the parts of an append on the server, ``encode_append`` makes
  an append of a list of buffers on the client.
- `tailrace.wire.receiver`: ``Receiver``, the receive buffer under an ``asyncio.BufferedProtocol``; hands out frames.
"""
