"""Table segment commands (docs/protocol/wire.md#table-commands)."""

from dataclasses import dataclass
from typing import ClassVar

from tailrace.wire.command import Command
from tailrace.wire.fields import I32, I64, Flag, I64List, ShortBytes, TableEntries, TableKeys, Text


@dataclass(slots=True)
class GetTableSegmentInfo(Command):
    """Ask for a table segment's properties."""

    CODE: ClassVar[int] = 68
    request_id: I64
    segment: Text
    token: Text


@dataclass(slots=True)
class TableSegmentInfo(Command):
    """A table segment's properties."""

    CODE: ClassVar[int] = 69
    request_id: I64
    segment: Text
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@dataclass(slots=True)
class CreateTableSegment(Command):
    """Create a table segment; ``key_length`` 0 is the hash layout (docs/protocol/wire.md#tables)."""

    CODE: ClassVar[int] = 70
    request_id: I64
    segment: Text
    token: Text
    sorted_deprecated: Flag = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@dataclass(slots=True)
class DeleteTableSegment(Command):
    """Delete a table segment."""

    CODE: ClassVar[int] = 71
    request_id: I64
    segment: Text
    must_be_empty: Flag
    token: Text


@dataclass(slots=True)
class UpdateTableEntries(Command):
    """Insert or update entries atomically, each under its version (docs/protocol/wire.md#tables)."""

    CODE: ClassVar[int] = 74
    request_id: I64
    segment: Text
    token: Text
    entries: TableEntries
    table_segment_offset: I64 = -1


@dataclass(slots=True)
class TableEntriesUpdated(Command):
    """New versions in the order of the entries."""

    CODE: ClassVar[int] = 75
    request_id: I64
    versions: I64List


@dataclass(slots=True)
class RemoveTableKeys(Command):
    """Remove keys atomically, each under its version (docs/protocol/wire.md#tables)."""

    CODE: ClassVar[int] = 76
    request_id: I64
    segment: Text
    token: Text
    keys: TableKeys
    table_segment_offset: I64 = -1


@dataclass(slots=True)
class TableKeysRemoved(Command):
    """The keys were removed."""

    CODE: ClassVar[int] = 77
    request_id: I64
    segment: Text


@dataclass(slots=True)
class ReadTable(Command):
    """Ask for the entries of some keys; versions are ignored."""

    CODE: ClassVar[int] = 78
    request_id: I64
    segment: Text
    token: Text
    keys: TableKeys


@dataclass(slots=True)
class TableRead(Command):
    """One entry per key in the order asked; a missing one has version -1 and no value."""

    CODE: ClassVar[int] = 79
    request_id: I64
    segment: Text
    entries: TableEntries


@dataclass(slots=True)
class ReadTableKeys(Command):
    """Iterate over keys."""

    CODE: ClassVar[int] = 83
    request_id: I64
    segment: Text
    token: Text
    suggested_key_count: I32
    continuation_token: ShortBytes = b""
    prefix: ShortBytes = b""
    from_key: ShortBytes = b""
    to_key: ShortBytes = b""


@dataclass(slots=True)
class TableKeysRead(Command):
    """Some keys and the token to go on with."""

    CODE: ClassVar[int] = 84
    request_id: I64
    segment: Text
    keys: TableKeys
    continuation_token: ShortBytes


@dataclass(slots=True)
class ReadTableEntries(Command):
    """Iterate over entries."""

    CODE: ClassVar[int] = 85
    request_id: I64
    segment: Text
    token: Text
    suggested_entry_count: I32
    continuation_token: ShortBytes = b""
    prefix: ShortBytes = b""
    from_key: ShortBytes = b""
    to_key: ShortBytes = b""


@dataclass(slots=True)
class TableEntriesRead(Command):
    """Some entries and the token to go on with."""

    CODE: ClassVar[int] = 86
    request_id: I64
    segment: Text
    entries: TableEntries
    continuation_token: ShortBytes


@dataclass(slots=True)
class TableEntriesDeltaRead(Command):
    """Entries written since a position (docs/protocol/wire.md#delta-reads)."""

    CODE: ClassVar[int] = 87
    request_id: I64
    segment: Text
    entries: TableEntries
    should_clear: Flag
    reached_end: Flag
    last_position: I64


@dataclass(slots=True)
class ReadTableEntriesDelta(Command):
    """Ask for entries written since a position."""

    CODE: ClassVar[int] = 88
    request_id: I64
    segment: Text
    token: Text
    from_position: I64
    suggested_entry_count: I32


COMMANDS: tuple[type[Command], ...] = (
    GetTableSegmentInfo,
    TableSegmentInfo,
    CreateTableSegment,
    DeleteTableSegment,
    UpdateTableEntries,
    TableEntriesUpdated,
    RemoveTableKeys,
    TableKeysRemoved,
    ReadTable,
    TableRead,
    ReadTableKeys,
    TableKeysRead,
    ReadTableEntries,
    TableEntriesRead,
    TableEntriesDeltaRead,
    ReadTableEntriesDelta,
)
