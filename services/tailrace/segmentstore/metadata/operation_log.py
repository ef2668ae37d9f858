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
from tailrace.segmentstore.metadata.operations import Operation, OperationType, decode, decode_append

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD: Final = struct.Struct(">BBHIq")
BEGIN: Final = 1
END: Final = 2
WHOLE: Final = BEGIN | END
_APPEND: Final = int(OperationType.APPEND)
_new_placed: Final = tuple.__new__  # half the time that Placed(...) takes


class Placed(NamedTuple):
    """An operation found in the log: its number, and where its body lies (frame sequence, offset, length)."""

    sequence: int
    operation: Operation
    places: tuple[tuple[int, int, int], ...]


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
        position, end = 0, len(payload)
        only, unpack, header_bytes = self._only, RECORD.unpack_from, RECORD.size
        while position < end:
            if end - position < header_bytes:
                raise CorruptionError(place, f"record header at {position} is cut off")
            kind, flags, _, length, sequence = unpack(payload, position)
            body_start = position + header_bytes
            position = body_start + length
            if position > end or flags & ~WHOLE:
                raise CorruptionError(place, f"record at {body_start} is damaged")
            if self._sequence >= 0 and flags & BEGIN:
                self._end_incomplete(kind, place)
            if flags != WHOLE:
                fragment = (frame_sequence, body_start, length)
                yield from self._fragment(kind, flags, sequence, payload[body_start:position], fragment, place)
                continue
            self._begun = True
            if only is None or kind == only:
                try:
                    operation = (
                        decode_append(payload, body_start, position, place)
                        if kind == _APPEND
                        else decode(kind, payload[body_start:position], place)
                    )
                except CorruptionError as error:
                    raise CorruptionError(f"{place} at {body_start}", error.reason) from error
                yield _new_placed(Placed, (sequence, operation, ((frame_sequence, body_start, length),)))

    def _end_incomplete(self, kind: int, place: str) -> None:
        if kind != OperationType.RECOVERED:
            raise CorruptionError(place, f"operation {self._sequence} has no end")
        self._reset()

    def _reset(self) -> None:
        self._sequence = -1
        self._parts = []
        self._places = []

    def _fragment(
        self, kind: int, flags: int, sequence: int, body: memoryview, fragment: tuple[int, int, int], place: str
    ) -> Iterator[Placed]:
        if flags & BEGIN:
            self._begun = True
            self._type, self._sequence = kind, sequence
        elif not self._begun:
            return
        elif sequence != self._sequence or kind != self._type:
            raise CorruptionError(place, f"fragment of operation {sequence} without its begin")
        wanted = self._only is None or kind == self._only
        if wanted:
            self._parts.append(bytes(body))
            self._places.append(fragment)
        if flags & END:
            whole, places = b"".join(self._parts), tuple(self._places)
            self._reset()
            if wanted:
                yield Placed(sequence, decode(kind, whole, place), places)
