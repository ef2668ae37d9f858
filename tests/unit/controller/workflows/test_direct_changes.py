"""Segments of transactions, and those they merge into, are sealed, truncated or deleted without the controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.metadata.records import StreamRecord, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

S = "scope/stream/"
FIRST, SECOND = f"{S}0.#epoch.0", f"{S}1.#epoch.0"
SEGMENTS = 2
TURNS = 30_000
"""How often to look for a condition: for half a minute."""
CALLS_MAX = 60
"""More calls than a commit makes."""


def own_segments(txn: pb.TxnId) -> list[str]:
    """Return the names of the transaction's segments."""
    suffix = f"#transaction.{txn.highBits:016x}{txn.lowBits:016x}"
    return [f"{name}{suffix}" for name in (FIRST, SECOND)]


async def opened(api: Any, world: Any, data: bytes) -> pb.TxnId:
    """Begin a transaction with `data` in each segment."""
    txn: pb.TxnId = (await api.begin()).txnId
    for name in own_segments(txn):
        world.segments.append(name, data)
    return txn


async def seal_and_delete(api: Any) -> None:
    """Every stream must come to its end, whatever was done to its segments."""
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS


def content(world: Any) -> list[bytes | None]:
    """Return the bytes of both segments; None for one that is missing."""
    found = [world.segments.segments.get(name) for name in (FIRST, SECOND)]
    return [None if segment is None else b"".join(segment.pieces) for segment in found]


def errors(logs: list[Any], txn: pb.TxnId) -> list[str]:
    """Return what error logs say about a transaction."""
    identity = f"{txn.lowBits:012x}"
    return [
        f"{entry['event']}: {entry['reason']}"
        for entry in logs
        if entry["log_level"] == "error" and str(entry.get("transaction", "")).endswith(identity)
    ]


def stored_root(world: Any) -> StreamRecord:
    """Return the stream's root, without a call that a crash would count."""
    key = StreamKey("scope", "stream")
    return decode(StreamRecord, world.metadata.dump_table(key.table)[key.root], "root")


async def is_settled(world: Any) -> bool:
    """Return whether all decided transactions have ended."""
    root = stored_root(world)
    return not (root.commit_queue or root.commit_batch or root.abort_queue)


Damage = Callable[[Any, pb.TxnId], Awaitable[None]]


async def seal_parent(world: Any, txn: pb.TxnId) -> None:
    await world.segments.seal_segment(SECOND)


async def delete_parent(world: Any, txn: pb.TxnId) -> None:
    await world.segments.delete_segment(SECOND)


async def truncate_own(world: Any, txn: pb.TxnId) -> None:
    await world.segments.truncate_segment(own_segments(txn)[1], 1)


async def delete_own(world: Any, txn: pb.TxnId) -> None:
    await world.segments.delete_segment(own_segments(txn)[1])


async def delete_all_own(world: Any, txn: pb.TxnId) -> None:
    for name in own_segments(txn):
        await world.segments.delete_segment(name)


DAMAGES: list[tuple[Damage, str, bool]] = [
    (seal_parent, f"{SECOND} is sealed", True),
    (delete_parent, f"{SECOND} does not exist", True),
    (truncate_own, "was truncated", False),
    (delete_own, "does not exist", False),
    (delete_all_own, "does not exist", False),
]
IDS = [damage.__name__ for damage, _, _ in DAMAGES]


@pytest.mark.parametrize(("damage", "reason", "hits_all"), DAMAGES, ids=IDS)
async def test_a_transaction_that_cannot_be_committed_whole_is_aborted(
    damage: Damage, reason: str, hits_all: bool, api: Any, world: Any
) -> None:
    await api.setup(SEGMENTS)
    txns = [await opened(api, world, b"<%d>" % number) for number in range(3)]
    await damage(world, txns[1])
    with capture_logs() as logs:
        for txn in txns:
            assert await api.commit(txn) == pb.TxnStatus.SUCCESS
        await api.until_state(txns[1], pb.TxnState.ABORTED)
        for txn in (txns[0], txns[2]):
            await api.until_state(txn, pb.TxnState.ABORTED if hits_all else pb.TxnState.COMMITTED)
    assert [reason in said for said in errors(logs, txns[1])] == [True]
    assert bool(errors(logs, txns[0])) == hits_all
    if not hits_all:
        assert content(world) == [b"<0><2>", b"<0><2>"]
    assert not any(content(world)) or not hits_all
    assert not [name for name in world.segments.names(S) if "#transaction" in name]
    assert await api.commit(txns[1]) == pb.TxnStatus.FAILURE
    await seal_and_delete(api)


