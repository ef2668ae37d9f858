"""Transactions: states, leases, order of commits, what is remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotAllowedError
from tailrace.common.names import segment_id
from tailrace.rpc import controller_pb2 as pb

HOUR_MS = 3_600_000

S = "scope/stream/"


def segments_of(api: Any, txn: pb.CreateTxnResponse) -> list[str]:
    suffix = f"#transaction.{txn.txnId.highBits:016x}{txn.txnId.lowBits:016x}"
    ids = [item.segmentId.segmentId for item in txn.activeSegments]
    return [f"{S}{identifier & 0xFFFFFFFF}.#epoch.{identifier >> 32}{suffix}" for identifier in ids]


async def test_segments_exist_and_carry_the_epoch_of_the_transaction(api: Any, world: Any) -> None:
    await api.setup(2)
    await api.scaled([0], [(0.0, 0.5)])
    begun = await api.begin()
    assert begun.txnId.highBits >> 32 == 1
    assert [item.segmentId.segmentId for item in begun.activeSegments] == [segment_id(2, 1), segment_id(1, 1)]
    assert [(item.minKey, item.maxKey) for item in begun.activeSegments] == [(0.0, 0.5), (0.5, 1.0)]
    for name in segments_of(api, begun):
        assert name in world.segments.segments


async def test_transactions_begun_at_the_same_time_are_different_ones(
    world: Any, make_api: Any, make_crash: Any
) -> None:
    # A crash that never comes: its calls give way to each other, as calls over a network do.
    api = make_api(await world.start(make_crash()))
    await api.setup()
    count = 2 * limits.METADATA_CONFLICTS_MAX  # so many that each of them could lose more often than it tries
    begun = await asyncio.gather(*(api.begin() for _ in range(count)))
    assert len({(txn.txnId.highBits, txn.txnId.lowBits) for txn in begun}) == count
    committed = await asyncio.gather(*(api.commit(txn.txnId) for txn in begun))
    assert committed == [pb.TxnStatus.SUCCESS] * count


async def test_commit_merges_into_the_real_segments_in_the_order_of_the_calls(api: Any, world: Any) -> None:
    await api.setup(2)
    await api.scaled([0], [(0.0, 0.5)])
    begun = [await api.begin() for _ in range(3)]
    for number, txn in enumerate(begun):
        for name in segments_of(api, txn):
            world.segments.append(name, b"%d" % number)
    for number in (2, 0, 1):
        assert await api.commit(begun[number].txnId) == pb.TxnStatus.SUCCESS
    for txn in begun:
        await api.until_state(txn.txnId, pb.TxnState.COMMITTED)
    assert world.segments.segments[f"{S}2.#epoch.1"].pieces == [b"2", b"0", b"1"]
    assert world.segments.segments[f"{S}1.#epoch.0"].pieces == [b"2", b"0", b"1"]
    assert not [name for name in world.segments.segments if "#transaction" in name]
    assert await api.commit(begun[0].txnId) == pb.TxnStatus.SUCCESS
    assert await api.abort(begun[0].txnId) == pb.TxnStatus.FAILURE


async def test_abort_deletes_the_segments(api: Any, world: Any) -> None:
    await api.setup(2)
    begun = await api.begin()
    assert await api.state(begun.txnId) == pb.TxnState.OPEN
    assert await api.abort(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.ABORTED)
    assert not [name for name in world.segments.segments if "#transaction" in name]
    assert await api.abort(begun.txnId) == pb.TxnStatus.SUCCESS
    assert await api.commit(begun.txnId) == pb.TxnStatus.FAILURE


async def test_unknown_transactions(api: Any) -> None:
    await api.setup()
    unknown = pb.TxnId(highBits=0, lowBits=99)
    assert await api.state(unknown) == pb.TxnState.UNKNOWN
    assert await api.commit(unknown) == pb.TxnStatus.FAILURE
    assert await api.abort(unknown) == pb.TxnStatus.FAILURE
    ping = pb.PingTxnRequest(streamInfo=api.info, txnId=unknown, lease=20_000)
    assert (await api.call("pingTransaction", ping)).status == pb.PingTxnStatus.UNKNOWN
    api.stream = "other"
    assert await api.commit(unknown) == pb.TxnStatus.STREAM_NOT_FOUND


@pytest.mark.parametrize("lease_ms", [0, -1, 9_999, 600_001])
async def test_leases_out_of_bounds_are_refused_with_the_bounds(api: Any, lease_ms: int) -> None:
    await api.setup()
    with pytest.raises(BadRequestError, match=r"lease is .*10000 to 600000"):
        await api.begin(lease_ms)


@pytest.mark.parametrize("lease_ms", [10_000, 600_000])
async def test_both_bounds_of_a_lease_are_allowed(api: Any, lease_ms: int) -> None:
    await api.setup()
    assert (await api.begin(lease_ms)).activeSegments


async def test_pings_extend_until_the_longest_life(api: Any, world: Any) -> None:
    await api.setup()
    begun = await api.begin(10_000)

    async def ping(lease_ms: int) -> int:
        request = pb.PingTxnRequest(streamInfo=api.info, txnId=begun.txnId, lease=lease_ms)
        return int((await api.call("pingTransaction", request)).status)

    assert await ping(600_001) == pb.PingTxnStatus.LEASE_TOO_LARGE
    assert await ping(10_000) == pb.PingTxnStatus.OK
    world.clock.ms += 10_000 * limits.TRANSACTION_LEASES_MAX
    assert await ping(10_000) == pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED
    await api.commit(begun.txnId)
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert await ping(10_000) == pb.PingTxnStatus.COMMITTED


async def test_a_lease_that_ends_aborts(world: Any, make_api: Any) -> None:
    controller = await world.start(transaction_lease_min_ms=10)
    api = make_api(controller)
    await api.setup()
    begun = await api.begin(500)
    kept = await api.begin(60_000)
    world.clock.ms += 500
    await api.until_state(begun.txnId, pb.TxnState.ABORTED)
    assert await api.state(kept.txnId) == pb.TxnState.OPEN
    ping = pb.PingTxnRequest(streamInfo=api.info, txnId=begun.txnId, lease=20)
    assert (await api.call("pingTransaction", ping)).status == pb.PingTxnStatus.ABORTED


async def test_a_lease_that_was_extended_elsewhere_does_not_end(world: Any, make_api: Any) -> None:
    first = make_api(await world.start(transaction_lease_min_ms=10))
    second = make_api(await world.start(seed=2, transaction_lease_min_ms=10))
    await first.setup()
    begun = await first.begin(500)
    ping = pb.PingTxnRequest(streamInfo=first.info, txnId=begun.txnId, lease=15_000)
    assert (await second.call("pingTransaction", ping)).status == pb.PingTxnStatus.OK
    later = await first.begin(500)
    world.clock.ms += 500
    await first.until_state(later.txnId, pb.TxnState.ABORTED)  # so the timer of the earlier one has fired too
    assert await first.state(begun.txnId) == pb.TxnState.OPEN


@pytest.mark.parametrize("stepped_ms", [0, -2 * HOUR_MS, 2 * HOUR_MS], ids=["steady", "back", "ahead"])
async def test_leases_end_after_a_restart_too(world: Any, make_api: Any, stepped_ms: int) -> None:
    first = await world.start(transaction_lease_min_ms=10)
    api = make_api(first)
    await api.setup()
    begun, kept = await api.begin(500), await api.begin(60_000)
    await first.close()
    world.clock.ms += stepped_ms
    again = make_api(await world.start(seed=2))
    await again.until_state(begun.txnId, pb.TxnState.ABORTED)
    assert await again.state(kept.txnId) == pb.TxnState.OPEN


@pytest.mark.parametrize("stepped_ms", [-2 * HOUR_MS, 2 * HOUR_MS], ids=["back", "ahead"])
async def test_a_clock_that_steps_changes_no_lease(world: Any, make_api: Any, stepped_ms: int) -> None:
    api = make_api(await world.start(transaction_lease_min_ms=10))
    await api.setup()
    begun, kept = await api.begin(500), await api.begin(60_000)
    world.clock.ms += stepped_ms
    await api.until_state(begun.txnId, pb.TxnState.ABORTED)
    assert await api.state(kept.txnId) == pb.TxnState.OPEN
    ping = pb.PingTxnRequest(streamInfo=api.info, txnId=kept.txnId, lease=500)
    assert (await api.call("pingTransaction", ping)).status == pb.PingTxnStatus.OK
    await api.until_state(kept.txnId, pb.TxnState.ABORTED)


async def test_a_controller_whose_clock_is_ahead_ends_no_lease_that_another_one_renews(
    world: Any, make_api: Any
) -> None:
    """It adopts the stream, and sees each renewal by the clock of the other one, hours in the past."""
    settings = {"transaction_lease_min_ms": 10}
    first = make_api(await world.start(**settings))
    await first.setup()
    begun = await first.begin(60_000)
    world.clock = type(world.clock)()
    world.clock.ms += 2 * HOUR_MS
    second = make_api(await world.start(seed=2, **settings))
    short = await second.begin(500)
    await second.until_state(short.txnId, pb.TxnState.ABORTED)  # so the second one watches leases of the stream
    assert await second.state(begun.txnId) == pb.TxnState.OPEN


async def test_sealing_aborts_what_is_open_and_lets_commits_end(api: Any, world: Any) -> None:
    await api.setup()
    committed, left = await api.begin(), await api.begin()
    world.segments.append(segments_of(api, committed)[0], b"kept")
    world.segments.append(segments_of(api, left)[0], b"lost")
    await api.commit(committed.txnId)
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.state(committed.txnId) == pb.TxnState.COMMITTED
    assert await api.state(left.txnId) == pb.TxnState.ABORTED
    assert world.segments.segments[f"{S}0.#epoch.0"].pieces == [b"kept"]
    with pytest.raises(NotAllowedError):
        await api.begin()


async def test_completed_transactions_are_listed_newest_first_and_forgotten_later(
    api: Any, world: Any, wait_until: Any
) -> None:
    await api.setup()
    count = limits.COMPLETED_TRANSACTIONS_PER_CHUNK + 40
    begun = [await api.begin() for _ in range(count)]
    for number, txn in enumerate(begun):
        await (api.abort if number % 2 else api.commit)(txn.txnId)
    for txn in begun:
        await api.until_state(txn.txnId, pb.TxnState.ABORTED if begun.index(txn) % 2 else pb.TxnState.COMMITTED)
    request = pb.ListCompletedTxnRequest(streamInfo=api.info)
    listed = (await api.call("listCompletedTransactions", request)).response
    assert len(listed) == count
    statuses = {item.txnId.lowBits: item.status for item in listed}
    assert statuses == {
        txn.txnId.lowBits: pb.TxnResponse.ABORTED if number % 2 else pb.TxnResponse.COMMITTED
        for number, txn in enumerate(begun)
    }
    world.clock.ms += limits.TRANSACTION_REMEMBERED_MS + 1
    assert await api.state(begun[0].txnId) == pb.TxnState.UNKNOWN
    last = await api.begin()
    await api.abort(last.txnId)
    await api.until_state(last.txnId, pb.TxnState.ABORTED)
    await api.begin()

    async def forgotten() -> bool:
        return len((await api.call("listCompletedTransactions", request)).response) < count

    await wait_until(forgotten)


async def test_ids_never_repeat_in_a_stream_that_is_created_again(api: Any) -> None:
    await api.setup()
    first = await api.begin()
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    await api.setup()
    second = await api.begin()
    assert second.txnId.lowBits > first.txnId.lowBits
    assert await api.state(first.txnId) == pb.TxnState.UNKNOWN


async def test_transactions_begun_at_the_same_time_get_different_ids(api: Any) -> None:
    await api.setup()
    begun = await asyncio.gather(*(api.begin() for _ in range(20)))
    assert len({txn.txnId.lowBits for txn in begun}) == 20


async def test_pings_that_come_together_are_one_change(api: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.setup()
    begun = [await api.begin() for _ in range(40)]
    ended = begun.pop()
    await api.call("abortTransaction", pb.TxnRequest(streamInfo=api.info, txnId=ended.txnId))
    await api.until_state(ended.txnId, pb.TxnState.ABORTED)
    puts, put = 0, world.metadata.put

    async def counted(*arguments: Any) -> Any:
        nonlocal puts
        puts += 1
        await asyncio.sleep(0.001)
        return await put(*arguments)

    monkeypatch.setattr(world.metadata, "put", counted)

    async def ping(txn: pb.TxnId, lease_ms: int) -> int:
        request = pb.PingTxnRequest(streamInfo=api.info, txnId=txn, lease=lease_ms)
        return int((await api.call("pingTransaction", request)).status)

    wanted = [(each.txnId, pb.PingTxnStatus.OK, 30_000) for each in begun]
    wanted.append((begun[0].txnId, pb.PingTxnStatus.OK, 40_000))
    wanted.append((ended.txnId, pb.PingTxnStatus.ABORTED, 30_000))
    wanted.append((pb.TxnId(highBits=5, lowBits=6), pb.PingTxnStatus.UNKNOWN, 30_000))
    found = await asyncio.gather(*(ping(txn, lease_ms) for txn, _, lease_ms in wanted))
    assert found == [status for _, status, _ in wanted]
    assert puts <= 3, "a first one alone, the others together, and a heartbeat"
