"""Commits of transactions whose epoch is not active any more: where their events go, and in which order."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.names import segment_epoch, segment_id, segment_number
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

S = "scope/stream/"
KEY = StreamKey("scope", "stream")
HALVES = [(0.0, 0.5), (0.5, 1.0)]
WHOLE = [(0.0, 1.0)]


def name(identifier: int) -> str:
    return f"{S}{segment_number(identifier)}.#epoch.{segment_epoch(identifier)}"


def write(world: Any, begun: Any, event: bytes) -> None:
    """The event to every segment of the transaction."""
    suffix = f"#transaction.{begun.txnId.highBits:016x}{begun.txnId.lowBits:016x}"
    for item in begun.activeSegments:
        world.segments.append(name(item.segmentId.segmentId) + suffix, event)


async def root_of(api: Any) -> Any:
    return await api.controller.services.core.context.store.load(KEY)


async def read_at(api: Any, world: Any, point: float) -> list[bytes]:
    """What a reader of one key reads: from segment to successor, as far as each is sealed."""
    store = api.controller.services.core.context.store
    first = await store.epoch(KEY, await root_of(api), 0)
    (found,) = (item.identifier for item in first.segments if item.low <= point < item.high)
    events: list[bytes] = []
    while True:
        segment = world.segments.segments[name(found)]
        events.extend(segment.pieces)
        request = pb.SegmentId(streamInfo=api.info, segmentId=found)
        entries = (await api.call("getSegmentsImmediatelyFollowing", request)).segments
        if not entries:
            return events
        assert segment.sealed, f"{name(found)} has successors, and takes appends"
        (found,) = (
            entry.segment.segmentId.segmentId
            for entry in entries
            if entry.segment.minKey <= point < entry.segment.maxKey
        )


async def test_a_commit_rolls_over_a_scale(api: Any, world: Any) -> None:
    await api.setup(1)
    begun = await api.begin()
    write(world, begun, b"transaction")
    world.segments.append(name(0), b"before")
    one, two = await api.scaled([0], HALVES)
    world.segments.append(name(one), b"between")
    assert await api.state(begun.txnId) == pb.TxnState.OPEN
    assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert await api.current() == [segment_id(1, 3), segment_id(2, 3)]
    assert world.segments.segments[name(segment_id(0, 2))].pieces == [b"transaction"]
    assert await read_at(api, world, 0.1) == [b"before", b"between", b"transaction"]
    assert await read_at(api, world, 0.9) == [b"before", b"transaction"]
    request = pb.SegmentId(streamInfo=api.info, segmentId=one)
    (entry,) = (await api.call("getSegmentsImmediatelyFollowing", request)).segments
    assert (entry.segment.segmentId.segmentId, list(entry.value)) == (segment_id(0, 2), [one, two])
    root = await root_of(api)
    assert (root.rolling, root.commit_batch, root.active_epoch) == (None, (), 3)


async def test_sizes_count_what_was_rolled_over(api: Any, world: Any) -> None:
    await api.setup(1)
    begun = await api.begin()
    write(world, begun, b"1234567")
    world.segments.append(name(0), b"12345")
    await api.scaled([0], HALVES)
    world.segments.append(name(segment_id(1, 1)), b"123")
    await api.commit(begun.txnId)
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    world.segments.append(name(segment_id(2, 3)), b"12")
    store = api.controller.services.core.context.store
    root = await root_of(api)
    records = await store.sealed(KEY, root, 0, 3)
    assert [(record.epoch, record.sizes, record.total_bytes) for record in records] == [
        (1, {0: 5}, 5),
        (2, {segment_id(1, 1): 3, segment_id(2, 1): 0}, 8),
        (3, {segment_id(0, 2): 7}, 15),
    ]
    assert root.sealed_bytes == 15


async def test_transactions_of_a_duplicated_epoch_need_no_other_one(api: Any, world: Any) -> None:
    """One began in the epoch before its duplicate, one in the duplicate: both merge into the active segments."""
    await api.setup(1)
    oldest = await api.begin()
    write(world, oldest, b"oldest")
    await api.scaled([0], HALVES)
    before = await api.begin()
    write(world, before, b"before")
    await api.commit(oldest.txnId)
    await api.until_state(oldest.txnId, pb.TxnState.COMMITTED)
    after = await api.begin()
    write(world, after, b"after")
    assert (before.txnId.highBits >> 32, after.txnId.highBits >> 32) == (1, 3)
    for begun in (before, after):
        await api.commit(begun.txnId)
    for begun in (before, after):
        await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert (await root_of(api)).active_epoch == 3
    for point in (0.1, 0.9):
        assert await read_at(api, world, point) == [b"oldest", b"before", b"after"]


async def test_the_lowest_epoch_comes_first_and_each_in_order_of_the_calls(api: Any, world: Any) -> None:
    await api.setup(1)
    begun = {}
    for epoch, ranges in enumerate((HALVES, WHOLE, HALVES)):
        for number in range(2):
            label = f"{epoch}.{number}".encode()
            begun[label] = await api.begin()
            write(world, begun[label], label)
        await api.scaled(await api.current(), ranges)
    scope = api.controller.services.core.context
    async with scope.store._locks.hold(KEY):  # the pass cannot take its batch before all commits are in the queue
        calls = [asyncio.ensure_future(api.commit(begun[label].txnId)) for label in sorted(begun, reverse=True)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*calls) == [pb.TxnStatus.SUCCESS] * len(calls)
    for item in begun.values():
        await api.until_state(item.txnId, pb.TxnState.COMMITTED)
    seen = [await read_at(api, world, point) for point in (0.1, 0.9)]
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == sorted(begun)
    by_epoch = {epoch: [label for label in seen[0] if label.startswith(epoch)] for epoch in (b"0", b"1", b"2")}
    assert by_epoch == {epoch: [epoch + b".1", epoch + b".0"] for epoch in by_epoch}


async def test_a_scale_leaves_transactions_open_and_new_ones_begin(api: Any, world: Any) -> None:
    await api.setup(1)
    opened = [await api.begin() for _ in range(20)]
    await api.scaled([0], HALVES)
    assert {await api.state(begun.txnId) for begun in opened} == {pb.TxnState.OPEN}
    assert (await api.begin()).txnId.highBits >> 32 == 1


async def test_sealing_waits_for_commits_over_a_scale_and_aborts_the_rest(api: Any, world: Any) -> None:
    await api.setup(1)
    committed, left = [await api.begin() for _ in range(2)]
    write(world, committed, b"committed")
    write(world, left, b"left")
    await api.scaled([0], HALVES)
    await api.commit(committed.txnId)
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.state(committed.txnId) == pb.TxnState.COMMITTED
    assert await api.state(left.txnId) == pb.TxnState.ABORTED
    assert await read_at(api, world, 0.9) == [b"committed"]
    assert all(segment.sealed for found, segment in world.segments.segments.items() if found.startswith(S))
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    assert world.segments.names(S) == []


async def test_a_scale_and_a_commit_over_an_earlier_one_follow_each_other(api: Any, world: Any) -> None:
    """Both number the next epoch, so neither begins while the other runs."""
    await api.setup(1)
    for turn in range(6):
        begun = await api.begin()
        write(world, begun, b"%d" % turn)
        await api.scaled(await api.current(), HALVES)
        committing = asyncio.ensure_future(api.commit(begun.txnId))
        for _ in range(turn):
            await asyncio.sleep(0)
        answer = await api.scale(await api.current(), WHOLE)
        assert await committing == pb.TxnStatus.SUCCESS
        await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
        if answer.status == pb.ScaleResponse.STARTED:
            await api.until_scaled(answer.epoch)
        assert (
            await read_at(api, world, 0.1)
            == await read_at(api, world, 0.9)
            == [b"%d" % item for item in range(turn + 1)]
        )


async def test_one_segment_of_the_transaction_was_truncated(api: Any, world: Any) -> None:
    """It can never be committed whole, so it is aborted; no epoch comes for its sake."""
    await api.setup(1)
    begun = await api.begin()
    write(world, begun, b"event")
    await api.scaled([0], HALVES)
    (own,) = (found for found in world.segments.names(S) if "#transaction" in found)
    await world.segments.truncate_segment(own, 1)
    assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.ABORTED)
    assert (await root_of(api)).active_epoch == 1


@pytest.mark.parametrize("case", range(12))
async def test_any_mix_reads_the_same_for_every_key(case: int, api: Any, world: Any, test_seed: int) -> None:
    """Transactions begin, commit and abort at random between scales; every key has all committed ones in one order."""
    chance = random.Random(test_seed + case)
    await api.setup(chance.randint(1, 3))
    opened: dict[bytes, Any] = {}
    ended: dict[bytes, tuple[Any, bool]] = {}
    for turn in range(40):
        step = chance.random()
        if step < 0.4:
            label = b"%d" % turn
            opened[label] = await api.begin()
            write(world, opened[label], label)
        elif step < 0.6 and opened:
            label = chance.choice(sorted(opened))
            begun, commits = opened.pop(label), chance.random() < 0.8
            ended[label] = begun, commits
            assert await (api.commit if commits else api.abort)(begun.txnId) == pb.TxnStatus.SUCCESS
        elif step < 0.8:
            await api.scale(await api.current(), chance.choice([HALVES, WHOLE, [(0, 0.3), (0.3, 0.6), (0.6, 1.0)]]))
        elif chance.random() < 0.5:
            await asyncio.sleep(0.001)
    for begun, commits in ended.values():
        await api.until_state(begun.txnId, pb.TxnState.COMMITTED if commits else pb.TxnState.ABORTED)
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    seen = [await read_at(api, world, point) for point in (0.05, 0.2, 0.4, 0.55, 0.7, 0.95)]
    assert sorted(seen[0]) == sorted(label for label, (_, commits) in ended.items() if commits)
    assert all(order == seen[0] for order in seen)


async def test_a_pass_that_rolls_over_checks_a_bounded_number_of_segments(
    world: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many transactions of many segments wait: each pass takes a part of them, which share its two epochs."""
    segments, transactions, most = 10, 6, 30
    monkeypatch.setattr(limits, "TRANSACTION_ROLLING_MERGES_MAX", most, raising=False)
    await api.setup(segments)
    begun = [await api.begin() for _ in range(transactions)]
    for number, txn in enumerate(begun):
        write(world, txn, b"%d" % number)
    await api.scaled(await api.current(), [(each / segments, (each + 1) / segments) for each in range(segments)])
    context = api.controller.services.core.context
    asked, infos = [], context.segments.infos
    opened = asyncio.Event()

    async def counted(names: Any) -> Any:
        await opened.wait()
        asked.append(len(names))
        return await infos(names)

    monkeypatch.setattr(context.segments, "infos", counted)
    for txn in begun:
        assert await api.commit(txn.txnId) == pb.TxnStatus.SUCCESS
    before = (await root_of(api)).active_epoch
    opened.set()
    for txn in begun:
        await api.until_state(txn.txnId, pb.TxnState.COMMITTED)
    assert sum(asked) == segments * transactions
    assert max(asked) <= most
    assert (await root_of(api)).active_epoch == before + 2 * math.ceil(segments * transactions / most)
    assert await read_at(api, world, 0.5) == [b"%d" % number for number in range(transactions)]