@pytest.mark.parametrize("damage", [seal_parent, delete_parent, truncate_own, delete_own])
async def test_a_stream_whose_segments_were_changed_directly_ends(damage: Damage, api: Any, world: Any) -> None:
    await api.setup(SEGMENTS)
    await damage(world, await opened(api, world, b"open"))
    await seal_and_delete(api)


@pytest.mark.parametrize("change", ["seal_segment", "delete_segment"])
async def test_a_stream_whose_segment_takes_no_policy_can_be_updated_and_ended(
    change: str, api: Any, world: Any
) -> None:
    await api.setup(SEGMENTS)
    await getattr(world.segments, change)(FIRST)
    policy = pb.ScalingPolicy(
        scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=7, scaleFactor=2, minNumSegments=SEGMENTS
    )
    wanted = pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy)
    assert (await api.call("updateStream", wanted)).status == pb.UpdateStreamStatus.SUCCESS
    assert world.segments.segments[SECOND].target_rate == 7
    await seal_and_delete(api)


async def test_a_sealed_segment_can_be_truncated_scaled_and_ended(api: Any, world: Any) -> None:
    await api.setup(SEGMENTS)
    for name in (FIRST, SECOND):
        world.segments.append(name, b"1234")
        await world.segments.seal_segment(name)
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 2, 1: 3})
    assert (await api.call("truncateStream", cut)).status == pb.UpdateStreamStatus.SUCCESS
    assert [world.segments.segments[name].start_offset for name in (FIRST, SECOND)] == [2, 3]
    assert len(await api.scaled([0, 1], [(0.0, 0.25), (0.25, 1.0)])) == 2
    await seal_and_delete(api)


class Between:
    """Changes segments directly just before the first merge of a pass, after the check."""

    def __init__(self, change: Callable[[], Awaitable[None]]) -> None:
        self._change: Callable[[], Awaitable[None]] | None = change

    def wrap(self, target: Any) -> Any:
        """The store with the change in front of its merges."""
        return _Changing(target, self)

    async def merge_comes(self) -> None:
        """Make the change once."""
        change, self._change = self._change, None
        if change is not None:
            await change()


class _Changing:
    def __init__(self, target: Any, between: Between) -> None:
        self._target = target
        self._between = between

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any, **keywords: Any) -> Any:
            if name == "merge_batch":
                await self._between.merge_comes()
            return await method(*args, **keywords)

        return call


async def commit_with_change(
    world: Any, make_api: Any, wait_until: Any, change: Any
) -> tuple[Any, list[pb.TxnId], list[Any]]:
    """Commit three transactions and make `change` between check and merge; return when all have ended."""
    txns: list[pb.TxnId] = []

    async def late() -> None:
        await change(world, txns)

    api = make_api(await world.start(Between(late)))
    await api.setup(SEGMENTS)
    txns.extend([await opened(api, world, b"<%d>" % number) for number in range(3)])
    with capture_logs() as logs:
        assert await asyncio.gather(*(api.commit(txn) for txn in txns)) == [pb.TxnStatus.SUCCESS] * 3
        await wait_until(lambda: is_settled(world), TURNS)
    return api, txns, logs


async def test_a_change_after_the_check_that_leaves_nothing_to_merge_aborts(
    world: Any, make_api: Any, wait_until: Any
) -> None:
    async def change(world: Any, txns: list[pb.TxnId]) -> None:
        await world.segments.seal_segment(FIRST)
        await world.segments.delete_segment(SECOND)

    api, txns, logs = await commit_with_change(world, make_api, wait_until, change)
    assert [await api.state(txn) for txn in txns] == [pb.TxnState.ABORTED] * 3
    assert all(errors(logs, txn) for txn in txns)
    assert content(world) == [b"", None]
    assert not [name for name in world.segments.names(S) if "#transaction" in name]
    await seal_and_delete(api)


