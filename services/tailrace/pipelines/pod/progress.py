"""What a driver has done, and how far its stream is ahead (docs/pipelines.md#progress). Pure.

All numbers count from the driver's start, but the lag.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace.pipelines.source.offsets import from_offset
from tailrace.pipelines.source.plan import slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.pipelines.source.offsets import Positions

_MS: Final = 1000
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass
class RunProgress:
    """Batches, rows and bytes that a driver has read, the position behind them, and the lag at the last measurement."""

    batches: int = 0
    rows: int = 0
    rows_per_s: int = 0
    bytes_per_s: int = 0
    last_batch_ms: int | None = None
    reached: tuple[Positions | None, int] = (None, 0)
    """The position, and the bytes read up to there: one value, because two threads read and write it."""
    _lag_bytes: int | None = None
    _lag_s: int | None = None
    _ends: list[tuple[int, int]] = field(default_factory=list)
    """When the stream was measured, in ms since 1970, and how many bytes had been written then. Of those times at which
    it had no more than what was read, only the last one is kept; of the others, the ones in between may be left out."""

    def add_batch(self, *, rows: int, start: object, end: object, duration_ms: int, now_ms: int) -> None:
        """Count a batch between two offsets of the data source. Raises BadRequestError: one is no offset."""
        last = from_offset(end, None)
        read_bytes = sum(each.end - each.start for each in slices(from_offset(start, None), last)) if start else 0
        self.reached = (last, self.reached[1] + read_bytes)
        self.batches += 1
        self.rows += rows
        self.last_batch_ms = now_ms
        self.rows_per_s = rows * _MS // max(1, duration_ms)
        self.bytes_per_s = read_bytes * _MS // max(1, duration_ms)

    def set_idle(self) -> None:
        """Note that the query has nothing to read."""
        self.rows_per_s = self.bytes_per_s = 0

    def measured(self, unread_bytes: int, read_bytes: int, began_ms: int) -> None:
        """Note the lag of a position that was reached with `read_bytes`; `began_ms`: before the stream was asked.

        The oldest unread byte was written after the last time that the stream had no more than what was read. Before
        the first such time its age is not known.
        """
        self._ends.append((began_ms, read_bytes + unread_bytes))
        while len(self._ends) > 1 and self._ends[1][1] <= read_bytes:
            del self._ends[0]
        if len(self._ends) > limits.PIPELINE_LAG_SAMPLES_MAX:
            del self._ends[1]
        self._lag_bytes = unread_bytes
        since_ms, written = self._ends[0]
        self._lag_s = max(0, began_ms - since_ms) // _MS if written <= read_bytes else None

    def as_json(self) -> dict[str, Any]:
        """Return what is known as JSON values, by the names in the status of a Pipeline."""
        last = None
        if self.last_batch_ms is not None:
            last = datetime.datetime.fromtimestamp(self.last_batch_ms // _MS, datetime.UTC).strftime(_TIME)
        found: Mapping[str, Any] = {
            "batches": self.batches,
            "rows": self.rows,
            "bytes": self.reached[1],
            "rowsPerSecond": self.rows_per_s,
            "bytesPerSecond": self.bytes_per_s,
            "lagBytes": self._lag_bytes,
            "lagSeconds": self._lag_s,
            "lastBatchTime": last,
        }
        return {name: value for name, value in found.items() if value is not None}
