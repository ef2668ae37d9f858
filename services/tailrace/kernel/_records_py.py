"""Records of a container's log in pure Python (the twin of ``_records.pyx``); see docs/formats/operations.md.

A record is ``u8 type, u8 flags, u16 zero, u32 length, i64 sequence number, body``, big-endian. The body of an append is
``u8 version, i64 segment id, i64 offset, u32 data length, u32 data CRC32C, u16 count, attributes, data``, an attribute
``u16 key length, key, i64 value``.
"""

from __future__ import annotations

import array
import struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.kernel._buffers import byte_view, check_range
from tailrace.kernel._records_common import RUNS_MAX, AppendRun

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WHOLE = 3
_APPEND_TYPE = 3
_VERSION = 1
_KEY_BYTES = 16
_INT64_MAX = 2**63 - 1
_RECORD = struct.Struct(">BBHIq")
_APPEND = struct.Struct(">BqqIIH")
_ATTRIBUTE = struct.Struct(f">H{_KEY_BYTES}sq")


def skip_records(payload: Buffer, start: int, kind: int) -> int:
    """Where the first record at or after ``start`` begins that is of that type, a fragment, damaged or cut off.

    The payload's length when there is none. Raises ValueError for a start outside of the payload.
    """
    view = byte_view(payload)
    end = len(view)
    check_range(start, end, end)
    position = start
    while end - position >= _RECORD.size:
        its_kind, flags, _, length, _ = _RECORD.unpack_from(view, position)
        if its_kind == kind or flags != _WHOLE or length > end - position - _RECORD.size:
            break
        position += _RECORD.size + length
    return position


class LastAttributes:
    """The last value of each attribute that scanned appends to one segment set, and the number of that append."""

    __slots__ = ("_sequences", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, int] = {}
        self._sequences: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def take(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """Return the values and the numbers, both in the order in which the attributes were set first; forget them."""
        taken = self._values, self._sequences
        self._values, self._sequences = {}, {}
        return taken

    def put_all(self, attributes: list[tuple[bytes, int]], sequence: int) -> None:
        """Set attributes; of the twin only."""
        for key, value in attributes:
            self._values[key], self._sequences[key] = value, sequence


def scan_appends(
    payload: Buffer,
    start: int,
    sequence: int,
    max_count: int,
    attributes: dict[int, LastAttributes] | None = None,
) -> tuple[int, int, list[AppendRun]]:
    """The appends that begin at ``start`` and are numbered from ``sequence`` on without a gap, by segment.

    The result is where the next record begins, the number that it should have, and the runs in the order of their first
    appends. ``attributes`` gathers what they set, by segment id; None: nothing. The scan ends before anything else:
    another type, a fragment, another version, a record that is damaged or cut off, an attribute whose id has not 16
    bytes, an offset that is not where the segment's append before ended, the append ``max_count + 1``, and the segment
    ``RUNS_MAX + 1``. Raises ValueError for a start outside of the payload.
    """
    view = byte_view(payload)
    check_range(start, len(view), len(view))
    runs: dict[int, _Run] = {}
    position, first = start, sequence
    while sequence - first < max_count and sequence < _INT64_MAX:
        append = _append_at(view, position, sequence)
        if append is None:
            break
        run = runs.get(append.segment_id)
        if run is None:
            if len(runs) == RUNS_MAX:
                break
            run = runs[append.segment_id] = _Run(append.segment_id, sequence, append.offset)
        elif append.offset != run.end:
            break
        run.add(view, append)
        if attributes is not None:
            attributes.setdefault(append.segment_id, LastAttributes()).put_all(append.attributes, sequence)
        position = append.data_start + append.length
        sequence += 1
    return position, sequence, [run.result() for run in runs.values()]


class _Found(NamedTuple):
    """A whole append in a payload."""

    segment_id: int
    offset: int
    crc: int
    attributes: list[tuple[bytes, int]]
    data_start: int
    length: int


def _append_at(view: memoryview, position: int, sequence: int) -> _Found | None:
    end = len(view)
    if end - position < _RECORD.size:
        return None
    kind, flags, _, body_length, number = _RECORD.unpack_from(view, position)
    body = position + _RECORD.size
    if kind != _APPEND_TYPE or flags != _WHOLE or number != sequence or not _APPEND.size <= body_length <= end - body:
        return None
    version, segment_id, offset, length, crc, count = _APPEND.unpack_from(view, body)
    data_start = body + _APPEND.size + count * _ATTRIBUTE.size
    if version != _VERSION or data_start + length != body + body_length or not 0 <= offset <= _INT64_MAX - length:
        return None
    attributes: list[tuple[bytes, int]] = []
    for index in range(count):
        key_length, key, value = _ATTRIBUTE.unpack_from(view, body + _APPEND.size + index * _ATTRIBUTE.size)
        if key_length != _KEY_BYTES:
            return None
        attributes.append((key, value))
    return _Found(segment_id, offset, crc, attributes, data_start, length)


class _Run:
    """A run that grows."""

    def __init__(self, segment_id: int, first_sequence: int, offset: int) -> None:
        self._segment_id = segment_id
        self._first_sequence = first_sequence
        self._offset = self.end = offset
        self._pieces: list[memoryview] = []
        self._offsets = array.array("q")
        self._lengths, self._crcs, self._starts = array.array("I"), array.array("I"), array.array("I")

    def add(self, view: memoryview, append: _Found) -> None:
        """Add the next append."""
        if append.length:
            self._pieces.append(view[append.data_start : append.data_start + append.length])
            self._offsets.append(append.offset)
            self._lengths.append(append.length)
            self._crcs.append(append.crc)
            self._starts.append(append.data_start)
            self.end += append.length

    def result(self) -> AppendRun:
        """Return the run."""
        return AppendRun(
            self._segment_id,
            self._first_sequence,
            self._offset,
            b"".join(self._pieces),
            self._offsets.tobytes(),
            self._lengths.tobytes(),
            self._crcs.tobytes(),
            self._starts.tobytes(),
        )