@pytest.mark.parametrize("deleted", [False, True], ids=["sealed", "deleted"])
async def test_a_commit_that_has_begun_ends_when_a_segment_is_gone(
    deleted: bool, world: Any, make_api: Any, wait_until: Any
) -> None:
    """What can be merged is merged; the rest is lost, which the log says."""

    async def change(world: Any, txns: list[pb.TxnId]) -> None:
        await (world.segments.delete_segment(SECOND) if deleted else world.segments.seal_segment(SECOND))

    api, txns, logs = await commit_with_change(world, make_api, wait_until, change)
    assert [await api.state(txn) for txn in txns] == [pb.TxnState.COMMITTED] * 3
    assert all("part of a committed transaction is lost" in errors(logs, txn)[0] for txn in txns)
    assert content(world) == [b"<0><1><2>", None if deleted else b""]
    assert not [name for name in world.segments.names(S) if "#transaction" in name]
    await seal_and_delete(api)


async def test_a_segment_truncated_after_the_check_delays_no_other_transaction(
    world: Any, make_api: Any, wait_until: Any
) -> None:
    async def change(world: Any, txns: list[pb.TxnId]) -> None:
        for name in own_segments(txns[0]):
            await world.segments.truncate_segment(name, 1)
        await world.segments.truncate_segment(own_segments(txns[1])[1], 1)

    api, txns, logs = await commit_with_change(world, make_api, wait_until, change)
    states = [await api.state(txn) for txn in txns]
    assert states == [pb.TxnState.ABORTED, pb.TxnState.COMMITTED, pb.TxnState.COMMITTED]
    assert content(world) == [b"<1><2>", b"<2>"]
    assert errors(logs, txns[0])
    assert errors(logs, txns[1])
    assert not errors(logs, txns[2])
    assert not [name for name in world.segments.names(S) if "#transaction" in name]
    await seal_and_delete(api)


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("damage", [None, seal_parent, truncate_own, delete_own])
async def test_the_state_is_the_same_after_a_crash_at_any_call(
    damage: Damage | None, after_effect: bool, world: Any, make_api: Any, make_crash: Any, wait_until: Any
) -> None:
    """A commit cut short after a merge finds its sources missing, and must not take them for deleted ones."""
    hits_all = damage is seal_parent
    ended = 0
    for at_call in range(1, CALLS_MAX):
        fresh = type(world)()
        try:
            crash = make_crash(after_effect=after_effect)
            api = make_api(await fresh.start(crash))
            await api.setup(SEGMENTS)
            txns = [await opened(api, fresh, b"<%d>" % number) for number in range(3)]
            if damage is not None:
                await damage(fresh, txns[1])
            crash.at_call = crash.calls + at_call
            if not await commits_until_crash(api, fresh, txns, crash):
                ended += 1
            await api.controller.close()
            api = make_api(await fresh.start(seed=2))
            for txn in txns:
                await api.commit(txn)
            expected = [damage is not None and (hits_all or number == 1) for number in range(3)]
            for txn, aborted in zip(txns, expected, strict=True):
                await api.until_state(txn, pb.TxnState.ABORTED if aborted else pb.TxnState.COMMITTED)
            found = content(fresh)
            assert found[0] == found[1], f"half committed after a crash at call {at_call}: {found}"
            assert [b"<%d>" % number in (found[0] or b"") for number in range(3)] == [not item for item in expected]
            assert not [name for name in fresh.segments.names(S) if "#transaction" in name]

            async def is_idle(fresh: Any = fresh) -> bool:
                return not fresh.metadata.dump_table(PENDING_TABLE)

            await wait_until(is_idle)
            await seal_and_delete(api)
        finally:
            await fresh.close()
        if ended:
            return
    raise AssertionError(f"the commits make more than {CALLS_MAX} calls")


