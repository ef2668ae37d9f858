"""Read slices of segments as record batches, in Spark's executors (docs/spark.md#columns)."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.client import BlockingClient
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits, names
from tailrace.common.errors import DataLossError, NoSuchSegmentError, SegmentGoneError, SegmentTruncatedError
from tailrace.pipelines.direct.events import BlockingEvents
from tailrace.pipelines.source import ingest_times
from tailrace.pipelines.source.arrow_values import ArrowDecoder
from tailrace.pipelines.source.avro_values import AvroDecoder, parse_avro_schema
from tailrace.pipelines.source.json_values import JsonDecoder
from tailrace.pipelines.source.options import ValueFormat
from tailrace.pipelines.source.plan import grouped
from tailrace.pipelines.source.segment_ends import info_up_to
from tailrace.pipelines.source.worker_memory import MAPPED_FROM_BYTES, bound_memory, give_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.references import SegmentReferences
    from tailrace.pipelines.source.decoded import Decoded
    from tailrace.pipelines.source.ingest_times import RecordedCuts, TimeBound
    from tailrace.pipelines.source.options import SourceOptions
    from tailrace.pipelines.source.plan import Slice

_LOG = structlog.get_logger(__name__)

COLUMNS: Final = StructType(
    [
        StructField("value", BinaryType()),
        StructField("scope", StringType()),
        StructField("stream", StringType()),
        StructField("segment", IntegerType()),
        StructField("epoch", IntegerType()),
        StructField("offset", LongType()),
    ]
)
"""Columns of events that are not decoded. ``segment`` is its number, ``offset`` where the event begins in it."""
INGESTED_BEFORE: Final = StructField(ingest_times.COLUMN, TimestampType())
"""A further column, for those who ask for it: it needs calls to the controller."""
METADATA: Final = {
    f"_{field.name}": StructField(f"_{field.name}", field.dataType)
    for field in (*COLUMNS, INGESTED_BEFORE)
    if field.name != "value"
}
"""The same columns beside decoded fields, for those who ask for them."""


class DirectPart(NamedTuple):
    """What Tier 2 has of a slice, from its beginning on."""

    identity: ClusterIdentity
    references: SegmentReferences


class Part(NamedTuple):
    """A slice of a segment, what Tier 2 has of it, and bounds of the times at which it was written, if asked for."""

    piece: Slice
    direct: DirectPart | None = None
    times: tuple[TimeBound, ...] = ()


class SlicePartition(InputPartition):
    """Slices of segments, which one task reads one after another."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(tuple(tuple(part.piece) for part in parts))
        self.parts = tuple(parts)


def partitions_of(options: SourceOptions, parts: Sequence[Part]) -> list[SlicePartition]:
    """Divide what is read among tasks: a slice each, or as many as the options want a task to read."""
    groups = grouped([part.piece.end - part.piece.start for part in parts], options.min_partition_bytes)
    return [SlicePartition([parts[index] for index in group]) for group in groups]


class Events:
    """Consecutive events of a segment, at least one: binary values, and where each begins (int64).

    An event may have 8 MiB, so the values are kept in one form only: as Arrow's array or as a list. ``end`` is where
    the next event begins; ``stored_bytes`` are the bytes up to there, with headers.
    """

    def __init__(self, values: pa.Array | list[bytes], offsets: pa.Array) -> None:
        last = values[-1]
        self._values = values
        self.offsets = offsets
        self.end = int(offsets[-1].as_py()) + EVENT_HEADER_BYTES
        self.end += len(last) if isinstance(last, bytes) else len(last.as_buffer())
        self.stored_bytes = self.end - int(offsets[0].as_py())

    def __len__(self) -> int:
        return len(self.offsets)

    def array(self) -> pa.Array:
        """Return the values as an array, and keep them so."""
        if isinstance(self._values, list):
            self._values = pa.array(self._values, pa.binary())
        return self._values

    def take(self) -> list[bytes]:
        """Return the values as a list, and let them go."""
        values, self._values = self._values, []
        return values if isinstance(values, list) else values.to_pylist()