async def test_a_check_that_lasts_longer_than_a_step_makes_progress(
    world: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segment stores are slow: a step that takes only what it has checked whole would begin again for ever."""
    segments, transactions, step_s = 10, 6, 4.0
    monkeypatch.setattr(limits, "WORKFLOW_STEP_DEADLINE_S", step_s)
    monkeypatch.setattr(limits, "TRANSACTION_CHECK_S", step_s / 2, raising=False)
    monkeypatch.setattr(limits, "TRANSACTION_CHECK_SEGMENTS", segments, raising=False)
    await api.setup(segments)
    begun = [await api.begin() for _ in range(transactions)]
    for number, txn in enumerate(begun):
        write(world, txn, b"%d" % number)
    await api.scaled(await api.current(), [(each / segments, (each + 1) / segments) for each in range(segments)])
    context = api.controller.services.core.context
    infos = context.segments.infos

    async def slow(names: Any) -> Any:
        await asyncio.sleep(len(names) / segments * step_s / 4)
        return await infos(names)

    monkeypatch.setattr(context.segments, "infos", slow)
    for txn in begun:
        assert await api.commit(txn.txnId) == pb.TxnStatus.SUCCESS
    async with asyncio.timeout(120):
        while await api.state(begun[-1].txnId) != pb.TxnState.COMMITTED:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await read_at(api, world, 0.5) == [b"%d" % number for number in range(transactions)]
