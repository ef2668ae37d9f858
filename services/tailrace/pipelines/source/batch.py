"""Read streams as a table (docs/spark.md#read-a-stream-as-a-table)."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from tailrace.client import BlockingClient
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.common.errors import BadRequestError
from tailrace.common.names import parse_segment_name
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.direct.divisions import divisions
from tailrace.pipelines.direct.paced_reads import PacedReads
from tailrace.pipelines.direct.same_cluster import checked_references
from tailrace.pipelines.direct.segment_range import TierTwo
from tailrace.pipelines.source.ingest_times import RecordedCuts
from tailrace.pipelines.source.options import HEAD, TAIL, Moment
from tailrace.pipelines.source.plan import Slice, divided
from tailrace.pipelines.source.positions import Navigator
from tailrace.pipelines.source.rows import (
    DirectPart,
    Part,
    SlicePartition,
    asks_for_times,
    partitions_of,
    record_batches,
    timed,
)
from tailrace.pipelines.source.tagged import TaggedStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from tailrace.client.context import ClientContext
    from tailrace.client.model import Cut, StreamName
    from tailrace.client.reader.batch import SegmentSlice
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.pipelines.source.options import SourceOptions


class TableReader(DataSourceReader):
    """Reads what streams hold between two positions, in slices of segments."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices to read. Raises NoSuchScopeError, NoSuchStreamError, BadRequestError, DataLossError."""
        found: list[tuple[StreamName, SegmentSlice]] = []
        with BlockingClient(self._options.controller) as client:
            navigator = Navigator(client.context, self._options.fail_on_data_loss)
            streams = self._options.streams
            if self._options.tag is not None:
                streams = client.run(TaggedStreams(client.context, self._options.tag).some())
            for stream in streams:
                start, end = client.run(_bounds(navigator, stream, self._options))
                is_time = isinstance(self._options.start, Moment)  # which is the head where that is later
                slices = client.run(navigator.slices(stream, start, end, may_begin_later=is_time))
                found += ((stream, piece) for piece in slices)
            cuts = RecordedCuts(client.context)
            parts = client.run(_parts(client.context, self._options, cuts, found))
            if asks_for_times(self._options, self._schema):
                parts = client.run(timed(cuts, parts, SystemClock().now_ms()))
        return partitions_of(self._options, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition. Where there is none, Spark makes one itself."""
        if not isinstance(partition, SlicePartition):
            return iter(())
        return record_batches(self._options, self._schema, partition)


async def _parts(
    context: ClientContext,
    options: SourceOptions,
    cuts: RecordedCuts,
    found: Sequence[tuple[StreamName, SegmentSlice]],
) -> list[Part]:
    """Divide slices into parts, each with what Tier 2 has of it. Raises as `_direct_parts`."""
    wholes = [
        Slice(stream, parse_segment_name(piece.segment).identifier, piece.start, piece.end) for stream, piece in found
    ]
    async with _tier2(options.tier2 if found else None) as tier2:
        direct = await _direct_parts(context, options, tier2, [piece for _, piece in found])
        pieces = await _divided(cuts, wholes, options.max_partition_bytes)
        if tier2 is not None:
            pieces = await _divided_in_tier2(tier2, direct, pieces, options.max_partition_bytes)
    return [Part(piece, _within(direct.get(piece.stream.segment(piece.identifier)), piece)) for piece in pieces]


async def _divided(cuts: RecordedCuts, wholes: Sequence[Slice], most: int) -> list[Slice]:
    """Divide long slices at recorded cuts: there events begin, because a cut has the lengths that segments had."""
    long = {whole.stream for whole in wholes if whole.end - whole.start > most}
    recorded = {stream: await cuts.of(stream) for stream in long}
    found: list[Slice] = []
    for whole in wholes:
        begins = (cut.positions.get(whole.identifier, whole.start) for cut in recorded.get(whole.stream, ()))
        found += divided(whole, begins, most)
    return found


async def _divided_in_tier2(
    tier2: TierTwo, direct: Mapping[str, DirectPart], pieces: Sequence[Slice], most: int
) -> list[Slice]:
    """Divide what is long still where chunks of Tier 2 say that events begin. Raises UnavailableError."""
    found: list[Slice] = []
    for piece in pieces:
        part = direct.get(piece.stream.segment(piece.identifier))
        begins: list[int] = []
        if part is not None and piece.end - piece.start > most:
            begins = await divisions(tier2, part.references, piece.start, piece.end, most)
        found += divided(piece, begins, most)
    return found


def _within(direct: DirectPart | None, piece: Slice) -> DirectPart | None:
    """Return what Tier 2 has of a part of a slice; None: it does not have its beginning."""
    if direct is None or direct.references.length <= piece.start:
        return None
    return direct._replace(references=direct.references.within(piece.start, piece.end))


@asynccontextmanager
async def _tier2(location: StoreLocation | None) -> AsyncIterator[TierTwo | None]:
    """Open a Tier 2; None without one. Raises StartError, UnavailableError."""
    if location is None:
        yield None
        return
    store = PacedReads(location.open(), SystemEntropy())
    try:
        identity = await location.identity(store)
        yield TierTwo(store, uuid.UUID(identity.cluster_id), identity.containers)
    finally:
        await store.close()


async def _direct_parts(
    context: ClientContext, options: SourceOptions, tier2: TierTwo | None, pieces: Sequence[SegmentSlice]
) -> dict[str, DirectPart]:
    """Return, by segment, what Tier 2 has of the slices. The segment stores have the rest.

    Raises:
        StartError: it is not the Tier 2 of this cluster. BadRequestError: it lacks bytes, and only it is to be read.
        UnavailableError, DataError: it does not answer, or is damaged.
    """
    if options.tier2 is None or tier2 is None or not pieces:
        return {}
    place, names = f"Tier 2 {options.tier2.url}", [piece.segment for piece in pieces]
    found = await checked_references(context.segments, tier2, place, names)
    identity = ClusterIdentity(str(tier2.cluster_id), tier2.containers)
    parts = {}
    for piece in pieces:
        references = found.get(piece.segment)
        covered = references.length if references is not None and references.start_offset <= piece.start else 0
        if references is not None and covered > piece.start:
            parts[piece.segment] = DirectPart(identity, references)
        if options.direct_only and covered < piece.end:
            raise BadRequestError(
                f"{piece.segment}: Tier 2 does not have bytes {max(covered, piece.start)} to {piece.end} yet; "
                "direct=auto reads them from the segment stores"
            )
    return parts


async def _bounds(navigator: Navigator, stream: StreamName, options: SourceOptions) -> tuple[Cut | None, Cut | None]:
    """Return start and end as cuts; None for the head and the present tail. Raises BadRequestError."""
    await navigator.check_exists(stream)
    for cut in (options.start, options.end):
        if isinstance(cut, StreamCut):
            await navigator.check_cut(stream, cut)
    start = None if options.start == HEAD else options.start
    end = None if options.end == TAIL else options.end
    if start == TAIL or end == HEAD:
        raise BadRequestError("a batch read from the tail, or up to the head, has no events: give start=head or a cut")
    return await _cut(navigator.cut_before, stream, start), await _cut(navigator.cut_after, stream, end)


async def _cut(
    find: Callable[[StreamName, Moment], Awaitable[dict[int, int] | None]],
    stream: StreamName,
    where: str | StreamCut | Moment | None,
) -> Cut | None:
    """Return a cut, or the one that is found for a time."""
    assert not isinstance(where, str)
    if isinstance(where, Moment):
        return await find(stream, where)
    return None if where is None else where.positions
