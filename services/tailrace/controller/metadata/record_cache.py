"""Keep records that never change, as many as fit into a number of bytes (docs/controller.md#memory)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tailrace.controller.metadata.model import Epoch
from tailrace.controller.metadata.records import RetentionCut, SealedRecord

Place = tuple[str, bytes]
"""Table and key of a record."""
Cacheable = Epoch | SealedRecord | RetentionCut

RECORD_BYTES: Final = 1000
"""What a record takes beside its segments: objects, table and key, its entry."""
SEGMENT_BYTES: Final = 160
"""What each segment of a record takes."""


def memory_bytes(record: Cacheable) -> int:
    """Return an upper estimate of what a decoded record takes in memory."""
    match record:
        case Epoch():
            segments = len(record.segments)
        case SealedRecord():
            segments = len(record.sizes)
        case RetentionCut():
            segments = len(record.cut)
    return RECORD_BYTES + SEGMENT_BYTES * segments


class RecordCache:
    """Records by place; the ones that were not used for longest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._records: OrderedDict[Place, Cacheable] = OrderedDict()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Return what the records take, by `memory_bytes`."""
        return self._used_bytes

    def get(self, place: Place) -> Cacheable | None:
        """Return the record, which counts as used; None when it is not kept."""
        found = self._records.get(place)
        if found is not None:
            self._records.move_to_end(place)
        return found

    def put(self, place: Place, record: Cacheable) -> None:
        """Keep a record, unless it alone takes more than the bound."""
        self._drop(place)
        size = memory_bytes(record)
        if size > self._max_bytes:
            return
        while self._used_bytes + size > self._max_bytes:
            self._drop(next(iter(self._records)))
        self._records[place] = record
        self._used_bytes += size

    def _drop(self, place: Place) -> None:
        record = self._records.pop(place, None)
        if record is not None:
            self._used_bytes -= memory_bytes(record)
