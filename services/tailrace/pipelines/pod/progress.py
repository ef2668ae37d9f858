"""What a driver has done, and how far its stream is ahead (docs/pipelines.md#progress). Pure.

All numbers count from the driver's start, but the lag.
"""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.common import limits
from tailrace.pipelines.source.offsets import from_offset
from tailrace.pipelines.source.plan import slices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.pipelines.source.offsets import Positions

_MS: Final = 1000
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class SourceBatch(NamedTuple):
    """What a batch has of one source of its query: rows, and where they begin and end; no start is not known."""

    rows: int
    start: Positions | None
    end: Positions

    @property
    def read_bytes(self) -> int:
        """Return what was read; 0 without a start."""
        return 0 if self.start is None else sum(each.end - each.start for each in slices(self.start, self.end))


def source_batch(source: Mapping[str, Any]) -> SourceBatch:
    """Return what Spark reports of a source. Raises BadRequestError: it is of another kind, or has no position yet."""
    start, end = source["startOffset"], from_offset(source["endOffset"], None)
    return SourceBatch(int(source["numInputRows"]), from_offset(start, None) if start else None, end)


@dataclass
class QueryProgress:
    """What a streaming query has read of its streams, the positions behind it, and the lag at the last measurement."""

    batches: int = 0
    rows: int = 0
    rows_per_s: int = 0
    bytes_per_s: int = 0
    last_batch_ms: int | None = None
    """When Spark reported the last batch, in ms since 1970: it does so when the checkpoint has the batch."""
    reached: tuple[tuple[Positions, ...], int] = ((), 0)
    """The position in each of its sources that read streams, and the bytes read up to there: one value, because two
    threads read and write it."""
    has_ended: bool = False
    lag_bytes: int | None = None
    lag_s: int | None = None
    _ends: list[tuple[int, int]] = field(default_factory=list)
    """When the stream was measured, in ms since 1970, and how many bytes had been written then. Of those times at which
    it had no more than what was read, only the last one is kept; of the others, the ones in between may be left out."""

    def add_batch(self, sources: Sequence[SourceBatch], *, duration_ms: int, now_ms: int) -> None:
        """Count a batch once, and what it has of all sources that read streams."""
        rows, read_bytes = sum(each.rows for each in sources), sum(each.read_bytes for each in sources)
        self.reached = (tuple(each.end for each in sources), self.reached[1] + read_bytes)
        self.batches += 1
        self.rows += rows
        self.last_batch_ms = now_ms
        self.rows_per_s = rows * _MS // max(1, duration_ms)
        self.bytes_per_s = read_bytes * _MS // max(1, duration_ms)

    def set_idle(self) -> None:
        """Note that the query has nothing to read."""
        self.rows_per_s = self.bytes_per_s = 0

    def set_ended(self) -> None:
        """Note that the query does not run any more."""
        self.set_idle()
        self.has_ended = True

    def measured(self, unread_bytes: int, read_bytes: int, began_ms: int) -> None:
        """Note the lag of positions that were reached with `read_bytes`; `began_ms`: before the stream was asked.

        The oldest unread byte was written after the last time that the stream had no more than what was read. Before
        the first such time its age is not known.
        """
        self._ends.append((began_ms, read_bytes + unread_bytes))
        while len(self._ends) > 1 and self._ends[1][1] <= read_bytes:
            del self._ends[0]
        if len(self._ends) > limits.PIPELINE_LAG_SAMPLES_MAX:
            del self._ends[1]
        self.lag_bytes = unread_bytes
        since_ms, written = self._ends[0]
        self.lag_s = max(0, began_ms - since_ms) // _MS if written <= read_bytes else None


class RunProgress:
    """What the queries of a driver have read together, and the largest of their lags.

    The lag of a query that has ended counts only when none is running, and until another one starts.
    """

    def __init__(self) -> None:
        self._known: tuple[QueryProgress, dict[str, QueryProgress]] = (QueryProgress(has_ended=True), {})
        """The sums of queries that had ended when another one started, and the others by the ids of their runs: one
        value, because other threads read it."""
        self._starts = threading.Lock()

    def start(self, run: str) -> None:
        """Note that a run of a query starts, perhaps at a checkpoint. Of those that have ended only sums are kept: a
        program may start any number of queries."""
        with self._starts:
            self._start(run)

    def _start(self, run: str) -> None:
        sums, queries = self._known
        ended = [sums, *(each for each in queries.values() if each.has_ended)]
        sums = QueryProgress(
            batches=sum(each.batches for each in ended),
            rows=sum(each.rows for each in ended),
            last_batch_ms=max((each.last_batch_ms for each in ended if each.last_batch_ms is not None), default=None),
            reached=((), sum(each.reached[1] for each in ended)),
            has_ended=True,
        )
        running = {identifier: each for identifier, each in queries.items() if not each.has_ended}
        self._known = (sums, {**running, run: QueryProgress()})

    def of(self, run: str) -> QueryProgress:
        """Return the progress of a run that has started, by its id."""
        return self._known[1][run]

    def to_measure(self) -> list[QueryProgress]:
        """Return the queries of which the lag counts."""
        queries = list(self._known[1].values())
        return [each for each in queries if not each.has_ended] or queries

    def as_json(self) -> dict[str, Any]:
        """Return what is known as JSON values, by the names in the status of a Pipeline."""
        sums, others = self._known
        queries, last = [sums, *others.values()], None
        last_ms = max((each.last_batch_ms for each in queries if each.last_batch_ms is not None), default=None)
        if last_ms is not None:
            last = datetime.datetime.fromtimestamp(last_ms // _MS, datetime.UTC).strftime(_TIME)
        measured = [each for each in self.to_measure() if each.lag_bytes is not None]
        ages_s = [each.lag_s for each in measured if each.lag_s is not None]
        found: Mapping[str, Any] = {
            "batches": sum(each.batches for each in queries),
            "rows": sum(each.rows for each in queries),
            "bytes": sum(each.reached[1] for each in queries),
            "rowsPerSecond": sum(each.rows_per_s for each in queries),
            "bytesPerSecond": sum(each.bytes_per_s for each in queries),
            "lagBytes": max((each.lag_bytes for each in measured if each.lag_bytes is not None), default=None),
            "lagSeconds": max(ages_s) if ages_s and len(ages_s) == len(measured) else None,
            "lastBatchTime": last,
        }
        return {name: value for name, value in found.items() if value is not None}