def asks_for_times(options: SourceOptions, schema: StructType) -> bool:
    """Return whether a query wants to know before when its events were written."""
    prefix = "" if options.value_format is ValueFormat.BINARY else "_"
    return f"{prefix}{ingest_times.COLUMN}" in schema.fieldNames()


async def timed(cuts: RecordedCuts, parts: Sequence[Part], now_ms: int) -> list[Part]:
    """Return parts with bounds of their times. `now_ms`: a time by which all of them had been written."""
    known = {stream: await cuts.of(stream) for stream in {part.piece.stream for part in parts}}
    return [
        part._replace(times=ingest_times.time_bounds(part.piece, known[part.piece.stream], now_ms)) for part in parts
    ]


def read_slice(options: SourceOptions, part: Part) -> Iterator[Events]:
    """Yield the events of a slice, some MiB at a time.

    Raises:
        DataLossError: they were truncated, or a restore lost them, unless the options let a query go on then.
    """
    piece, start, direct = part.piece, part.piece.start, part.direct
    segment = piece.stream.segment(piece.identifier)
    while start < piece.end:
        try:
            for events in _read(options, piece, start, direct):
                start = events.end
                yield events
                del events  # before the next ones are read
            return
        except SegmentTruncatedError as error:
            if options.fail_on_data_loss:
                raise DataLossError(
                    f"{segment}: bytes from {start} on were truncated while the query read them; "
                    "with failOnDataLoss=false it goes on behind them"
                ) from error
            is_gone = isinstance(error, SegmentGoneError)
            following = piece.end if is_gone else min(error.start_offset, piece.end)
            _LOG.warning("unread_data_truncated", segment=segment, start=start, end=following)
            start, direct = following, None


def _read(options: SourceOptions, piece: Slice, start: int, direct: DirectPart | None) -> Iterator[Events]:
    """Yield events from Tier 2 as far as it has whole ones, then from the segment store."""
    if direct is not None and options.tier2 is not None:
        reader = BlockingEvents(options.tier2, direct.identity, direct.references, start, piece.end)
        for batch in reader:
            yield Events(
                pa.Array.from_buffers(
                    pa.binary(), batch.count, [None, pa.py_buffer(batch.ends), pa.py_buffer(batch.payloads)]
                ),
                pa.Array.from_buffers(pa.int64(), batch.count, [None, pa.py_buffer(batch.offsets)]),
            )
            del batch  # before the next one is read
        start = reader.offset
    if start < piece.end:
        segment = piece.stream.segment(piece.identifier)
        with BlockingClient(options.controller) as client:
            end = _stored_end(client, options, segment, piece.end)
            if start < end:
                yield from _from_store(client, SegmentSlice(segment, start, end))


def _stored_end(client: BlockingClient, options: SourceOptions, segment: str, end: int) -> int:
    """Return `end`, or that of the segment if it is before it: a reader would wait for what a restore lost.

    Raises:
        DataLossError: the segment ends before `end`, unless the options let a query go on then.
    """
    try:
        length = client.run(info_up_to(client.context.segments, segment, end)).length
    except NoSuchSegmentError:
        return end  # which its reader reports
    if length >= end:
        return end
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{segment}: the segment ends at {length}, the batch ends beyond it, at {end}: a restore lost what was "
            "between them; with failOnDataLoss=false the query reads what is there"
        )
    _LOG.warning("batch_beyond_end", segment=segment, position=end, end=length)
    return length


def _from_store(client: BlockingClient, piece: SegmentSlice) -> Iterator[Events]:
    """Yield what the client returns, in blocks that bound the memory of a task."""
    values: list[bytes] = []
    size, start = 0, piece.start
    for found in client.read_slice(piece):
        values += found
        size += sum(map(len, found))
        del found
        if size >= limits.SPARK_BATCH_BYTES or len(values) >= limits.SPARK_BATCH_EVENTS:
            events = _events(values, start)
            values, size, start = [], 0, events.end
            yield events
            del events  # before the next ones are read
    if values:
        yield _events(values, start)


