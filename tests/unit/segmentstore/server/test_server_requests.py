"""Every request over a real socket: success, refusals, echoes.

See docs/protocol/wire.md#commands, docs/protocol/wire.md#replies, docs/protocol/wire.md#reads.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import PermissionDeniedError
from tailrace.segmentstore.api import MeasuredSegment, core_attribute
from tailrace.wire import codec
from tailrace.wire import commands as c

MIN = -(2**63)
W = bytes(range(16))
SEGMENT = "scope/stream/0.#epoch.0"
SOURCE = "scope/stream/0.#epoch.0#transaction.000000000000000000000000000000aa"
SOURCE2 = "scope/stream/0.#epoch.0#transaction.000000000000000000000000000000bb"
TABLE = "scope/table_kvtable/0.#epoch.0"


# -- handshake and liveness -------------------------------------------------------------------------------------------


async def test_hello_does_not_wait_and_announces_16(setting: Any) -> None:
    client = await setting.connect(hello=False)
    client.send(c.Hello(17, 5), c.CreateSegment(4, SEGMENT, 0, 0, ""))
    assert await client.receive() == c.Hello(16, 5)
    assert await client.receive() == c.SegmentCreated(4, SEGMENT)


@pytest.mark.parametrize(("high", "low"), [(20, 17), (4, 1)])
async def test_versions_that_do_not_overlap_are_answered_and_closed(setting: Any, high: int, low: int) -> None:
    client = await setting.connect(hello=False)
    assert await client.call(c.Hello(high, low)) == c.Hello(16, 5)
    await client.expect_end()


async def test_keep_alive_is_echoed_and_padding_ignored(client: Any) -> None:
    client.send(c.Padding(0), c.KeepAlive(), c.Padding(100), c.KeepAlive())
    assert [await client.receive(), await client.receive()] == [c.KeepAlive(), c.KeepAlive()]


# -- reads ------------------------------------------------------------------------------------------------------------


async def test_read_echoes_the_offset_and_is_bounded(client: Any) -> None:
    await client.fill(SEGMENT, b"0123456789" * 10)
    reply = await client.call(c.ReadSegment(SEGMENT, 95, 100, "", 7))
    assert (reply.segment, reply.offset, bytes(reply.data), reply.request_id) == (SEGMENT, 95, b"56789", 7)
    assert not reply.end_of_segment
    short = await client.call(c.ReadSegment(SEGMENT, 3, 1, "", 8))
    assert bytes(short.data) == b"34567890"
    assert not short.at_tail


async def test_a_read_is_at_most_two_mebibytes(client: Any) -> None:
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    for number in range(1, 4):
        await client.call(c.AppendBlockEnd(W, 0, bytes([number]) * limits.MIB, 1, number, 1))
    data = b""
    while len(data) < 3 * limits.MIB:
        reply = await client.call(c.ReadSegment(SEGMENT, len(data), 2**31 - 1, "", 7))
        assert 0 < len(reply.data) <= limits.READ_REPLY_MAX_BYTES
        data += bytes(reply.data)
    assert data == b"".join(bytes([number]) * limits.MIB for number in range(1, 4))


async def test_a_read_at_the_tail_waits_for_data(setting: Any) -> None:
    reader, writer = await setting.connect(), await setting.connect()
    await writer.fill(SEGMENT, b"abc")
    reader.send(c.ReadSegment(SEGMENT, 3, 100, "", 7))
    await reader.expect_silence()
    await writer.call(c.AppendBlockEnd(W, 0, b"def", 1, 2, 1))
    reply = await reader.expect(c.SegmentRead)
    assert (reply.offset, bytes(reply.data), reply.end_of_segment) == (3, b"def", False)


async def test_a_read_at_the_tail_ends_with_the_segment(setting: Any) -> None:
    reader, writer = await setting.connect(), await setting.connect()
    await writer.fill(SEGMENT, b"abc")
    reader.send(c.ReadSegment(SEGMENT, 3, 100, "", 7))
    await reader.expect_silence()
    assert await writer.call(c.SealSegment(1, SEGMENT, "")) == c.SegmentSealed(1, SEGMENT)
    assert await reader.receive() == c.SegmentRead(SEGMENT, 3, True, True, b"", 7)
    reply = await reader.call(c.ReadSegment(SEGMENT, 0, 100, "", 8))
    assert (bytes(reply.data), reply.end_of_segment) == (b"abc", True)


async def test_a_waiting_read_learns_of_the_deletion(setting: Any) -> None:
    reader, writer = await setting.connect(), await setting.connect()
    await writer.fill(SEGMENT, b"abc")
    reader.send(c.ReadSegment(SEGMENT, 3, 100, "", 7))
    await reader.expect_silence()
    await writer.call(c.DeleteSegment(1, SEGMENT, ""))
    assert await reader.receive() == c.NoSuchSegment(7, SEGMENT, "", 3)


async def test_reads_that_are_refused(client: Any) -> None:
    assert await client.call(c.ReadSegment(SEGMENT, 5, 100, "", 7)) == c.NoSuchSegment(7, SEGMENT, "", 5)
    await client.fill(SEGMENT, b"abcdef")
    assert await client.call(c.TruncateSegment(1, SEGMENT, 4, "")) == c.SegmentTruncated(1, SEGMENT)
    assert await client.call(c.ReadSegment(SEGMENT, 2, 9, "", 8)) == c.SegmentIsTruncated(8, SEGMENT, 4, "", 2)
    assert (await client.call(c.ReadSegment(SEGMENT, -1, 9, "", 9))).request_id == 9
    await client.call(c.SealSegment(2, SEGMENT, ""))
    beyond = await client.call(c.ReadSegment(SEGMENT, 7, 9, "", 10))
    assert isinstance(beyond, c.ErrorMessage)
    assert (beyond.request_id, beyond.segment, beyond.error_code) == (10, SEGMENT, 0)


async def test_waiting_reads_end_with_their_connection(model: Any) -> None:
    client = await model.connect()
    await client.fill(SEGMENT, b"abc")
    client.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(50)))
    await client.expect_silence()
    client.close()
    await model.until(lambda: model.server.connections == 0)
    await model.until(lambda: all(waiter.done() for waiter in model.model.segments[SEGMENT].waiting))


async def test_a_reader_that_takes_nothing_is_not_answered_without_bound(model: Any) -> None:
    client = await model.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    for number in range(1, 9):
        await client.call(c.AppendBlockEnd(W, 0, bytes(limits.MIB), 1, number, 1))
    reads_before = model.model.reads
    count = 100
    client.writer.transport.pause_reading()
    client.send(*(c.ReadSegment(SEGMENT, 0, 2 * limits.MIB, "", number) for number in range(count)))
    for _ in range(200):
        await model.turn()
    # What fits the sockets' buffers, the high-water mark, and the replies that it let through.
    assert model.model.reads - reads_before < 20
    client.writer.transport.resume_reading()
    answered = set()
    for _ in range(count):
        reply = await client.expect(c.SegmentRead)
        assert len(reply.data) == 2 * limits.MIB
        answered.add(reply.request_id)
    assert answered == set(range(count))


async def test_tail_reads_that_end_together_are_not_answered_without_bound(model: Any) -> None:
    client, writer = await model.connect(), await model.connect()
    await writer.fill(SEGMENT, b"abc")
    count = 60
    client.send(*(c.ReadSegment(SEGMENT, 3, 2 * limits.MIB, "", number) for number in range(count)))
    await client.expect_silence()
    client.writer.transport.pause_reading()
    model.accounted.clear()
    await writer.call(c.AppendBlockEnd(W, 0, bytes(2 * limits.MIB), 1, 2, 1))
    for _ in range(200):
        await model.turn()
    answered = [length for _, length, operations in model.accounted if operations == 0]
    assert 0 < len(answered) < 20
    client.writer.transport.resume_reading()
    replies = {(await client.expect(c.SegmentRead)).request_id for _ in range(count)}
    assert replies == set(range(count))


# -- info and attributes ----------------------------------------------------------------------------------------------


async def test_info(client: Any) -> None:
    assert await client.call(c.GetStreamSegmentInfo(3, SEGMENT, "")) == c.NoSuchSegment(3, SEGMENT, "", -1)
    await client.fill(SEGMENT, b"abcdef")
    await client.call(c.TruncateSegment(1, SEGMENT, 2, ""))
    await client.call(c.SealSegment(1, SEGMENT, ""))
    info = await client.call(c.GetStreamSegmentInfo(4, SEGMENT, ""))
    assert info == c.StreamSegmentInfo(4, SEGMENT, True, True, False, info.last_modified, 6, 2)


async def test_attributes_are_compared_and_set(client: Any) -> None:
    attribute = bytes(range(50, 66))
    assert await client.call(c.GetSegmentAttribute(1, SEGMENT, attribute, "")) == c.NoSuchSegment(1, SEGMENT, "", -1)
    await client.create(SEGMENT)
    assert await client.call(c.GetSegmentAttribute(2, SEGMENT, attribute, "")) == c.SegmentAttribute(2, MIN)

    async def update(new: int, expected: int) -> bool:
        reply = await client.call(c.UpdateSegmentAttribute(3, SEGMENT, attribute, new, expected, ""))
        assert isinstance(reply, c.SegmentAttributeUpdated)
        return reply.success

    assert not await update(5, 4)
    assert await update(5, MIN)
    assert not await update(6, MIN)
    assert await update(6, 5)
    assert await client.call(c.GetSegmentAttribute(4, SEGMENT, attribute, "")) == c.SegmentAttribute(4, 6)
    assert await update(MIN, 6)
    assert await client.call(c.GetSegmentAttribute(5, SEGMENT, attribute, "")) == c.SegmentAttribute(5, MIN)
    await client.call(c.SealSegment(1, SEGMENT, ""))
    sealed = await client.call(c.UpdateSegmentAttribute(6, SEGMENT, attribute, 1, MIN, ""))
    assert sealed == c.SegmentIsSealed(6, SEGMENT, "", -1)


# -- life cycle -------------------------------------------------------------------------------------------------------


async def test_create_and_policy(client: Any) -> None:
    assert await client.call(c.CreateSegment(1, SEGMENT, 100, 2, "", 1 << 20)) == c.SegmentCreated(1, SEGMENT)
    assert await client.call(c.CreateSegment(2, SEGMENT, 0, 0, "")) == c.SegmentAlreadyExists(2, SEGMENT, "")
    values = {}
    for number in (2, 3, 4):
        attribute = b"\x80" + bytes(14) + bytes([number])
        values[number] = (await client.call(c.GetSegmentAttribute(1, SEGMENT, attribute, ""))).value
    assert values == {2: 2, 3: 100, 4: 1 << 20}
    assert await client.call(c.UpdateSegmentPolicy(3, SEGMENT, 7, 1, "")) == c.SegmentPolicyUpdated(3, SEGMENT)
    rate = b"\x80" + bytes(14) + b"\3"
    assert await client.call(c.GetSegmentAttribute(4, SEGMENT, rate, "")) == c.SegmentAttribute(4, 7)
    bad = await client.call(c.UpdateSegmentPolicy(5, SEGMENT, 7, 3, ""))
    assert isinstance(bad, c.ErrorMessage)
    assert "scaleType" in bad.message


async def test_seal_truncate_delete(client: Any) -> None:
    for request in (
        c.SealSegment(1, SEGMENT, ""),
        c.TruncateSegment(1, SEGMENT, 0, ""),
        c.DeleteSegment(1, SEGMENT, ""),
    ):
        assert await client.call(request) == c.NoSuchSegment(1, SEGMENT, "", -1)
    await client.fill(SEGMENT, b"abcdef")
    assert await client.call(c.TruncateSegment(2, SEGMENT, 3, "")) == c.SegmentTruncated(2, SEGMENT)
    assert await client.call(c.TruncateSegment(3, SEGMENT, 2, "")) == c.SegmentIsTruncated(3, SEGMENT, 3, "", -1)
    assert await client.call(c.TruncateSegment(4, SEGMENT, 7, "")) == c.SegmentIsTruncated(4, SEGMENT, 3, "", -1)
    assert await client.call(c.SealSegment(5, SEGMENT, "")) == c.SegmentSealed(5, SEGMENT)
    assert await client.call(c.SealSegment(6, SEGMENT, "")) == c.SegmentIsSealed(6, SEGMENT, "", -1)
    assert await client.call(c.TruncateSegment(7, SEGMENT, 6, "")) == c.SegmentTruncated(7, SEGMENT)
    assert await client.call(c.DeleteSegment(8, SEGMENT, "")) == c.SegmentDeleted(8, SEGMENT)


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a b", "a" * 1025, "a/é/0"])
async def test_bad_segment_names_are_refused(client: Any, name: str) -> None:
    reply = await client.call(c.CreateSegment(9, name, 0, 0, ""))
    assert isinstance(reply, c.ErrorMessage)
    assert (reply.request_id, reply.error_code) == (9, 0)


async def test_merge(client: Any) -> None:
    await client.fill(SEGMENT, b"target")
    await client.fill(SOURCE, b"source")
    sealed = c.NoSuchSegment(2, SOURCE2, "", -1)
    assert await client.call(c.MergeSegments(2, SEGMENT, SOURCE2, "")) == sealed
    attribute = bytes(range(50, 66))
    wrong = [c.AttributeCondition(attribute, 4, 1, 77)]
    right = [c.AttributeCondition(attribute, 4, 1, MIN)]
    refused = await client.call(c.MergeSegments(3, SEGMENT, SOURCE, "", wrong))
    assert refused == c.SegmentAttributeUpdated(3, False)
    merged = await client.call(c.MergeSegments(4, SEGMENT, SOURCE, "", right))
    assert merged == c.SegmentsMerged(4, SEGMENT, SOURCE, 12)
    assert await client.call(c.GetSegmentAttribute(5, SEGMENT, attribute, "")) == c.SegmentAttribute(5, 1)
    count = b"\x80" + bytes(14) + b"\1"
    assert await client.call(c.GetSegmentAttribute(6, SEGMENT, count, "")) == c.SegmentAttribute(6, 2)
    again = await client.call(c.MergeSegments(7, SEGMENT, SOURCE, "", []))
    assert again == c.SegmentsMerged(7, SEGMENT, SOURCE, 12)
    assert await client.read_all(SEGMENT) == b"targetsource"


async def test_merge_into_a_sealed_or_missing_segment(client: Any) -> None:
    await client.fill(SOURCE, b"source")
    assert await client.call(c.MergeSegments(1, SEGMENT, SOURCE, "")) == c.NoSuchSegment(1, SEGMENT, "", -1)
    await client.create(SEGMENT)
    await client.call(c.SealSegment(2, SEGMENT, ""))
    assert await client.call(c.MergeSegments(3, SEGMENT, SOURCE, "")) == c.SegmentIsSealed(3, SEGMENT, "", -1)


async def test_merge_batch_counts_missing_sources_as_merged(client: Any) -> None:
    await client.fill(SEGMENT, b"abc")
    await client.fill(SOURCE, b"de")
    await client.fill(SOURCE2, b"f")
    gone = SOURCE[:-2] + "cc"
    batch = c.MergeSegmentsBatch(5, SEGMENT, [SOURCE, gone, SOURCE2], "")
    merged = [c.MergedSource(SOURCE, 5), c.MergedSource(gone, 5), c.MergedSource(SOURCE2, 6)]
    assert await client.call(batch) == c.SegmentsBatchMerged(5, SEGMENT, merged)
    assert await client.read_all(SEGMENT) == b"abcdef"
    missing = SEGMENT.replace("stream", "nostream")
    source = SOURCE.replace("stream", "nostream")
    refused = await client.call(c.MergeSegmentsBatch(6, missing, [source], ""))
    assert refused == c.NoSuchSegment(6, missing, "", -1)


async def test_transient_segments_go_with_their_connection(setting: Any) -> None:
    first, second = await setting.connect(), await setting.connect()
    await first.create(SEGMENT)
    transients = []
    for number in range(3):
        reply = await first.call(c.CreateTransientSegment(number, W, SEGMENT, ""))
        transients.append(reply.segment)
    assert len(set(transients)) == 3
    await first.call(c.MergeSegments(5, SEGMENT, transients[0], ""))
    first.close()
    names = setting.registry.container_for(SEGMENT).segment_names
    await setting.until(lambda: names() == [SEGMENT])
    assert await second.call(c.GetStreamSegmentInfo(3, transients[1], "")) == c.NoSuchSegment(3, transients[1], "", -1)


async def test_administration(client: Any) -> None:
    await client.fill(SEGMENT, b"abcdef")
    assert await client.call(c.FlushToStorage(0, "", 5)) == c.StorageFlushed(5)
    listed = await client.call(c.ListStorageChunks(SEGMENT, "", 6))
    assert isinstance(listed, c.StorageChunksListed)
    assert listed.request_id == 6
    assert isinstance(await client.call(c.FlushToStorage(9, "", 7)), c.WrongHost)


async def test_rates(model: Any) -> None:
    client = await model.connect()
    model.model.measured = [
        MeasuredSegment(7, SEGMENT, 2, 100, 61.5, [1.5, 0.0004]),
        MeasuredSegment(9, SOURCE, 1, 8, 0.0, [0.0, 0.0]),
    ]
    first = c.MeasuredRate(SEGMENT, 7, 2, 100, 61_500, [1500, 0])
    second = c.MeasuredRate(SOURCE, 9, 1, 8, 0, [0, 0])
    assert await client.call(c.GetSegmentRates(0, "", 5, -1, [10, 20])) == c.SegmentRates(5, False, [first, second])
    assert await client.call(c.GetSegmentRates(0, "", 6, 7, [10, 20])) == c.SegmentRates(6, False, [second])
    assert isinstance(await client.call(c.GetSegmentRates(0, "", 7, -1, [])), c.ErrorMessage)
    assert isinstance(await client.call(c.GetSegmentRates(9, "", 8, -1, [10])), c.WrongHost)


async def test_list_of_segments(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await model.connect()
    assert await client.call(c.ListSegments(0, "", 4, -1)) == c.SegmentsListed(4, False, -1, [])
    for rid, name in enumerate((SEGMENT, SOURCE)):
        assert await client.call(c.CreateSegment(rid, name, 0, 0, "", 0)) == c.SegmentCreated(rid, name)
    assert await client.call(c.CreateTableSegment(1, TABLE, "")) == c.SegmentCreated(1, TABLE)
    monkeypatch.setattr(limits, "SEGMENTS_PER_REPLY_MAX", 2)
    first = await client.call(c.ListSegments(0, "", 5, -1))
    assert (first.has_more, first.segments) == (True, [SEGMENT, SOURCE])
    rest = await client.call(c.ListSegments(0, "", 6, first.last))
    assert (rest.has_more, rest.segments) == (False, [TABLE])
    assert isinstance(await client.call(c.ListSegments(9, "", 8, -1)), c.WrongHost)


async def test_what_streams_hold_in_pages(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await model.connect()
    names = [f"scope/{stream}/{number}.#epoch.0" for stream in "bac" for number in range(2)]
    for rid, name in enumerate(names):
        assert await client.call(c.CreateSegment(rid, name, 0, 0, "", 0)) == c.SegmentCreated(rid, name)
    model.registry.container.segments[names[0]].data += b"12345"
    model.registry.container.segments[names[1]].data += b"123"
    monkeypatch.setattr(limits, "STREAM_BYTES_PER_REPLY_MAX", 2)
    first = await client.call(c.GetStreamBytes(0, "", 5, ""))
    assert first == c.StreamBytesListed(5, True, ["scope/a", "scope/b"], [0, 8])
    assert await client.call(c.GetStreamBytes(0, "", 6, "scope/b")) == c.StreamBytesListed(6, False, ["scope/c"], [0])
    assert await client.call(c.GetStreamBytes(0, "", 7, "scope/c")) == c.StreamBytesListed(7, False, [], [])
    assert isinstance(await client.call(c.GetStreamBytes(9, "", 8, "")), c.WrongHost)


# -- tables -----------------------------------------------------------------------------------------------------------


async def test_hash_table(client: Any) -> None:
    assert await client.call(c.CreateTableSegment(1, TABLE, "")) == c.SegmentCreated(1, TABLE)
    assert await client.call(c.CreateTableSegment(2, TABLE, "")) == c.SegmentAlreadyExists(2, TABLE, "")
    entries = [c.TableEntry(b"a", b"1"), c.TableEntry(b"b", b"2", c.NOT_EXISTS)]
    updated = await client.call(c.UpdateTableEntries(3, TABLE, "", entries))
    assert isinstance(updated, c.TableEntriesUpdated)
    first, second = updated.versions
    assert first < second
    keys = [c.TableKey(b"b"), c.TableKey(b"x"), c.TableKey(b"a")]
    read = await client.call(c.ReadTable(4, TABLE, "", keys))
    expected = [c.TableEntry(b"b", b"2", second), c.TableEntry(b"x", b"", -1), c.TableEntry(b"a", b"1", first)]
    assert read == c.TableRead(4, TABLE, expected)
    bad = await client.call(c.UpdateTableEntries(5, TABLE, "", [c.TableEntry(b"a", b"9", second + 1)]))
    assert bad == c.TableKeyBadVersion(5, TABLE, "")
    absent = await client.call(c.RemoveTableKeys(6, TABLE, "", [c.TableKey(b"zz", 5)]))
    assert absent == c.TableKeyDoesNotExist(6, TABLE, "")
    info = await client.call(c.GetTableSegmentInfo(7, TABLE, ""))
    assert (info.entry_count, info.key_length, info.segment) == (2, 0, TABLE)
    misplaced = await client.call(c.UpdateTableEntries(8, TABLE, "", [c.TableEntry(b"a", b"9")], info.length + 1))
    assert misplaced == c.SegmentIsTruncated(8, TABLE, info.length, "", -1)
    assert await client.call(c.DeleteTableSegment(9, TABLE, True, "")) == c.TableSegmentNotEmpty(9, TABLE, "")
    removed = await client.call(c.RemoveTableKeys(10, TABLE, "", [c.TableKey(b"a", first), c.TableKey(b"b")]))
    assert removed == c.TableKeysRemoved(10, TABLE)
    assert await client.call(c.DeleteTableSegment(11, TABLE, True, "")) == c.SegmentDeleted(11, TABLE)
    assert await client.call(c.ReadTable(12, TABLE, "", keys)) == c.NoSuchSegment(12, TABLE, "", -1)


async def test_table_iterators_and_delta(client: Any) -> None:
    await client.call(c.CreateTableSegment(1, TABLE, ""))
    entries = [c.TableEntry(b"key%d" % number, b"v%d" % number) for number in range(30)]
    versions = (await client.call(c.UpdateTableEntries(2, TABLE, "", entries))).versions
    found, token = {}, b""
    while True:
        page = await client.call(c.ReadTableEntries(3, TABLE, "", 7, token))
        assert isinstance(page, c.TableEntriesRead)
        if not page.entries:
            break
        found.update({entry.key: (entry.value, entry.version) for entry in page.entries})
        token = page.continuation_token
    assert found == {entry.key: (entry.value, version) for entry, version in zip(entries, versions, strict=True)}
    keys, token = set(), b""
    while (page := await client.call(c.ReadTableKeys(4, TABLE, "", 7, token))).keys:
        keys |= {key.key for key in page.keys}
        token = page.continuation_token
    assert keys == set(found)
    delta = await client.call(c.ReadTableEntriesDelta(5, TABLE, "", 0, 1000))
    assert isinstance(delta, c.TableEntriesDeltaRead)
    assert {entry.key for entry in delta.entries} == keys
    assert (delta.should_clear, delta.reached_end) == (False, True)
    beyond = await client.call(c.ReadTableEntriesDelta(6, TABLE, "", delta.last_position + 1, 10))
    assert isinstance(beyond, c.ErrorMessage)


async def test_fixed_key_table(client: Any) -> None:
    await client.call(c.CreateTableSegment(1, TABLE, "", True, 2))
    entries = [c.TableEntry(b"%02d" % number, b"v") for number in range(20)]
    assert isinstance(await client.call(c.UpdateTableEntries(2, TABLE, "", entries)), c.TableEntriesUpdated)
    page = await client.call(c.ReadTableKeys(3, TABLE, "", 100, b"", b"", b"05", b"08"))
    assert [key.key for key in page.keys] == [b"05", b"06", b"07", b"08"]
    unsupported = await client.call(c.ReadTableEntriesDelta(4, TABLE, "", 0, 10))
    assert unsupported == c.OperationUnsupported(4, "ReadTableEntriesDelta", "")
    wrong = await client.call(c.UpdateTableEntries(5, TABLE, "", [c.TableEntry(b"123", b"")]))
    assert isinstance(wrong, c.ErrorMessage)


@pytest.mark.parametrize(
    "entry", [c.TableEntry(b"", b"v"), c.TableEntry(bytes(8193), b""), c.TableEntry(b"k", bytes(limits.MIB - 8191))]
)
async def test_keys_and_values_beyond_the_limits(client: Any, entry: c.TableEntry) -> None:
    await client.call(c.CreateTableSegment(1, TABLE, ""))
    assert isinstance(await client.call(c.UpdateTableEntries(2, TABLE, "", [entry])), c.ErrorMessage)


# -- seams and bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_length", [0, 8])
async def test_only_table_commands_change_a_table(setting: Any, key_length: int) -> None:
    """Its bytes and attributes are its entries and their index: nothing else may write there."""
    client = await setting.connect()
    await client.call(c.CreateTableSegment(1, TABLE, "", False, key_length, 0))
    entry = c.TableEntry(b"key-0001", b"value")
    (version,) = (await client.call(c.UpdateTableEntries(2, TABLE, "", [entry]))).versions
    await client.create(SEGMENT)
    await client.create(SOURCE)
    unsupported = [
        c.SetupAppend(3, W, TABLE, ""),
        c.TruncateSegment(3, TABLE, 10, ""),
        c.UpdateSegmentAttribute(3, TABLE, W, 1, MIN, ""),
        c.MergeSegments(3, TABLE, SOURCE, ""),
        c.MergeSegments(3, SEGMENT, TABLE, ""),
        c.MergeSegmentsBatch(3, TABLE, [SOURCE], ""),
        c.MergeSegmentsBatch(3, SEGMENT, [TABLE], ""),
    ]
    for command in unsupported:
        reply = await client.call(command)
        # In containers of their own, source and target are refused for that.
        assert reply == c.OperationUnsupported(3, type(command).__name__, "") or (
            isinstance(reply, c.ErrorMessage) and "different containers" in reply.message
        ), command
    found = await client.call(c.ReadTable(4, TABLE, "", [c.TableKey(b"key-0001")]))
    assert found.entries == [c.TableEntry(b"key-0001", b"value", version)]
    client.send(c.AppendBlockEnd(W, 0, b"garbage", 1, 1, 1))
    await client.expect_end()


async def test_the_servers_own_attributes_are_not_for_clients(client: Any) -> None:
    """Counters, the scale policy, and what is pinned in memory while the segment exists."""
    await client.fill(SEGMENT, b"abc")
    await client.create(SOURCE)
    own = [core_attribute(number) for number in (0, 1, 2, 9, 12, 1048577, 777_777, 2**64 - 1)]
    for attribute in own:
        commands = [
            c.SetupAppend(5, attribute, SEGMENT, ""),
            c.UpdateSegmentAttribute(5, SEGMENT, attribute, 7, MIN, ""),
            c.MergeSegments(5, SEGMENT, SOURCE, "", [c.AttributeCondition(attribute, 1, 2, 3)]),
        ]
        for command in commands:
            reply = await client.call(command)
            assert isinstance(reply, c.ErrorMessage), command
            assert reply.request_id == 5
    count = await client.call(c.GetSegmentAttribute(6, SEGMENT, core_attribute(1), ""))
    assert count == c.SegmentAttribute(6, 1)


async def test_every_request_is_authorized_and_accounted(setting: Any) -> None:
    client = await setting.connect()
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    await client.call(c.AppendBlockEnd(W, 0, b"abc", 1, 1, 1))
    await client.call(c.ReadSegment(SEGMENT, 0, 10, "tok", 1))
    assert setting.authorized == [("", SEGMENT, 1), ("", SEGMENT, 2), ("tok", SEGMENT, 1)]
    assert setting.accounted == [("scope", 0, 1)] * 2 + [("scope", 3, 1), ("scope", 0, 1), ("scope", 3, 0)]
    setting.refuse = PermissionDeniedError("not yours")
    assert await client.call(c.ReadSegment(SEGMENT, 0, 10, "tok", 8)) == c.AuthTokenCheckFailed(8, "", 0)
    assert await client.call(c.SetupAppend(9, W, SEGMENT, "")) == c.AuthTokenCheckFailed(9, "", 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", id="http"),
        pytest.param(codec.FRAME_HEADER.pack(12345, 0), id="unknown type"),
        pytest.param(codec.FRAME_HEADER.pack(41, 8) + bytes(8), id="LocateOffset"),
        pytest.param(codec.FRAME_HEADER.pack(1, -1), id="negative length"),
        pytest.param(codec.FRAME_HEADER.pack(1, 0x01000000), id="oversized length"),
        pytest.param(codec.FRAME_HEADER.pack(1, 4) + bytes(4), id="short payload"),
        pytest.param(codec.encode(c.PartialEvent(b"abc")), id="partial event outside a block"),
        pytest.param(codec.encode(c.SegmentCreated(1, SEGMENT)), id="a reply"),
        pytest.param(codec.FRAME_HEADER.pack(0, 4) + b"abcd", id="an event"),
    ],
)
async def test_garbage_closes_this_connection_only(
    setting: Any, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = await setting.connect(), await setting.connect()
    await good.fill(SEGMENT, b"abc")
    capsys.readouterr()
    bad.send_raw(data)
    await bad.expect_end()
    lines = [line for line in capsys.readouterr().out.splitlines() if "connection closed" in line]
    assert len(lines) == 1
    assert "reason=" in lines[0]
    assert await good.read_all(SEGMENT) == b"abc"


async def test_a_truncated_frame_is_forgotten(setting: Any) -> None:
    bad, good = await setting.connect(), await setting.connect()
    await good.fill(SEGMENT, b"abc")
    await bad.setup(bytes(16), SEGMENT)
    bad.send_raw(codec.encode(c.AppendBlockEnd(bytes(16), 0, b"lost", 1, 1, 1))[:-3])
    bad.close()
    await setting.until(lambda: setting.server.connections == 1)
    assert await good.read_all(SEGMENT) == b"abc"


async def test_random_bytes_never_harm_others(model: Any, test_seed: int) -> None:
    generator = random.Random(test_seed)
    good = await model.connect()
    await good.fill(SEGMENT, b"abc")
    samples = [
        codec.encode(command)
        for command in (
            c.SetupAppend(1, W, SEGMENT, ""),
            c.AppendBlock(W, b"abcdef" + codec.encode(c.PartialEvent(b"xyz"))),
            c.AppendBlockEnd(W, 6, b"abc", 1, 5, 1),
            c.ConditionalBlockEnd(W, 9, 3, b"abc", 1),
            c.ReadSegment(SEGMENT, 0, 100, "", 1),
            c.UpdateTableEntries(1, TABLE, "", [c.TableEntry(b"k", b"v")]),
            c.MergeSegments(1, SEGMENT, SOURCE, "", [c.AttributeCondition(W, 1, 2, 3)]),
        )
    ]
    for _ in range(60):
        bad = await model.connect(hello=False)
        for _ in range(generator.randrange(1, 8)):
            frame = bytearray(generator.choice(samples))
            for _ in range(generator.randrange(0, 3)):
                frame[generator.randrange(len(frame))] = generator.randrange(256)
            bad.send_raw(bytes(frame[: generator.randrange(len(frame) + 1)] if generator.random() < 0.2 else frame))
        bad.writer.write_eof()
        async with asyncio.timeout(120):
            try:
                while await bad.reader.read(1 << 16):
                    continue
            except ConnectionError:
                pass
        bad.close()
    info = await good.call(c.GetStreamSegmentInfo(3, SEGMENT, ""))
    assert info.write_offset >= 3
    assert (await good.read_all(SEGMENT)).startswith(b"abc")
    assert model.in_flight.outstanding_bytes == 0


async def test_too_many_unanswered_requests_close_the_connection(model: Any) -> None:
    client = await model.connect()
    await client.fill(SEGMENT, b"abc")
    reads = limits.REQUESTS_PER_CONNECTION_MAX + 1
    client.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(reads)))
    await client.expect_end()


async def test_unanswered_requests_of_all_connections_are_bounded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX", 100)
    first, second, third = [await model.connect() for _ in range(3)]
    await first.fill(SEGMENT, b"abc")
    first.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(100)))
    await first.expect_silence()
    assert model.server.unanswered == 100
    second.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(limits.REQUESTS_PER_CONNECTION_FREE)))
    await second.expect_silence()
    second.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(16, 50)))
    await first.expect_end()
    await second.expect_silence()
    assert model.server.unanswered == 50
    second.send(*(c.ReadSegment(SEGMENT, 3, 100, "", number) for number in range(50, 101)))
    await second.expect_end()
    third.send(*(c.ReadSegment(SEGMENT, 0, 100, "", number) for number in range(10)))
    for number in range(10):
        assert (await third.expect(c.SegmentRead)).request_id == number
    third.close()
    await model.until(lambda: model.server.unanswered == 0)


async def test_an_error_of_the_server_closes_the_connection(model: Any) -> None:
    client = await model.connect()
    await client.fill(SEGMENT, b"abc")

    async def broken(segment: str) -> int:
        raise ZeroDivisionError("a defect")

    model.model.seal = broken
    client.send(c.SealSegment(1, SEGMENT, ""))
    await client.expect_end()
    assert await (await model.connect()).read_all(SEGMENT) == b"abc"


async def test_a_stopped_container_is_elsewhere(model: Any) -> None:
    client = await model.connect()
    await client.fill(SEGMENT, b"abc")
    client.send(c.ReadSegment(SEGMENT, 3, 100, "", 7))
    await client.expect_silence()
    model.model.stop()
    assert await client.receive() == c.WrongHost(7, SEGMENT, "", "")
    assert await client.call(c.GetStreamSegmentInfo(8, SEGMENT, "")) == c.WrongHost(8, SEGMENT, "", "")
