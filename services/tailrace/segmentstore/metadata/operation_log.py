"""Reads operations from the frames of a log (docs/formats/operations.md). Pure.

A frame's payload is a run of records. A record is a fragment of one operation's body::

    u8 type | u8 flags (1 = begin, 2 = end) | u16 zero | u32 fragment length | i64 operation sequence number | fragment

A recovery drops an operation without an end, and its RECOVERED record follows the begin. Anywhere else a begin without
an end is corruption.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common.errors import CorruptionError
from tailrace.kernel import scan_appends, skip_records
from tailrace.segmentstore.metadata.operations import Operation, OperationType, decode, decode_append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.kernel import AppendRun, LastAttributes

RECORD: Final = struct.Struct(">BBHIq")
BEGIN: Final = 1
END: Final = 2
WHOLE: Final = BEGIN | END
_APPEND: Final = int(OperationType.APPEND)


class Placed(NamedTuple):
    """An operation found in the log: its number, and where its body lies (frame sequence, offset, length)."""

    sequence: int
    operation: Operation
    places: tuple[tuple[int, int, int], ...]

    @property
    def next_sequence(self) -> int:
        """Return the number of the operation after it."""
        return self.sequence + 1


class PlacedAppends(NamedTuple):
    """Successive appends that a frame holds whole, by segment; `next_sequence` follows the last one's number."""

    sequence: int
    next_sequence: int
    frame_sequence: int
    runs: list[AppendRun]


class Assembler:
    """Joins the records of successive frames to operations, and rejects incomplete ones.

    It skips fragments before the first begin: earlier frames with their begin were truncated.
    With `only`, it neither decodes nor returns operations of other types.
    """

    def __init__(self, only: OperationType | None = None) -> None:
        self._only = only
        self._parts: list[bytes] = []
        self._places: list[tuple[int, int, int]] = []
        self._type = 0
        self._sequence = -1
        self._begun = False

    def feed(self, frame_sequence: int, payload: memoryview, place: str) -> Iterator[Placed]:
        """Yield the operations that end in this frame."""
        position, only = 0, self._only
        while position < len(payload):
            if only is not None and self._sequence < 0:
                start, position = position, skip_records(payload, position, only)
                self._begun |= position > start
                if position == len(payload):
                    return
            position, placed = self._next(frame_sequence, payload, position, place)
            if placed is not None:
                yield placed

    def feed_runs(
        self,
        frame_sequence: int,
        payload: memoryview,
        place: str,
        *,
        split_after: int,
        attributes: dict[int, LastAttributes],
    ) -> Iterator[Placed | PlacedAppends]:
        """Yield the operations that end in this frame; appends together, but none with those after `split_after`.

        ``attributes`` gathers what the later ones set; the caller may take it after each operation (`scan_appends`).
        """
        position = 0
        while position < len(payload):
            if self._sequence < 0 and len(payload) - position >= RECORD.size and payload[position] == _APPEND:
                (*_, sequence) = RECORD.unpack_from(payload, position)
                count_max = split_after - sequence + 1 if sequence <= split_after else len(payload)
                gathered = attributes if sequence > split_after else None
                position, following, runs = scan_appends(payload, position, sequence, count_max, gathered)
                if runs:
                    self._begun = True
                    yield PlacedAppends(sequence, following, frame_sequence, runs)
                    continue
            position, placed = self._next(frame_sequence, payload, position, place)
            if placed is not None:
                yield placed

    def _next(self, frame_sequence: int, payload: memoryview, start: int, place: str) -> tuple[int, Placed | None]:
        """Take one record; return where the next begins, and the operation if it ends there."""
        end = len(payload)
        if end - start < RECORD.size:
            raise CorruptionError(place, f"record header at {start} is cut off")
        kind, flags, _, length, sequence = RECORD.unpack_from(payload, start)
        body_start = start + RECORD.size
        body_end = body_start + length
        if body_end > end or flags & ~WHOLE:
            raise CorruptionError(place, f"record at {body_start} is damaged")
        if self._sequence >= 0 and flags & BEGIN:
            self._end_incomplete(kind, place)
        part = (frame_sequence, body_start, length)
        if flags != WHOLE:
            return body_end, self._fragment(kind, flags, sequence, payload[body_start:body_end], part, place)
        self._begun = True
        if self._only is not None and kind != self._only:
            return body_end, None
        try:
            operation = (
                decode_append(payload, body_start, body_end, place)
                if kind == _APPEND
                else decode(kind, payload[body_start:body_end], place)
            )
        except CorruptionError as error:
            raise CorruptionError(f"{place} at {body_start}", error.reason) from error
        return body_end, Placed(sequence, operation, (part,))

    def _end_incomplete(self, kind: int, place: str) -> None:
        if kind != OperationType.RECOVERED:
            raise CorruptionError(place, f"operation {self._sequence} has no end")
        self._reset()

    def _reset(self) -> None:
        self._sequence = -1
        self._parts = []
        self._places = []

    def _fragment(
        self, kind: int, flags: int, sequence: int, body: memoryview, part: tuple[int, int, int], place: str
    ) -> Placed | None:
        if flags & BEGIN:
            self._begun = True
            self._type, self._sequence = kind, sequence
        elif not self._begun:
            return None
        elif sequence != self._sequence or kind != self._type:
            raise CorruptionError(place, f"fragment of operation {sequence} without its begin")
        wanted = self._only is None or kind == self._only
        if wanted:
            self._parts.append(bytes(body))
            self._places.append(part)
        if not flags & END:
            return None
        whole, places = b"".join(self._parts), tuple(self._places)
        self._reset()
        return Placed(sequence, decode(kind, whole, place), places) if wanted else None
