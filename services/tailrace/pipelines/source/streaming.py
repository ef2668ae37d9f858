"""Read streams as a streaming query (docs/spark.md#read-a-stream-as-it-grows)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.client import BlockingClient
from tailrace.common.errors import BadRequestError, NotFoundError
from tailrace.common.real_ports import SystemClock
from tailrace.common.stream_cut import StreamCut, without_future
from tailrace.pipelines.source.ingest_times import RecordedCuts
from tailrace.pipelines.source.offsets import Positions, begin_of, from_offset, to_offset
from tailrace.pipelines.source.options import HEAD
from tailrace.pipelines.source.plan import cut_of, slices
from tailrace.pipelines.source.positions import Navigator, ReadLimits
from tailrace.pipelines.source.rows import (
    Part,
    SlicePartition,
    asks_for_times,
    partitions_of,
    record_batches,
    timed,
)
from tailrace.pipelines.source.tagged import TaggedStreams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from tailrace.client.group.reader_group import ReaderGroup
    from tailrace.client.model import StreamName
    from tailrace.pipelines.source.options import SourceOptions

_LOG = structlog.get_logger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams batch by batch. The driver plans, executors read; they get this object without its client."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._client: BlockingClient | None = None
        self._navigator: Navigator | None = None
        self._group: ReaderGroup | None = None
        self._tagged: TaggedStreams | None = None
        self._cuts: RecordedCuts | None = None
        self._ends: Positions | None = None
        self._is_checked = False
        self._is_held = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_client": None}

    def _connected(self) -> tuple[BlockingClient, Navigator]:
        """Return the driver's client. At first, check streams and group: Raises NotFoundError, BadRequestError."""
        if self._client is None or self._navigator is None:
            client = BlockingClient(self._options.controller)
            navigator = Navigator(client.context, self._options.fail_on_data_loss)
            try:
                for stream in self._options.streams:
                    client.run(navigator.check_exists(stream))
                if self._options.group:
                    self._group = client.run(navigator.group(self._options.group, self._options.streams))
            except BaseException:
                client.close()
                raise
            self._client, self._navigator = client, navigator
            if self._options.tag is not None:
                self._tagged = TaggedStreams(client.context, self._options.tag)
        return self._client, self._navigator

    @property
    def _named(self) -> tuple[StreamName, ...] | None:
        """The streams of the options; None when a tag chooses them."""
        return self._options.streams if self._options.tag is None else None

    def initialOffset(self) -> dict[str, Any]:
        """Return the position of the option ``start``, for a query without a checkpoint.

        Spark asks for it again when it repeats a query's first batch; then `partitions` does not use it.

        Raises:
            NoSuchStreamError: no stream has the tag.
        """
        client, navigator = self._connected()
        streams = self._options.streams if self._tagged is None else client.run(self._tagged.some())
        positions = {stream: client.run(navigator.start(stream, self._options.start)) for stream in streams}
        return to_offset(positions, positions)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the bound of a batch."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_events is not None:
            return ReadMaxRows(self._options.max_events)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the position after the next batch; `start` when there is nothing to read.

        Raises:
            BadRequestError: `start` is of other streams, or beyond the option ``end``. DataLossError,
                IllegalStateError: see `Navigator.advance`. WriteConflictError, NotFoundError: see `commit`.
        """
        self._connected()
        positions = from_offset(start, self._named)
        begin = positions if self._is_initial(start) else None
        self._check_end(positions)
        self._hold(positions)
        bounds = ReadLimits(
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            max_events=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        )
        try:
            end = self._advanced(positions, bounds, fresh=False)
        except NotFoundError:
            if self._tagged is None:
                raise
            end = self._advanced(positions, bounds, fresh=True)  # without those that were deleted meanwhile
        return start if end == positions else to_offset(end, begin)  # another text would be another batch

    def _is_initial(self, offset: dict[str, Any]) -> bool:
        """Return whether an offset is where the first batch begins, not where one ends."""
        return begin_of(offset, self._named) == from_offset(offset, self._named)

    def _advanced(self, positions: Positions, bounds: ReadLimits, *, fresh: bool) -> Positions:
        """Return the position after the next batch. A stream that has got the tag is read from the batch after it on.

        So both ends of a batch say where each of its streams begins, whatever is truncated until it is repeated.
        """
        client, navigator = self._connected()
        if self._tagged is None:
            return client.run(navigator.advance(positions, bounds, self._ends))
        ends = self._ends
        tagged = client.run(self._tagged.now(fresh=fresh))
        division = client.run(self._tagged.divide(positions, tagged if ends is None else ends.keys() & set(tagged)))
        joined = {stream: client.run(navigator.start(stream, HEAD)) for stream in division.joined}
        return {**division.idle, **client.run(navigator.advance(division.read, bounds, ends)), **joined}

    def _check_end(self, positions: Positions) -> None:
        """Take the option ``end`` as the end of the query; at first, check it. Raises BadRequestError."""
        end = self._options.end
        if self._is_checked or not isinstance(end, StreamCut):
            return
        client, navigator = self._connected()
        (stream,) = self._options.streams
        client.run(navigator.check_cut(stream, end))
        reached = without_future(end.positions)
        if client.run(navigator.is_beyond(stream, positions[stream], reached)):
            raise BadRequestError(f"the query has read stream {stream} beyond the cut of the option end already")
        self._ends = {stream: reached}
        self._is_checked = True

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the present tail as the end of the query, unless the options name one."""
        if not isinstance(self._options.end, StreamCut):
            self._ends = self._tail()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the present tail, for the query's progress."""
        return to_offset(self._tail())

    def _tail(self) -> Positions:
        client, navigator = self._connected()
        if self._tagged is None:
            return {stream: client.run(navigator.tail(stream)) for stream in self._options.streams}
        tails: Positions = {}
        for stream in client.run(self._tagged.now()):
            with contextlib.suppress(NotFoundError):  # it was deleted just now, or some of its segments already
                tails[stream] = client.run(navigator.tail(stream))
        return tails

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the slices of a batch.

        Raises:
            BadRequestError: the offsets are of other streams. WriteConflictError, NotFoundError: see `commit`.
        """
        first, last = (from_offset(offset, self._named) for offset in (start, end))
        if self._is_initial(start):
            first = begin_of(end, self._named) or first
        self._hold(first)
        parts = [Part(piece) for piece in slices(first, last)]
        if asks_for_times(self._options, self._schema):
            client, _ = self._connected()
            self._cuts = self._cuts or RecordedCuts(client.context)
            parts = client.run(timed(self._cuts, parts, SystemClock().now_ms()))
            self._cuts.forget(first)
        return partitions_of(self._options, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition."""
        assert isinstance(partition, SlicePartition)
        return record_batches(self._options, self._schema, partition)

    def _hold(self, positions: Positions) -> None:
        """Publish where this run's first batch begins, once: before a group has a position it holds nothing back.

        A position that is refused is logged. Raises WriteConflictError, NotFoundError: see `commit`.
        """
        self._connected()
        if self._group is None or self._is_held:
            return
        for stream in positions:
            try:
                self._publish(self._group, {stream: positions[stream]})
            except BadRequestError as error:
                # The group has a later one, or this is no position in the stream. The query itself finds what is gone.
                _LOG.warning("position_not_published", group=self._options.group, reason=str(error))
        self._is_held = True

    def _publish(self, group: ReaderGroup, positions: Positions) -> None:
        client, _ = self._connected()
        client.run(group.publish_cuts({each: cut_of(each, positions) for each in positions}))

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the position for retention, as the reader group of the options.

        Raises:
            WriteConflictError: the group was reset or created again. BadRequestError: it published a later position.
            NoSuchReaderGroupError: a stream was created again since. NoSuchStreamError: a stream was deleted.
        """
        self._connected()
        if self._group is not None:
            self._publish(self._group, from_offset(end, self._options.streams))

    def stop(self) -> None:
        """Close the driver's client."""
        if self._client is not None:
            self._client.close()
            self._client, self._is_held = None, False
