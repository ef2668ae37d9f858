"""Values that the client's operations take and return."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.cluster.endpoints import Endpoint
from tailrace.wire.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

__all__ = [
    "NOT_EXISTS",
    "NO_ATTRIBUTE",
    "NO_VERSION",
    "Endpoint",
    "SegmentInfo",
    "SegmentReadResult",
    "TableDelta",
    "TableEntry",
    "TableKey",
    "UUIDPair",
]

NO_ATTRIBUTE: Final = -(2**63)
"""Value of a segment attribute that is not set (docs/protocol/wire.md#attributes)."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Properties of a segment; ``length`` is the offset of its end, ``start_offset`` that of its first byte."""

    name: str
    length: int
    start_offset: int
    sealed: bool
    last_modified_ms: int


class SegmentReadResult(NamedTuple):
    """Bytes of a segment; ``at_tail``: the read reached the tail; ``end``: it reached the end of a sealed segment."""

    data: bytes
    at_tail: bool
    end: bool


class TableDelta(NamedTuple):
    """Entries written since a position (docs/protocol/wire.md#delta-reads)."""

    entries: list[TableEntry]
    should_clear: bool
    reached_end: bool
    last_position: int


class UUIDPair(NamedTuple):
    """The two signed 64-bit halves of a UUID, as messages of the controller carry it."""

    high: int
    low: int

    @classmethod
    def of(cls, value: uuid.UUID) -> UUIDPair:
        """Split."""
        return cls(
            int.from_bytes(value.bytes[:8], "big", signed=True), int.from_bytes(value.bytes[8:], "big", signed=True)
        )

    def join(self) -> uuid.UUID:
        """The UUID."""
        return uuid.UUID(bytes=self.high.to_bytes(8, "big", signed=True) + self.low.to_bytes(8, "big", signed=True))
