"""Handshake and append commands (docs/protocol/wire.md#append-commands)."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tailrace.wire.command import Command
from tailrace.wire.fields import I32, I64, Bulk, Event, PaddingLength, Rest, Text, Uuid

WRONG_HOST_OLDEST_VERSION: Final = 0
"""In the Hello of who answers for a worker that is away: no version of the protocol, and to clients as good as any."""


@dataclass(slots=True)
class Hello(Command):
    """Version range of the sender; the first command in both directions (docs/protocol/wire.md#handshake)."""

    CODE: ClassVar[int] = -127
    high_version: I32
    low_version: I32


@dataclass(slots=True)
class Padding(Command):
    """Zero bytes: ignored between commands, fills the rest of an append block (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = -1
    length: PaddingLength


@dataclass(slots=True)
class PartialEvent(Command):
    """The first bytes of an event at the end of an append block; never a frame of its own.

    See docs/protocol/wire.md#appends.
    """

    CODE: ClassVar[int] = -2
    data: Rest


@dataclass(slots=True)
class SetupAppend(Command):
    """A writer announces itself for a segment; answered with `AppendSetup` (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = 1
    request_id: I64
    writer_id: Uuid
    segment: Text
    token: Text


@dataclass(slots=True)
class AppendSetup(Command):
    """The writer's last stored event number, Long.MIN_VALUE when there is none."""

    CODE: ClassVar[int] = 2
    request_id: I64
    segment: Text
    writer_id: Uuid
    last_event_number: I64


@dataclass(slots=True)
class AppendBlock(Command):
    """The larger part of an append; its `AppendBlockEnd` follows (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = 3
    writer_id: Uuid
    data: Rest


@dataclass(slots=True)
class AppendBlockEnd(Command):
    """Ends an append, or carries all of it in ``data`` when no block is open (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = 4
    writer_id: Uuid
    size_of_whole_events: I32
    data: Bulk
    num_events: I32
    last_event_number: I64
    request_id: I64 = -1


@dataclass(slots=True)
class ConditionalAppend(Command):
    """Append one event (``data`` is its payload) if the segment's length is ``expected_offset``.

    See docs/protocol/wire.md#appends.
    """

    CODE: ClassVar[int] = 5
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Event
    request_id: I64 = -1


@dataclass(slots=True)
class DataAppended(Command):
    """Everything of the writer up to ``event_number`` is durable (docs/protocol/wire.md#acknowledgements)."""

    CODE: ClassVar[int] = 7
    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


@dataclass(slots=True)
class ConditionalCheckFailed(Command):
    """A conditional append found another length; nothing was appended."""

    CODE: ClassVar[int] = 8
    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


@dataclass(slots=True)
class ConditionalBlockEnd(Command):
    """Append raw bytes if the segment's length is ``expected_offset`` (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = 89
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Bulk
    request_id: I64


@dataclass(slots=True)
class KeepAlive(Command):
    """Sent by an idle client; the server answers with the same (docs/protocol/wire.md#handshake)."""

    CODE: ClassVar[int] = 100


COMMANDS: tuple[type[Command], ...] = (
    Hello,
    Padding,
    PartialEvent,
    SetupAppend,
    AppendSetup,
    AppendBlock,
    AppendBlockEnd,
    ConditionalAppend,
    DataAppended,
    ConditionalCheckFailed,
    ConditionalBlockEnd,
    KeepAlive,
)
