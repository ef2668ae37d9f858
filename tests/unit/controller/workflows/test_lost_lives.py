"""Segments that records know nothing of, as after a restore: nothing new is added to what such a segment holds."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import structlog

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, TailraceError
from tailrace.common.names import segment_epoch, segment_id, segment_number
from tailrace.controller.metadata.records import PendingRecord
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows.transactions import make_transaction_id
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
HALVES = [(0.0, 0.5), (0.5, 1.0)]
LOST = b"lost"


def name(identifier: int, transaction_id: bytes | None = None) -> str:
    suffix = "" if transaction_id is None else f"#transaction.{transaction_id.hex()}"
    return f"scope/stream/{segment_number(identifier)}.#epoch.{segment_epoch(identifier)}{suffix}"


async def leave(world: Any, *names: str, data: bytes = LOST, sealed: bool = False) -> None:
    """Segments of a life of the stream that its records do not know."""
    for each in names:
        await world.segments.create_segment(each)
        if data:
            world.segments.append(each, data)
        world.segments.segments[each].sealed = sealed


def id_of(begun: Any) -> bytes:
    return int(begun.txnId.highBits).to_bytes(8, "big", signed=True) + int(begun.txnId.lowBits).to_bytes(
        8, "big", signed=True
    )


def is_untouched(world: Any, *names: str, data: bytes = LOST) -> bool:
    """It has its bytes, and takes no more: a writer of the lost life notices."""
    found = [world.segments.segments[each] for each in names]
    return all(each.sealed and b"".join(each.pieces) == data for each in found)


async def root_of(api: Any) -> Any:
    return await api.controller.services.core.context.store.load(KEY)


async def next_ids(api: Any, count: int) -> list[bytes]:
    """The ids that the controller gives next: it has left numbers out."""
    assert await api.abort((await api.begin()).txnId) == pb.TxnStatus.SUCCESS
    counter = (await root_of(api)).transaction_counter
    return [make_transaction_id(0, counter + number) for number in range(count)]


@pytest.mark.parametrize(("data", "sealed"), [(LOST, False), (LOST, True), (b"", True)])
async def test_a_transaction_takes_no_bytes_of_a_lost_one(api: Any, world: Any, data: bytes, sealed: bool) -> None:
    await api.setup(2)
    ids = await next_ids(api, 3)
    left = [name(each, transaction_id) for each in await api.current() for transaction_id in ids]
    await leave(world, *left[:-1], data=data, sealed=sealed)
    with structlog.testing.capture_logs() as logs:
        begun = await api.begin()
        more = await api.begin()
    assert id_of(begun) not in ids
    assert id_of(more) not in ids
    assert {line["segment"] for line in logs if line["event"] == "segment_of_a_lost_life"} == {left[0], left[3]}
    for item in begun.activeSegments:
        world.segments.append(name(item.segmentId.segmentId, id_of(begun)), b"new")
    assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert [world.segments.segments[name(each)].pieces for each in await api.current()] == [[b"new"], [b"new"]]
    assert is_untouched(world, left[0], left[3], data=data)
    assert await api.abort(more.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(more.txnId, pb.TxnState.ABORTED)
    root = await root_of(api)
    assert (root.open_count, root.open_digest) == (0, 0)
    lost = pb.TxnId(highBits=0, lowBits=int.from_bytes(ids[0], "big"))
    assert await api.state(lost) == pb.TxnState.UNKNOWN
    assert await api.commit(lost) == pb.TxnStatus.FAILURE


async def test_an_empty_segment_is_one_of_an_earlier_try(api: Any, world: Any) -> None:
    await api.setup(1)
    (following,) = await next_ids(api, 1)
    await leave(world, name(0, following), data=b"")
    await leave(world, name(segment_id(1, 1)), data=b"")
    begun = await api.begin()
    assert id_of(begun) == following
    assert await api.scaled([0], HALVES) == [segment_id(1, 1), segment_id(2, 1)]


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_scale_takes_no_segments_of_a_lost_one(api: Any, world: Any, sealed: bool) -> None:
    await api.setup(1)
    left = [name(segment_id(number, 1)) for number in (2, 3)]
    await leave(world, *left, sealed=sealed)
    found = await api.scaled([0], HALVES)
    assert min(map(segment_number, found)) > limits.SEGMENT_NUMBERS_SKIPPED
    assert {segment_epoch(each) for each in found} == {1}
    assert all(not world.segments.segments[name(each)].length for each in found)
    assert is_untouched(world, left[0])
    assert world.segments.segments[left[1]].sealed == sealed, "no segment of the scale has its name"
    root = await root_of(api)
    assert (root.intent, root.next_segment_number) == (None, segment_number(found[-1]) + 1)


async def test_an_update_of_the_policy_takes_no_segments_of_a_lost_scale(api: Any, world: Any) -> None:
    await api.setup(1)
    await leave(world, name(segment_id(1, 1)), name(segment_id(2, 1)))
    assert (await api.call("updateStream", api.config(2))).status == pb.UpdateStreamStatus.SUCCESS
    found = await api.current()
    assert len(found) == 2
    assert all(not world.segments.segments[name(each)].length for each in found)
    assert is_untouched(world, name(segment_id(1, 1)), name(segment_id(2, 1)))


@pytest.mark.parametrize("epochs", [1, 3])
async def test_a_pass_that_rolls_over_takes_no_segments_of_a_lost_one(api: Any, world: Any, epochs: int) -> None:
    await api.setup(1)
    begun = await api.begin()
    world.segments.append(name(0, id_of(begun)), b"transaction")
    one, two = await api.scaled([0], HALVES)
    left = [name(segment_id(0, 2 + number)) for number in range(epochs)]
    await leave(world, *left)
    await leave(world, name(segment_id(2, 3)), sealed=True)
    world.segments.append(name(one), b"before")
    assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    root = await root_of(api)
    merged = segment_id(0, root.active_epoch - 1)
    assert world.segments.segments[name(merged)].pieces == [b"transaction"]
    assert await api.current() == [segment_id(number, root.active_epoch) for number in (1, 2)]
    assert all(not world.segments.segments[name(each)].length for each in await api.current())
    assert is_untouched(world, *left)
    request = pb.SegmentId(streamInfo=api.info, segmentId=one)
    (entry,) = (await api.call("getSegmentsImmediatelyFollowing", request)).segments
    assert (entry.segment.segmentId.segmentId, list(entry.value)) == (merged, [one, two])
    later = await api.begin()
    assert await api.commit(later.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(later.txnId, pb.TxnState.COMMITTED)
    assert (await root_of(api)).active_epoch == root.active_epoch, "it rolls over nothing"
    assert await api.scaled(await api.current(), [(0.0, 1.0)]) == [segment_id(3, root.active_epoch + 1)]


MARK = "scope/_MARKstream/0.#epoch.0"


@pytest.mark.parametrize(("data", "sealed"), [(LOST, False), (LOST, True), (b"", True)])
async def test_a_stream_is_created_without_the_bytes_of_a_lost_one(
    api: Any, world: Any, data: bytes, sealed: bool
) -> None:
    await leave(world, name(1), MARK, data=data, sealed=sealed)
    with structlog.testing.capture_logs() as logs:
        await api.setup(2)
    found = await api.current()
    assert [segment_number(each) for each in found] == [limits.SEGMENT_NUMBERS_SKIPPED + number for number in (2, 3)]
    assert {segment_epoch(each) for each in found} == {0}
    assert all(not world.segments.segments[name(each)].length for each in found)
    assert is_untouched(world, name(1), MARK, data=data)
    assert [line["segment"] for line in logs if line["event"] == "segment_of_a_lost_life"] == [name(1), MARK]
    assert world.segments.segments[name(0)].sealed, "no record names it: a late writer of the lost life notices"
    head = await api.call("getSegments", pb.GetSegmentsRequest(streamInfo=api.info, timestamp=0))
    assert {each.segmentId.segmentId: each.offset for each in head.segments} == dict.fromkeys(found, 0)
    mark = await api.call("getCurrentSegments", pb.StreamInfo(scope="scope", stream="_MARKstream"))
    assert [each.segmentId.segmentId for each in mark.segmentRanges] == [limits.SEGMENT_NUMBERS_SKIPPED + 1]
    root = await root_of(api)
    assert (root.intent, root.next_segment_number) == (None, segment_number(found[-1]) + 1)
    assert not [key for key in world.metadata.dump_table(KEY.table) if key == KEY.epoch(root.incarnation - 1, 0)]
    after = [segment_id(root.next_segment_number + number, 1) for number in (0, 1)]
    assert await api.scaled(found, HALVES) == after


async def test_a_stream_is_created_over_lost_lives_one_after_the_other(api: Any, world: Any) -> None:
    following = segment_id(limits.SEGMENT_NUMBERS_SKIPPED + 1, 0)
    await leave(world, name(0), name(following))
    await api.setup(1)
    (found,) = await api.current()
    assert segment_number(found) == 2 * (limits.SEGMENT_NUMBERS_SKIPPED + 1)
    assert is_untouched(world, name(0), name(following))
    first = await api.controller.services.core.context.store.epoch(KEY, await root_of(api), 0)
    assert first.numbers_skipped == segment_number(found)


async def test_a_stream_takes_empty_segments_of_an_earlier_try(api: Any, world: Any) -> None:
    await leave(world, name(0), data=b"")
    await api.setup(2)
    assert await api.current() == [0, 1]


async def test_a_stream_that_cannot_be_created_deletes_no_lost_bytes(api: Any, world: Any) -> None:
    """The segment store refuses its configuration, after it has found a segment that was there."""
    await leave(world, name(0))
    real = world.segments.create_segment

    async def create_segment(segment: str, **settings: Any) -> None:
        if segment == name(1):
            raise BadRequestError("refused")
        await real(segment, **settings)

    world.segments.create_segment = create_segment
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    with contextlib.suppress(TailraceError):
        await api.call("createStream", api.config(2))
    assert world.segments.segments[name(0)].pieces == [LOST]


async def test_a_controller_that_was_paused_creates_no_stream_again_that_clients_have(
    world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds bytes in the segments of a creation that another controller has finished meanwhile."""
    slow = make_api(await world.start(seed=1))
    await slow.call("createScope", pb.ScopeInfo(scope="scope"))
    quick = make_api(await world.start(seed=2))
    segments = slow.controller.services.core.context.segments
    real, paused = type(segments).create, False

    async def create(self: Any, names: Any, config: Any) -> Any:
        nonlocal paused
        if self is segments and not paused:
            paused = True
            assert (await quick.call("createStream", quick.config(2))).status == pb.CreateStreamStatus.SUCCESS
            for each in names:
                world.segments.append(each, b"written")
        return await real(self, names, config)

    monkeypatch.setattr(type(segments), "create", create)
    await slow.call("createStream", slow.config(2))
    assert paused

    async def is_done() -> bool:
        return (await root_of(slow)).intent is None

    await wait_until(is_done)
    for api in (slow, quick):
        assert await api.current() == [0, 1]
    assert not any(world.segments.segments[name(each)].sealed for each in (0, 1))


