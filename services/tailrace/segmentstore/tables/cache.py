"""A bounded cache of a worker's hot table entries (docs/design.md#table-segments)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.segmentstore.tables.record import Record


class EntryCache:
    """Records by (container, segment id, offset); drops the least recently used ones.

    A record never changes at its offset, and a container never reuses segment ids, so no entry needs invalidation.
    Records that compaction truncates are not requested any more and age out. One cache may serve many containers.
    """

    def __init__(self, max_bytes: int = limits.TABLE_ENTRY_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._records: OrderedDict[tuple[int, int, int], Record] = OrderedDict()
        self.used_bytes = 0

    def get(self, container_id: int, segment_id: int, offset: int) -> Record | None:
        """Return a cached record, which becomes the most recently used one."""
        key = (container_id, segment_id, offset)
        record = self._records.get(key)
        if record is not None:
            self._records.move_to_end(key)
        return record

    def put(self, container_id: int, segment_id: int, record: Record) -> None:
        """Add a committed record, and drop the least recently used ones above the limit."""
        cost = record.length + limits.TABLE_ENTRY_CACHE_OVERHEAD_BYTES
        if record.length > limits.TABLE_ENTRY_CACHED_MAX_BYTES:
            return
        key = (container_id, segment_id, record.offset)
        if key in self._records:
            self._records.move_to_end(key)
            return
        self._records[key] = record
        self.used_bytes += cost
        while self.used_bytes > self._max_bytes:
            _, dropped = self._records.popitem(last=False)
            self.used_bytes -= dropped.length + limits.TABLE_ENTRY_CACHE_OVERHEAD_BYTES

    def __len__(self) -> int:
        return len(self._records)
