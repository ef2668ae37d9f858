"""Each call of the blocking client that its other tests do not make does what the asyncio client's does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from harness.localtransport import LocalTransport
from tailrace.client import (
    NO_VERSION,
    NOT_EXISTS,
    BlockingClient,
    EventBatch,
    StreamName,
    TableKeyParts,
    TransactionState,
    group_config,
)
from tailrace.common.errors import DeadlineError
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c

T = TypeVar("T")
STREAM = StreamName("s", "t")
SEGMENT = STREAM.segment(0)


@pytest.fixture
def use(controller: Any) -> Callable[[Callable[[BlockingClient], T]], Any]:
    """Runs a program with a blocking client in a thread."""
    controller.begin((0, 0.0, 1.0))

    def program(work: Callable[[BlockingClient], T]) -> T:
        with BlockingClient(LocalTransport(controller.handle)) as client:
            return work(client)

    return lambda work: asyncio.to_thread(program, work)


async def test_a_writer_has_the_given_name_and_notes_its_time(use: Any, controller: Any) -> None:
    def work(client: BlockingClient) -> None:
        with client.writer("s/t", writer_id="w1") as writer:
            assert (writer.stream, writer.writer_id, writer.active) == (STREAM, "w1", True)
            writer.write_event(b"a")
            writer.flush()
            writer.note_time(77)
        assert not writer.active

    await use(work)
    calls = dict(controller.calls)
    assert (calls["noteTimestampFromWriter"].writer, calls["noteTimestampFromWriter"].timestamp) == ("w1", 77)
    assert calls["removeWriter"].writer == "w1"


async def test_a_reader_returns_batches_and_says_what_is_left(use: Any, store: Any) -> None:
    def work(client: BlockingClient) -> None:
        with client.writer("s/t") as writer:
            writer.write_events([b"a", b"b", b"c"])
        client.reader_groups("s").create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
        with client.reader("s", "g", "r") as reader:
            assert reader.reader == "r"
            assert reader.read_batch(2, 120_000) == EventBatch(SEGMENT, 0, [b"a", b"b"])
            assert (reader.unassigned_segments, reader.ended_segments, reader.end_of_data) == (0, (), False)
            assert reader.read_batch(2, 120_000) == EventBatch(SEGMENT, 18, [b"c"])
            store.segments[SEGMENT].sealed = True
            client.run(wake(store))
            while not reader.ended_segments:
                assert reader.read_batch(2, 100) is None
            assert reader.ended_segments == (SEGMENT,)

    await use(work)


async def wake(store: Any) -> None:
    """Let the store look at its waiting reads."""
    async with store.grown:
        store.grown.notify_all()


async def test_a_group_can_be_looked_at_compacted_and_freed_of_checkpoints(use: Any) -> None:
    def work(client: BlockingClient) -> None:
        manager = client.reader_groups("s")
        manager.create("g", group_config({STREAM: None}, automatic_checkpoint_ms=-1))
        group = manager.open("g")
        assert (manager.scope, group.scope, group.group) == ("s", "s", "g")
        with client.reader("s", "g", "r"):
            before = group.state()
            assert before.online_readers == ["r"]
            with pytest.raises(DeadlineError):
                group.checkpoint("noon", deadline_s=0)
            assert group.state().outstanding_checkpoints() == ["noon"]
            group.cancel_outstanding_checkpoints()
            assert group.state().outstanding_checkpoints() == []
            assert group.compact()
            assert group.finish_reset() == before.config.generation
        assert before.online_readers == ["r"], "a state that was returned does not change"
        assert group.state().online_readers == []

    await use(work)


async def test_a_transaction_is_extended_and_left_to_another_process(use: Any, controller: Any) -> None:
    def work(client: BlockingClient) -> None:
        with client.transactional_writer("s/t", writer_id="w1") as transactions:
            assert (transactions.stream, transactions.writer_id) == (STREAM, "w1")
            transaction = transactions.begin()
            assert (transaction.stream, transaction.active) == (STREAM, True)
            transaction.write_event(b"t", "key")
            transaction.ping()
            transaction.close()
            assert transaction.state() is TransactionState.OPEN

    await use(work)
    methods = [method for method, _ in controller.calls]
    assert methods.count("pingTransaction") == 1
    assert not {"commitTransaction", "abortTransaction"} & set(methods)


async def test_records_of_a_revisioned_stream(use: Any) -> None:
    def work(client: BlockingClient) -> None:
        state = client.revisioned("s/t")
        assert (state.segment, state.oldest(), state.latest(), state.mark()) == (SEGMENT, 0, 0, None)
        first = state.write_conditionally(0, b"one")
        assert first == 11
        assert state.write_conditionally(0, b"two") is None
        state.write_unconditionally(b"two")
        assert [entry.payload for entry in state.read_from(0)] == [b"one", b"two"]
        assert [entry.payload for entry in state.read_from(0, 1)] == [b"one"]
        assert state.compare_and_set_mark(None, first)
        assert not state.compare_and_set_mark(None, 0)
        state.truncate(first)
        assert (state.mark(), state.oldest(), state.latest()) == (first, first, 22)

    await use(work)


async def test_bytes(use: Any) -> None:
    def work(client: BlockingClient) -> None:
        with client.byte_writer("s/t") as writer:
            writer.write(b"hello")
            writer.flush()
            assert (writer.stream, writer.length()) == (STREAM, 5)
        with client.byte_reader("s/t") as reader:
            assert (reader.stream, reader.offset) == (STREAM, 0)
            assert reader.read(3) == b"hel"
            assert reader.offset == 3

    await use(work)


async def test_entries_of_a_table(use: Any, store: Any, controller: Any) -> None:
    part = controller.segment(0, 0.0, 1.0, create=False)
    controller.answers["getCurrentSegmentsKeyValueTable"] = lambda _: pb.SegmentRanges(segmentRanges=[part])
    controller.answers["getKeyValueTableConfiguration"] = lambda _: pb.KeyValueTableConfigResponse(
        config=pb.KeyValueTableConfig(partitionCount=1, primaryKeyLength=2, secondaryKeyLength=1)
    )
    updates: list[list[tuple[bytes, bytes, int]]] = []

    def update(command: c.Command) -> list[c.Command] | None:
        if not isinstance(command, c.UpdateTableEntries):
            return None
        updates.append([(bytes(entry.key), bytes(entry.value), entry.version) for entry in command.entries])
        return [c.TableEntriesUpdated(command.request_id, list(range(len(command.entries))))]

    store.rules.append(update)

    def work(client: BlockingClient) -> None:
        with client.table("s", "k") as table:
            assert (table.scope, table.table) == ("s", "k")
            assert table.insert(TableKeyParts(b"aa", b"1"), b"x") == 0
            assert table.put_all([(TableKeyParts(b"aa", b"1"), b"y", 7), (TableKeyParts(b"aa", b"2"), b"z", None)])

    await use(work)
    assert updates == [[(b"aa1", b"x", NOT_EXISTS)], [(b"aa1", b"y", 7), (b"aa2", b"z", NO_VERSION)]]


async def test_tags_and_deadlines_of_scales(use: Any, controller: Any) -> None:
    controller.answers["getStreamConfiguration"] = lambda _: pb.StreamConfig(
        scalingPolicy=pb.ScalingPolicy(minNumSegments=1), tags=pb.Tags(tag=["blue"])
    )
    controller.answers["scale"] = lambda _: pb.ScaleResponse()
    controller.answers["checkScale"] = lambda _: pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.IN_PROGRESS)

    def work(client: BlockingClient) -> None:
        assert client.streams.tags("s/t") == ("blue",)
        with pytest.raises(DeadlineError):
            client.streams.scale_to("s/t", 2, deadline_s=0.01)
        with pytest.raises(DeadlineError):
            client.streams.split_segment("s/t", 0, 2, deadline_s=0.01)

    await use(work)
