"""Frames of the wire: found in received bytes, decoded as commands, joined to appends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.common.errors import ProtocolError
from tailrace.wire import appends, fields
from tailrace.wire.codec import decode, encode
from tailrace.wire.command import layout_of
from tailrace.wire.commands import COMMANDS
from tailrace.wire.receiver import BufferPool, Receiver
from tailrace.wire.tables import TableEntry, TableKey

DOCUMENTED = (ProtocolError,)


def run(data: bytes) -> None:
    receiver = Receiver(BufferPool())
    buffer = receiver.get_buffer()
    length = min(len(data), len(buffer))
    buffer[:length] = data[:length]
    receiver.received(length)
    assembler, block_start = appends.BlockAssembler(), 0
    while frames := receiver.frames():
        for code, start, size in frames:
            if code == appends.APPEND_BLOCK:
                assembler.begin(receiver.view, start, size)
                block_start = start
            elif code == appends.APPEND_BLOCK_END:
                assembler.end(receiver.view, start, size, block_start)
                assembler.close()
            elif code in (appends.CONDITIONAL_APPEND, appends.CONDITIONAL_BLOCK_END):
                appends.decode_conditional(code, receiver.view, start, size)
            else:
                decode(code, receiver.view[start : start + size])


def seeds() -> Iterator[bytes]:
    for kind in COMMANDS.values():
        values = [_sample(slot.field) for slot in layout_of(kind)]
        yield encode(kind(*values))
    writer, event = bytes(range(16)), b"\0\0\0\0\0\0\0\2ab"
    yield b"".join(bytes(part) for part in appends.encode_append(writer, [event], len(event), 1, 7, 9))


def _sample(field: fields.Field) -> Any:
    match field:
        case fields.ListField():
            return [_sample(field.item)]
        case fields.RecordField():
            return field.record(*(_sample(member) for _, member in field.members))
        case fields.TableKeyField():
            return TableKey(b"key", 3)
        case fields.TableEntryField():
            return TableEntry(b"key", b"value", 3)
        case fields.TextField():
            return "scope/\u00fc\U0001f40d"
        case fields.UuidField():
            return bytes(range(16))
        case fields.BulkField() | fields.RestField():
            return b"data"
        case _:
            return 1
