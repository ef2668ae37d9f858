"""Byte streams, slices between cuts, revisioned streams, tables and management, over the tiny store."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tailrace.client.async_client import Client
from tailrace.client.byte_stream import ByteStreamReader, ByteStreamWriter
from tailrace.client.context import ClientContext
from tailrace.client.model import StreamName
from tailrace.client.reader.batch import SegmentSlice, read_slice, slices_between
from tailrace.client.revisioned import RevisionedStream
from tailrace.client.stream_manager import StreamManager
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.client.types import TableEntry
from tailrace.client.writer.event_writer import EventWriter
from tailrace.common.errors import (
    BadRequestError,
    CorruptionError,
    DeadlineError,
    SegmentSealedError,
    SegmentTruncatedError,
    StreamSealedError,
)
from tailrace.common.ranges import equal_ranges
from tailrace.common.stream_cut import StreamCut
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)


async def test_bytes_are_written_as_they_are(store: Any, controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 1.0))
    data = Random(3).randbytes(3_500_000)
    store.cut(c.AppendBlockEnd, times=2, after=True)
    async with ByteStreamWriter(context, STREAM) as writer:
        for start in range(0, len(data), 300_001):
            await writer.write(data[start : start + 300_001])
        await writer.write(b"")
        await writer.flush()
        assert await writer.length() == len(data)
        await writer.truncate(1000)
    assert store.segments[SEGMENT].data == data
    async with ByteStreamReader(context, STREAM) as reader:
        assert (await reader.head(), await reader.tail(), reader.offset) == (1000, len(data), 1000)
        assert await reader.read_exactly(2_000_000) == data[1000:2_001_000]
        reader.seek(5)
        with pytest.raises(SegmentTruncatedError):
            await reader.read(1)
        reader.seek(len(data) - 3)
        assert await reader.read(100) == data[-3:]
        with pytest.raises(DeadlineError):
            await reader.read(1, timeout_s=0.02)
        reader.seek(len(data) - 1)
        with pytest.raises(DeadlineError):
            await reader.read_exactly(2, timeout_s=0.02)
        assert reader.offset == len(data) - 1, "an incomplete read consumes nothing"
        with pytest.raises(BadRequestError):
            reader.seek(-1)


async def test_a_sealed_byte_stream_ends(store: Any, controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 1.0))
    async with ByteStreamWriter(context, STREAM) as writer:
        await writer.write(b"abc")
        await writer.seal()
        await writer.write(b"d")
        with pytest.raises(SegmentSealedError):
            await writer.flush()
        with pytest.raises(SegmentSealedError):
            await writer.write(b"e")
        writer._error = None
    async with ByteStreamReader(context, STREAM) as reader:
        assert await reader.read_exactly(10) == b"abc"
        assert await reader.read(10) == b""


async def test_byte_streams_have_one_segment(controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    with pytest.raises(BadRequestError, match="2 segments"):
        await ByteStreamReader(context, STREAM).start()


async def test_slices_from_a_cut_of_another_stream_are_refused() -> None:
    async with Client("tcp://127.0.0.1:1") as client:
        for cuts in ({"start": StreamCut("scope", "other", {0: 5})}, {"end": StreamCut("scope", "other", {0: 5})}):
            with pytest.raises(BadRequestError, match="scope/other"):
                await client.slices("scope/stream", **cuts)


async def test_slices_between_cuts(store: Any, controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    store.segments[SEGMENT].data += pack_events([b"a", b"b", b"c", b"d"])
    start, end = {0: 9, 1: 0}, {0: 27, 1: 0}
    assert await slices_between(context, STREAM, start, end) == [SegmentSlice(SEGMENT, 9, 27)]
    (piece,) = await slices_between(context, STREAM)
    assert piece == SegmentSlice(SEGMENT, 0, 36)
    assert [events async for events in read_slice(context, SegmentSlice(SEGMENT, 9, 27))] == [[b"b", b"c"]]


@pytest.mark.parametrize("after", [False, True])
async def test_revisions(store: Any, context: ClientContext, after: bool) -> None:
    store.create(SEGMENT)
    stream = RevisionedStream(context, SEGMENT)
    store.cut(c.ConditionalAppend, after=after)
    assert await stream.write_conditionally(0, b"one") == 11
    assert await stream.write_conditionally(0, b"other") is None
    store.cut(c.AppendBlockEnd, after=after)
    await stream.write_unconditionally(b"two")
    other = RevisionedStream(context, SEGMENT)
    assert await other.write_conditionally(22, b"three") == 35
    assert await stream.read_from(0) == [(b"one", 11), (b"two", 22), (b"three", 35)]
    assert await stream.read_from(22) == [(b"three", 35)]
    assert await stream.read_from(35) == []
    assert (await stream.oldest(), await stream.latest(), await stream.mark()) == (0, 35, None)
    assert await stream.compare_and_set_mark(None, 11)
    assert not await other.compare_and_set_mark(None, 22)
    await stream.truncate(11)
    with pytest.raises(SegmentTruncatedError):
        await stream.read_from(0)
    store.segments[SEGMENT].data += b"garbage!"
    with pytest.raises(CorruptionError, match=SEGMENT):
        await stream.read_from(11)


async def test_a_record_written_while_reading_is_left_for_later(store: Any, context: ClientContext) -> None:
    """Servers answer with 8 bytes at least, so a read up to the known end may bring the beginning of a later record."""
    segment = store.create(SEGMENT, pack_events([b"x" * 4]))

    def grow(command: c.Command) -> None:
        if isinstance(command, c.GetStreamSegmentInfo) and len(segment.data) == 12:
            store.answer(
                c.ReadSegment, lambda i: c.SegmentRead(SEGMENT, 0, False, False, pack_events([b"xxxx", b"y"])[:15], i)
            )

    store.after.append(grow)
    assert await RevisionedStream(context, SEGMENT).read_from(0) == [(b"xxxx", 12)]


async def test_tables_find_segments_and_check_keys(store: Any, controller: Any, context: ClientContext) -> None:
    config = pb.KeyValueTableConfig(partitionCount=2, primaryKeyLength=2, secondaryKeyLength=1)
    controller.answers["getKeyValueTableConfiguration"] = lambda _: pb.KeyValueTableConfigResponse(config=config)
    ranges = [
        pb.SegmentRange(segmentId=pb.SegmentId(segmentId=i), minKey=low, maxKey=high)
        for i, (low, high) in enumerate(equal_ranges(2))
    ]
    controller.answers["getCurrentSegmentsKeyValueTable"] = lambda _: pb.SegmentRanges(segmentRanges=ranges)
    table = await KeyValueTable(context, "s", "k").start()
    store.answer(c.UpdateTableEntries, lambda i: c.TableEntriesUpdated(i, [5]))
    assert await table.insert(TableKeyParts(b"aa", b"1"), b"v") == 5
    sent = store.seen[-1]
    assert sent.segment.startswith("s/k_kvtable/")
    assert sent.entries == [TableEntry(b"aa1", b"v", -1)]
    store.answer(c.ReadTable, lambda i: c.TableRead(i, sent.segment, [TableEntry(b"aa1", b"v", 5)]))
    found = await table.get(TableKeyParts(b"aa", b"1"))
    assert found == (TableKeyParts(b"aa", b"1"), b"v", 5)
    store.answer(c.RemoveTableKeys, lambda i: c.TableKeysRemoved(i, sent.segment))
    await table.remove(TableKeyParts(b"aa", b"1"))
    pages = [[TableEntry(b"aa1", b"v", 5), TableEntry(b"aa\xfe", b"w", 6)], []]
    store.answer(c.ReadTableEntries, lambda i: c.TableEntriesRead(i, sent.segment, pages.pop(0), b""), times=2)
    assert [entry.value async for entry in table.entries(b"aa")] == [b"v", b"w"]
    requests = [command for command in store.seen if isinstance(command, c.ReadTableEntries)]
    assert [(r.from_key, r.to_key) for r in requests] == [(b"aa\0", b"aa\xff"), (b"aa\xff", b"aa\xff")]
    with pytest.raises(BadRequestError, match="primary"):
        await table.get(TableKeyParts(b"a", b"1"))
    with pytest.raises(BadRequestError, match="one primary key"):
        await table.put_all([(TableKeyParts(b"aa", b"1"), b"", None), (TableKeyParts(b"bb", b"1"), b"", None)])


async def test_heads_and_tails(store: Any, controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 1.0))
    async with EventWriter(context, STREAM) as writer:
        await writer.write_event(b"x", "key")
        await writer.note_time(77)
    info = await StreamManager(context).info(STREAM)
    assert info.head == StreamCut("s", "t", {0: 0, 1: 0})
    assert info.tail == StreamCut("s", "t", {0: 0, 1: 9})
    noted = next(request for method, request in controller.calls if method == "noteTimestampFromWriter")
    assert (noted.timestamp, dict(noted.position.cut)) == (77, {1: 9})
    controller.active = controller.active[:1]
    with pytest.raises(BadRequestError, match="belongs to"):
        await StreamManager(context).truncate_stream(STREAM, StreamCut("s", "other", {}))


async def test_scales_seal_what_has_to_change(controller: Any, context: ClientContext) -> None:
    controller.begin((0, 0.0, 0.5), (1, 0.5, 0.75), (2, 0.75, 1.0))
    controller.answers["scale"] = lambda _: pb.ScaleResponse(epoch=3)
    controller.answers["checkScale"] = lambda _: pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.SUCCESS)
    manager = StreamManager(context)
    await manager.scale_to(STREAM, 2)
    await manager.split_segment(STREAM, 0, 2)
    await manager.merge_segments(STREAM, [2, 1])
    await manager.scale_to(STREAM, 1)
    scales = [request for method, request in controller.calls if method == "scale"]
    assert [(list(s.sealedSegments), [(r.start, r.end) for r in s.newKeyRanges]) for s in scales] == [
        ([1, 2], [(0.5, 1.0)]),
        ([0], [(0.0, 0.25), (0.25, 0.5)]),
        ([2, 1], [(0.5, 1.0)]),
        ([0, 1, 2], [(0.0, 1.0)]),
    ]
    with pytest.raises(BadRequestError, match="neighbours"):
        await manager.merge_segments(STREAM, [0, 2])
    with pytest.raises(BadRequestError, match="not active"):
        await manager.split_segment(STREAM, 9, 2)
    controller.active = []
    for scale in (manager.scale_to(STREAM, 2), manager.split_segment(STREAM, 0, 2)):
        with pytest.raises(StreamSealedError):
            await scale