def _events(values: list[bytes], start: int) -> Events:
    offsets = accumulate((EVENT_HEADER_BYTES + len(each) for each in values[:-1]), initial=start)
    return Events(values, pa.array(offsets, pa.int64()))


def record_batches(options: SourceOptions, schema: StructType, partition: SlicePartition) -> Iterator[pa.RecordBatch]:
    """Yield the events of a partition with the columns of `schema`.

    These are some of COLUMNS, or fields of decoded events and some of METADATA.
    """
    bound_memory()
    give_back()  # what earlier tasks of this worker took
    fields = StructType([field for field in schema if field.name not in METADATA])
    decoder = _decoder(options, fields)
    for part in partition.parts:
        place = part.piece.stream.segment(part.piece.identifier)
        for events in read_slice(options, part):
            is_large = events.stored_bytes >= MAPPED_FROM_BYTES
            if is_large:
                give_back()  # what reading them took
            if decoder is None:
                yield _raw(schema.fieldNames(), events, part)
            else:
                metadata = {name: _column(name[1:], events, part) for name in schema.fieldNames() if name in METADATA}
                for decoded in decoder.decode(events.take(), events.offsets.to_pylist(), place):
                    yield _with_metadata(schema.fieldNames(), decoded, metadata)
                    del decoded  # before the next ones are decoded
            del events  # before the next ones are read
            if is_large:
                give_back()


def _decoder(options: SourceOptions, schema: StructType) -> JsonDecoder | AvroDecoder | ArrowDecoder | None:
    match options.value_format:
        case ValueFormat.JSON:
            return JsonDecoder(schema, fail_fast=options.fail_fast)
        case ValueFormat.AVRO:
            return AvroDecoder(schema, parse_avro_schema(options.avro_schema), fail_fast=options.fail_fast)
        case ValueFormat.ARROW:
            return ArrowDecoder(schema, fail_fast=options.fail_fast)
        case ValueFormat.BINARY:
            return None


def _raw(columns: list[str], events: Events, part: Part) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(name, events, part) for name in columns], names=columns)


def _column(name: str, events: Events, part: Part) -> pa.Array:
    """Return one of COLUMNS, or INGESTED_BEFORE, for all events."""
    count, piece = len(events), part.piece
    match name:
        case "value":
            return events.array()
        case "offset":
            return events.offsets
        case "segment":
            return pa.repeat(pa.scalar(names.segment_number(piece.identifier), pa.int32()), count)
        case "epoch":
            return pa.repeat(pa.scalar(names.segment_epoch(piece.identifier), pa.int32()), count)
        case ingest_times.COLUMN:
            return _ingested_before(events, part.times)
        case _:
            return pa.repeat(pa.scalar(getattr(piece.stream, name), pa.string()), count)


def _with_metadata(columns: list[str], decoded: Decoded, metadata: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return decoded rows with the metadata of their events, in the order of the columns."""

    def column(name: str) -> pa.Array:
        if name not in metadata:
            return decoded.rows.column(name)
        of_events = metadata[name].slice(decoded.first, decoded.events)
        return of_events if decoded.events > 1 else pa.repeat(of_events[0], decoded.rows.num_rows)

    return pa.RecordBatch.from_arrays([column(name) for name in columns], names=columns)


def _ingested_before(events: Events, times: Sequence[TimeBound]) -> pa.Array:
    """Return a time for each event: that of the first bound behind the whole event."""
    ends = np.append(events.offsets.to_numpy()[1:], events.end)
    bounds = np.array([bound.end for bound in times], np.int64)
    index = np.searchsorted(bounds, ends)
    stamps = np.array([bound.time_ms for bound in times], np.int64)[index]
    return pc.cast(pa.array(stamps, pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC"))
