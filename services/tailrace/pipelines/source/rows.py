"""Read slices of segments as record batches, in Spark's executors (docs/spark.md#columns)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from tailrace.client import BlockingClient
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits, names
from tailrace.common.errors import DataLossError, SegmentGoneError, SegmentTruncatedError
from tailrace.pipelines.source.json_values import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.pipelines.source.options import SourceOptions
    from tailrace.pipelines.source.plan import Slice

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


class SlicePartition(InputPartition):
    """A slice of a segment, for one task."""

    def __init__(self, piece: Slice) -> None:
        super().__init__(tuple(piece))
        self.piece = piece


@dataclass(frozen=True)
class Events:
    """Consecutive events of a segment, and where each begins."""

    values: list[bytes]
    offsets: list[int]


def read_slice(options: SourceOptions, piece: Slice) -> Iterator[Events]:
    """Yield the events of a slice, some MiB at a time.

    Raises:
        DataLossError: they were truncated, unless the options let a query go on then.
    """
    start = piece.start
    with BlockingClient(options.controller) as client:
        while start < piece.end:
            segment = piece.stream.segment(piece.identifier)
            try:
                for events in _blocks(client, SegmentSlice(segment, start, piece.end), start):
                    yield events
                    start = events.offsets[-1] + EVENT_HEADER_BYTES + len(events.values[-1])
                return
            except SegmentTruncatedError as error:
                if options.fail_on_data_loss:
                    raise DataLossError(
                        f"{segment}: bytes from {start} on were truncated while the query read them; "
                        "with failOnDataLoss=false it goes on behind them"
                    ) from error
                if isinstance(error, SegmentGoneError):
                    return
                start = error.start_offset


def _blocks(client: BlockingClient, piece: SegmentSlice, start: int) -> Iterator[Events]:
    """Yield what the client returns, in blocks that bound the memory of a task."""
    values: list[bytes] = []
    size = 0
    for found in client.read_slice(piece):
        values += found
        size += sum(map(len, found))
        if size >= limits.SPARK_BATCH_BYTES or len(values) >= limits.SPARK_BATCH_EVENTS:
            yield Events(values, offsets := _offsets(values, start))
            start = offsets[-1] + EVENT_HEADER_BYTES + len(values[-1])
            values, size = [], 0
    if values:
        yield Events(values, _offsets(values, start))


def _offsets(values: list[bytes], start: int) -> list[int]:
    return list(accumulate((EVENT_HEADER_BYTES + len(each) for each in values[:-1]), initial=start))


def record_batches(options: SourceOptions, schema: StructType, piece: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the events of a slice with the columns of `schema`: those of COLUMNS, or fields of JSON."""
    decoder = JsonDecoder(schema, fail_fast=options.fail_fast) if options.is_json else None
    place = piece.stream.segment(piece.identifier)
    for events in read_slice(options, piece):
        if decoder is not None:
            yield decoder.decode(events.values, events.offsets, place)
        else:
            yield _raw(schema.fieldNames(), events, piece)


def _raw(columns: list[str], events: Events, piece: Slice) -> pa.RecordBatch:
    count = len(events.values)

    def column(name: str) -> pa.Array:
        match name:
            case "value":
                return pa.array(events.values, pa.binary())
            case "offset":
                return pa.array(events.offsets, pa.int64())
            case "segment":
                return pa.repeat(pa.scalar(names.segment_number(piece.identifier), pa.int32()), count)
            case "epoch":
                return pa.repeat(pa.scalar(names.segment_epoch(piece.identifier), pa.int32()), count)
            case _:
                return pa.repeat(pa.scalar(getattr(piece.stream, name), pa.string()), count)

    return pa.RecordBatch.from_arrays([column(name) for name in columns], names=columns)
