"""Read streams as a table (docs/spark.md#read-a-stream-as-a-table)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from tailrace.client import BlockingClient
from tailrace.common.errors import BadRequestError
from tailrace.common.names import parse_segment_name
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.source.options import HEAD, TAIL
from tailrace.pipelines.source.plan import Slice
from tailrace.pipelines.source.positions import Navigator
from tailrace.pipelines.source.rows import SlicePartition, record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from tailrace.client.model import StreamName
    from tailrace.pipelines.source.options import SourceOptions


class TableReader(DataSourceReader):
    """Reads what streams hold between two positions: one partition a segment."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices to read. Raises NoSuchStreamError, BadRequestError."""
        found: list[InputPartition] = []
        with BlockingClient(self._options.controller) as client:
            navigator = Navigator(client.context, self._options.fail_on_data_loss)
            for stream in self._options.streams:
                start, end = client.run(_bounds(navigator, stream, self._options))
                for piece in client.slices(stream, start, end):
                    identifier = parse_segment_name(piece.segment).identifier
                    found.append(SlicePartition(Slice(stream, identifier, piece.start, piece.end)))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a slice."""
        assert isinstance(partition, SlicePartition)
        return record_batches(self._options, self._schema, partition.piece)


async def _bounds(
    navigator: Navigator, stream: StreamName, options: SourceOptions
) -> tuple[StreamCut | None, StreamCut | None]:
    """Return start and end as cuts; None for the head and the present tail. Raises BadRequestError."""
    await navigator.check_exists(stream)
    for cut in (options.start, options.end):
        if isinstance(cut, StreamCut):
            await navigator.check_cut(stream, cut)
    start = None if options.start == HEAD else options.start
    end = None if options.end == TAIL else options.end
    if start == TAIL or end == HEAD:
        raise BadRequestError("a batch read from the tail, or up to the head, has no events: give start=head or a cut")
    assert not isinstance(start, str)
    assert not isinstance(end, str)
    return start, end