async def commits_until_crash(api: Any, world: Any, txns: list[pb.TxnId], crash: Any) -> bool:
    """Commit until all have ended, or the controller crashed; return whether it did."""

    async def act() -> None:
        for txn in txns:
            await api.commit(txn)
        while not await is_settled(world):  # noqa: ASYNC110
            await asyncio.sleep(0)

    acting = asyncio.ensure_future(act())
    while not acting.done() and not crash.crashed:  # noqa: ASYNC110
        await asyncio.sleep(0)
    acting.cancel()
    with contextlib.suppress(asyncio.CancelledError, TailraceError):
        await acting
    return bool(crash.crashed)


async def test_the_check_makes_one_call_for_each_segment(world: Any, make_api: Any, counting: Any) -> None:
    api = make_api(await world.start(counting))
    await api.setup(SEGMENTS)
    txn = await opened(api, world, b"data")
    counting.calls.clear()
    await api.commit(txn)
    await api.until_state(txn, pb.TxnState.COMMITTED)
    print(f"calls of one commit: {counting.calls}")
    assert counting.calls["segment_info"] == 2 * SEGMENTS
    assert counting.calls["merge_batch"] == SEGMENTS


async def commit_during_the_check(world: Any, api: Any, txns: list[pb.TxnId]) -> None:
    """Commit the first one, and the others as soon as its pass looks at a segment."""
    find, late = world.segments.segment_info, txns[1:]

    async def segment_info(name: str) -> Any:
        while late:
            await api.commit(late.pop(0))
        return await find(name)

    world.segments.segment_info = segment_info
    await api.commit(txns[0])


@pytest.mark.parametrize(("merges", "passes"), [(1, 3), (2 * SEGMENTS, 2), (3 * SEGMENTS, 1)])
async def test_a_pass_merges_a_bounded_number_of_segments(
    merges: int,
    passes: int,
    world: Any,
    make_api: Any,
    wait_until: Any,
    counting: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_COMMIT_MERGES_MAX", merges)
    api = make_api(await world.start(counting))
    await api.setup(SEGMENTS)
    txns = [await opened(api, world, b"<%d>" % number) for number in range(3)]
    await commit_during_the_check(world, api, txns)
    await wait_until(lambda: is_settled(world), TURNS)
    assert [await api.state(txn) for txn in txns] == [pb.TxnState.COMMITTED] * 3
    assert content(world) == [b"<0><1><2>"] * SEGMENTS
    assert counting.calls["merge_batch"] == passes * SEGMENTS


async def test_a_pass_that_rolls_over_a_scale_takes_all_that_wait(
    world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such pass adds two epochs."""
    monkeypatch.setattr(limits, "TRANSACTION_COMMIT_MERGES_MAX", 1)
    api = make_api(await world.start())
    await api.setup(SEGMENTS)
    txns = [await opened(api, world, b"<%d>" % number) for number in range(3)]
    await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)])
    await commit_during_the_check(world, api, txns)
    await wait_until(lambda: is_settled(world), TURNS)
    assert [await api.state(txn) for txn in txns] == [pb.TxnState.COMMITTED] * 3
    assert stored_root(world).active_epoch == 1 + 2


async def test_transactions_that_come_during_the_check_are_taken_with_it(
    world: Any, make_api: Any, wait_until: Any, counting: Any
) -> None:
    """They are checked too."""
    api = make_api(await world.start(counting))
    await api.setup(SEGMENTS)
    txns = [await opened(api, world, b"<%d>" % number) for number in range(3)]
    await delete_own(world, txns[1])
    await commit_during_the_check(world, api, txns)
    await wait_until(lambda: is_settled(world), TURNS)
    states = [await api.state(txn) for txn in txns]
    assert states == [pb.TxnState.COMMITTED, pb.TxnState.ABORTED, pb.TxnState.COMMITTED]
    assert content(world) == [b"<0><2>", b"<0><2>"]
    assert counting.calls["merge_batch"] == SEGMENTS, "more than one pass"
