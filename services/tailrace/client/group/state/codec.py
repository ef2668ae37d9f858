"""Encode and decode reader group records and client objects.

See docs/protocol/reader-group-state.md#records, docs/protocol/reader-group-state.md#objects.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tailrace.client.group.state import records as r
from tailrace.client.group.state.fields import (
    COMPACT_INT,
    COMPACT_LONG,
    COMPACT_SIGNED_LONG,
    FLAG,
    I32,
    I64,
    RANGE,
    SEGMENT,
    TEXT,
    UUID,
    Inlined,
    Input,
    Kind,
    Layout,
    ListOf,
    MapOf,
    Nested,
    PlainSegment,
    RangedSegment,
    corrupt,
    read_format,
)
from tailrace.client.model import ReaderGroupConfig
from tailrace.common.errors import FormatVersionError
from tailrace.common.stream_cut import StreamCut

_I32: Final = struct.Struct(">i")
_RECORD_INIT: Final = 1
_RECORD_UPDATES: Final = 2

_OFFSETS: Final = MapOf(SEGMENT, I64)
_RANGED_OFFSETS: Final = MapOf(RangedSegment(), I64)
_RANGES: Final = MapOf(SEGMENT, RANGE)
_PREDECESSORS: Final = MapOf(SEGMENT, ListOf(I64))


@dataclass(frozen=True)
class _CutRecord:
    """The serialised form of a stream cut."""

    scoped_name: str
    positions: Mapping[int, int]


class _StreamCutLayout(Layout):
    """Version 1 has signed offsets, the old version 0 unsigned ones."""

    def read_body(self, source: Input) -> StreamCut:
        record: _CutRecord = super().read_body(source)
        scope, separator, stream = record.scoped_name.partition("/")
        if not separator:
            raise corrupt(f"the stream cut's name {record.scoped_name!r} is not of the form scope/stream")
        return StreamCut(scope, stream, record.positions)


STREAM_CUT: Final = _StreamCutLayout(
    _CutRecord,
    {
        0: ((("scoped_name", TEXT), ("positions", MapOf(COMPACT_LONG, COMPACT_LONG))),),
        1: ((("scoped_name", TEXT), ("positions", MapOf(COMPACT_LONG, COMPACT_SIGNED_LONG))),),
    },
    written_version=1,
)

_CUTS: Final = MapOf(TEXT, Nested(STREAM_CUT))
_CONFIG_BASE: Final = (
    ("automatic_checkpoint_ms", I64),
    ("group_refresh_ms", I64),
    ("starting", _CUTS),
    ("ending", _CUTS),
)
CONFIG: Final = Layout(
    ReaderGroupConfig,
    {
        0: (
            _CONFIG_BASE,
            (*_CONFIG_BASE, ("max_outstanding_checkpoints", I32)),
            (("retention", COMPACT_INT), ("generation", I64), ("group_id", UUID)),
        )
    },
)
CHECKPOINT_STATE: Final = Layout(
    r.CheckpointState,
    {
        0: (
            (
                ("checkpoints", ListOf(TEXT)),
                ("due", MapOf(TEXT, ListOf(TEXT))),
                ("positions", MapOf(TEXT, _OFFSETS)),
                ("last_checkpoint", _OFFSETS),
            ),
            (("published", FLAG),),
        )
    },
)
POSITION: Final = Layout(r.Position, {0: ((("positions", MapOf(SEGMENT, COMPACT_LONG)),), (("ranges", _RANGES),))})
CHECKPOINT: Final = Layout(r.Checkpoint, {0: ((("name", TEXT), ("cuts", MapOf(TEXT, Inlined(STREAM_CUT)))),)})
"""Used by test_group_state_codec.py only, like `POSITION`: it compares both with the bytes in the documentation."""

_HEARTBEAT_MAGIC: Final = 0x54524842
"""Distinguishes our additional revisions from those that a later Pravega may define under the same number."""


class _HeartbeatKind(Kind):
    """Session, sequence and `dead_after_ms` of a heartbeat."""

    def write(self, out: bytearray, value: r.Heartbeat) -> None:
        for number in (value.session, value.sequence, value.dead_after_ms):
            I64.write(out, number)

    def read(self, source: Input) -> r.Heartbeat:
        return r.Heartbeat(I64.read(source), I64.read(source), I64.read(source))


class _Ours(Kind):
    """A value behind our magic number; `missing()` when the revision begins with anything else."""

    def __init__(self, kind: Kind, missing: Callable[[], Any]) -> None:
        self._kind = kind
        self._missing = missing

    def write(self, out: bytearray, value: Any) -> None:
        I32.write(out, _HEARTBEAT_MAGIC)
        self._kind.write(out, value)

    def read(self, source: Input) -> Any:
        if source.end - source.position < 4 or I32.read(source) != _HEARTBEAT_MAGIC:
            return self._missing()
        return self._kind.read(source)


_HEARTBEAT: Final = _Ours(_HeartbeatKind(), lambda: None)
_HEARTBEATS: Final = _Ours(MapOf(TEXT, _HeartbeatKind()), dict)

_READER: Final = ("reader", TEXT)
_SEGMENT: Final = ("segment", SEGMENT)
_CHECKPOINT: Final = ("checkpoint", TEXT)


def _layout(record: type[Any], *revisions: tuple[tuple[str, Any], ...], optional_last: bool = False) -> Layout:
    return Layout(record, {0: revisions}, optional_last=optional_last)


UPDATE_LAYOUTS: Final[Mapping[int, Layout]] = {
    0: _layout(
        r.Init,
        (("config", Nested(CONFIG)), ("starting", MapOf(PlainSegment(), I64)), ("end_segments", _OFFSETS)),
        (("starting", _RANGED_OFFSETS),),
        (("updating_config", FLAG),),
    ),
    1: _layout(
        r.Compact,
        (
            ("config", Nested(CONFIG)),
            ("checkpoint_state", Nested(CHECKPOINT_STATE)),
            ("distance", MapOf(TEXT, I64)),
            ("future", _PREDECESSORS),
            ("assigned", MapOf(TEXT, _OFFSETS)),
            ("unassigned", _OFFSETS),
            ("end_segments", _OFFSETS),
        ),
        (("last_read", _OFFSETS), ("ranges", _RANGES)),
        (("updating_config", FLAG),),
        (("heartbeats", _HEARTBEATS),),
        optional_last=True,
    ),
    2: _layout(r.AddReader, (_READER,)),
    3: _layout(r.RemoveReader, (_READER, ("positions", _OFFSETS))),
    4: _layout(r.ReleaseSegment, (_READER, _SEGMENT, ("offset", I64))),
    5: _layout(r.AcquireSegment, (_READER, _SEGMENT)),
    6: _layout(
        r.UpdateDistanceToTail,
        (_READER, ("distance", I64)),
        (("last_read", _RANGED_OFFSETS),),
        (("heartbeat", _HEARTBEAT),),
        optional_last=True,
    ),
    7: _layout(r.SegmentCompleted, (_READER, _SEGMENT, ("successors", _PREDECESSORS)), (("ranges", _RANGES),)),
    8: _layout(r.CheckpointReader, (_CHECKPOINT, _READER, ("positions", _OFFSETS))),
    9: _layout(r.CreateCheckpoint, (_CHECKPOINT,)),
    10: _layout(r.ClearCheckpointsBefore, (_CHECKPOINT,)),
    11: _layout(r.UpdateCheckpointPublished, (("published", FLAG),)),
    12: _layout(r.UpdatingConfig, (("updating", FLAG),)),
    13: _layout(r.RemoveOutstandingCheckpoints, ()),
}
_TYPE_IDS: Final = {layout.record: identifier for identifier, layout in UPDATE_LAYOUTS.items()}


def encode_update(update: r.Update) -> bytes:
    """The multi-type form: format, type id, body."""
    identifier = _TYPE_IDS[type(update)]
    out = bytearray((0, identifier))
    UPDATE_LAYOUTS[identifier].write_body(out, update)
    return bytes(out)


def decode_update(source: Input) -> r.Update:
    """Read the multi-type form. Raises CorruptionError, FormatVersionError (unknown type, version or format)."""
    read_format(source)
    identifier = source.byte()
    layout = UPDATE_LAYOUTS.get(identifier)
    if layout is None:
        raise FormatVersionError(f"reader group record of type {identifier} is not known")
    return cast("r.Update", layout.read_body(source))


def encode_initial(update: r.InitialUpdate) -> bytes:
    """Return the payload of an initialisation record, without padding: clients ignore bytes after the object."""
    return _I32.pack(_RECORD_INIT) + encode_update(update)


def encode_batch(updates: Sequence[r.Update]) -> bytes:
    """Return the payload of a record of one or more updates."""
    parts = [_I32.pack(_RECORD_UPDATES)]
    for update in updates:
        raw = encode_update(update)
        parts += (_I32.pack(len(raw)), raw)
    return b"".join(parts)


def decode_record(payload: bytes | memoryview) -> tuple[bool, list[r.Update]]:
    """Decode a record's payload; return whether it is an initialisation, and its updates (one for an initialisation).

    Raises:
        CorruptionError, FormatVersionError.
    """
    source = Input(payload)
    kind = I32.read(source)
    if kind == _RECORD_INIT:
        return True, [decode_update(source)]
    if kind != _RECORD_UPDATES:
        raise corrupt(f"reader group record of unknown kind {kind}")
    updates = []
    while source.position < source.end:
        updates.append(decode_update(source.inner(I32.read(source))))
    if not updates:
        raise corrupt("reader group record without updates")
    return False, updates