async def test_a_controller_that_was_paused_knows_the_segments_of_a_creation_that_began_again(
    world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began the creation, another one found the bytes of a lost life; the epoch that it remembers is given up."""
    slow = make_api(await world.start(seed=1))
    await slow.call("createScope", pb.ScopeInfo(scope="scope"))
    quick = make_api(await world.start(seed=2))
    await leave(world, name(0))
    segments = slow.controller.services.core.context.segments
    real, paused = type(segments).create, False

    async def create(self: Any, names: Any, config: Any) -> Any:
        nonlocal paused
        if self is segments and not paused:
            paused = True
            assert (await quick.call("createStream", quick.config(2))).status == pb.CreateStreamStatus.SUCCESS
        return await real(self, names, config)

    monkeypatch.setattr(type(segments), "create", create)
    await slow.call("createStream", slow.config(2))
    assert paused
    expected = [limits.SEGMENT_NUMBERS_SKIPPED + number for number in (2, 3)]
    for api in (slow, quick):
        assert await api.current() == expected
    assert is_untouched(world, name(0))


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_crash_at_any_call_of_a_scale_adds_nothing_to_lost_bytes(
    make_world: Any, make_api: Any, make_crash: Any, wait_until: Any, after_effect: bool
) -> None:
    left = [name(segment_id(number, 1)) for number in (1, 2)]
    crashes = 0
    for at_call in range(1, 25):
        world = make_world()
        crash = make_crash(after_effect=after_effect)
        first = make_api(await world.start(crash))
        await first.setup(1)
        await leave(world, *left)
        crash.at_call = crash.calls + at_call
        with contextlib.suppress(TailraceError):
            await first.scale([0], HALVES)
            await first.until_scaled(0)
        crashes += crash.crashed
        await first.controller.close()
        second = make_api(await world.start(seed=2))

        async def is_at_rest(api: Any = second) -> bool:
            return (await root_of(api)).intent is None

        await wait_until(is_at_rest)
        found = await second.current()
        assert len(found) in (1, 2)
        assert all(not world.segments.segments[name(each)].length for each in found)
        assert [world.segments.segments[each].pieces for each in left] == [[LOST], [LOST]]
        await world.close()
    assert crashes > 8


async def test_a_controller_that_was_paused_replaces_no_segments_that_clients_have(
    world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds bytes in the segments of a scale that another controller has finished meanwhile."""
    slow = make_api(await world.start(seed=1))
    await slow.setup(1)
    quick = make_api(await world.start(seed=2))
    segments = slow.controller.services.core.context.segments
    real, paused = type(segments).create, False

    async def create(self: Any, names: Any, config: Any) -> Any:
        nonlocal paused
        if self is segments and not paused:
            paused = True
            await quick.controller.services.core.driver.adopt(pending)
            await quick.until_scaled(0)
            for each in names:
                world.segments.append(each, b"written")
        return await real(self, names, config)

    pending = PendingRecord("stream", "scope", "stream", "")
    monkeypatch.setattr(type(segments), "create", create)
    expected = [segment_id(1, 1), segment_id(2, 1)]
    assert await slow.scaled([0], HALVES) == expected
    assert paused

    async def is_done() -> bool:
        return (await root_of(slow)).intent is None

    await wait_until(is_done)
    assert await quick.current() == expected
    assert not any(world.segments.segments[name(each)].sealed for each in expected)


@pytest.mark.parametrize("written", [False, True])
async def test_a_client_of_a_lost_life_has_no_part_in_a_new_transaction(
    world: Any, make_api: Any, written: bool
) -> None:
    """The stream's records are restored as of a moment before its transaction, and the client goes on with that."""
    first = make_api(await world.start(transaction_numbers_skipped=1000))
    await first.setup(1)
    early = await first.begin()
    assert await first.abort(early.txnId) == pb.TxnStatus.SUCCESS
    await first.until_state(early.txnId, pb.TxnState.ABORTED)
    kept = copy.deepcopy(world.metadata)
    lost = [await first.begin() for _ in range(3)]
    await first.controller.close()
    if not written:
        for each in lost:
            await world.segments.delete_segment(name(0, id_of(each)))
    world.metadata = kept
    second = make_api(await world.start(seed=2, transaction_numbers_skipped=1000))
    begun = [await second.begin() for _ in range(3)]
    assert not {id_of(each) for each in lost} & {id_of(each) for each in begun}
    numbers = [int.from_bytes(id_of(each)[4:], "big") for each in begun]
    assert numbers == list(range(numbers[0], numbers[0] + 3)), "numbers are left out once"
    for each in lost:
        assert await second.commit(each.txnId) == pb.TxnStatus.FAILURE
    for each in begun:
        world.segments.append(name(0, id_of(each)), b"new")
        assert await second.commit(each.txnId) == pb.TxnStatus.SUCCESS
        await second.until_state(each.txnId, pb.TxnState.COMMITTED)
    assert world.segments.segments[name(0)].pieces == [b"new"] * 3


@pytest.mark.parametrize("kept", [None, "deleted", "active"])
async def test_a_scope_goes_whose_list_names_streams_without_records(
    world: Any, make_api: Any, kept: str | None
) -> None:
    """The scope's list is restored as of a later moment than the records of a stream: none, or an earlier one."""
    api = make_api(await world.start())
    await api.setup(2, tags=pb.Tags(tag=["blue"]))
    earlier: dict[str, Any] = {}
    if kept == "active":
        earlier = copy.deepcopy(world.metadata._tables)
    for _ in range(2):
        await api.call("sealStream", api.info)
        assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
        if kept == "deleted" and not earlier:
            earlier = copy.deepcopy(world.metadata._tables)
        await api.setup(2, tags=pb.Tags(tag=["blue"]))
    await api.controller.close()
    mark = StreamKey("scope", "_MARKstream")
    for key in (KEY, mark):
        world.metadata._tables[key.table] = earlier.get(key.table, {})
    api = make_api(await world.start(seed=2))
    scope = pb.ScopeInfo(scope="scope")
    assert (await api.call("deleteScopeRecursive", scope)).status == pb.DeleteScopeStatus.SUCCESS
    await api.setup(1)
    listed = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=scope))
    assert {each.stream for each in listed.streams} == {"stream", "_MARKstream"}


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_crash_at_any_call_of_a_begin_leaves_a_transaction_that_ends(
    make_world: Any, make_api: Any, make_crash: Any, wait_until: Any, after_effect: bool
) -> None:
    """Its segment was there before: it is given up, and whatever a crash left of that can be asked for and ends."""
    crashes = 0
    for at_call in range(1, 16):
        world = make_world()
        crash = make_crash(after_effect=after_effect)
        first = make_api(await world.start(crash, transaction_lease_min_ms=10))
        await first.setup(1)
        (following,) = await next_ids(first, 1)
        await leave(world, name(0, following))
        crash.at_call = crash.calls + at_call
        with contextlib.suppress(TailraceError):
            begun = await first.begin(lease_ms=10)
            assert id_of(begun) != following
        crashes += crash.crashed
        await first.controller.close()
        second = make_api(await world.start(seed=2))

        async def is_at_rest(api: Any = second) -> bool:
            root = await root_of(api)
            return (root.open_count, root.abort_queue) == (0, ())

        await wait_until(is_at_rest)
        lost = pb.TxnId(highBits=0, lowBits=int.from_bytes(following, "big"))
        assert await second.state(lost) in (pb.TxnState.UNKNOWN, pb.TxnState.ABORTED)
        assert await second.commit(lost) == pb.TxnStatus.FAILURE
        assert id_of(await second.begin()) != following
        await world.close()
    assert crashes > 5
