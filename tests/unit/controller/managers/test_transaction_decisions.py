"""Decisions about transactions that come at once, from several controllers, and with many that are open."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import msgspec
import pytest

from tailrace.common import limits
from tailrace.common.errors import OverloadedError, WriteConflictError
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import OpenShard, StreamRecord, TransactionRecord, decode, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transaction_ledger import digest, shard_keys
from tailrace.controller.workflows import driver, steps
from tailrace.controller.workflows.steps import advance
from tailrace.controller.workflows.transactions import expire, lease_of
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
TABLE = bucket_table(bucket_of(*KEY))
OK, FAILED = pb.TxnStatus.SUCCESS, pb.TxnStatus.FAILURE


def root_of(world: Any) -> StreamRecord:
    return decode(StreamRecord, world.metadata.dump_table(TABLE)[KEY.root], "test")


def opened_in(world: Any) -> set[bytes]:
    """All open transactions; the root counts exactly these."""
    rows = world.metadata.dump_table(TABLE)
    found = [
        item for key in shard_keys(KEY) if key in rows for item in decode(OpenShard, rows[key], "test").transactions
    ]
    root = root_of(world)
    assert (root.open_count, root.open_digest) == (len(found), digest(found))
    assert len(set(found)) == len(found)
    return set(found)


class Puts:
    """Counts the writes of the stream's root, and may hold them."""

    def __init__(self, world: Any) -> None:
        self.count = 0
        self.free = asyncio.Event()
        self.free.set()
        self._put = world.metadata.put
        world.metadata.put = self.put

    async def put(self, table: str, entries: Any) -> Any:
        if any(entry.key == KEY.root for entry in entries):
            self.count += 1
            await self.free.wait()
        return await self._put(table, entries)


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.001)


async def test_decisions_that_wait_share_a_change_in_their_order(api: Any, world: Any) -> None:
    await api.setup(2)
    begun = [(await api.begin()).txnId for _ in range(8)]
    puts = Puts(world)
    puts.free.clear()
    unknown = pb.TxnId(highBits=0, lowBits=999)
    order = random.Random(7).sample(begun, 8)
    calls = [api.begin(), *(api.commit(txn) for txn in order[:5]), api.commit(unknown), api.abort(order[0])]
    calls += [api.abort(order[5]), api.commit(order[5]), api.call("pingTransaction", ping(api, order[6]))]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: _reached(puts, 1))
    for _ in range(50):
        await asyncio.sleep(0)
    puts.free.set()
    answers = await asyncio.gather(*tasks)
    assert answers[1:10] == [OK] * 5 + [FAILED, FAILED, OK, FAILED]
    assert answers[10].status == pb.PingTxnStatus.OK
    for txn in order[:5]:
        await api.until_state(txn, pb.TxnState.COMMITTED)
    assert puts.count < 10, "eleven calls and their passes"
    done = await api.call("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=api.info))
    newest_first = [each.txnId for each in done.response if each.status == pb.TxnResponse.COMMITTED]
    assert newest_first[::-1] == order[:5], "in the order of the calls"


async def _reached(puts: Puts, count: int) -> bool:
    return puts.count >= count


def ping(api: Any, txn: pb.TxnId, lease_ms: int = 20_000) -> pb.PingTxnRequest:
    return pb.PingTxnRequest(streamInfo=api.info, txnId=txn, lease=lease_ms)


async def test_a_decision_that_fails_fails_alone(api: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.setup()
    first = (await api.begin()).txnId
    monkeypatch.setattr(limits, "TRANSACTIONS_OPEN_MAX", 3)
    answers = await asyncio.gather(*(api.begin() for _ in range(4)), api.commit(first), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(refused) == 2
    assert all(isinstance(error, OverloadedError) for error in refused)
    assert answers[4] == OK
    await api.until_state(first, pb.TxnState.COMMITTED)
    assert len(opened_in(world)) == 2


async def test_a_damaged_transaction_fails_its_own_calls_alone(api: Any, world: Any) -> None:
    await api.setup()
    good, bad = (await api.begin()).txnId, (await api.begin()).txnId
    item = KEY.transaction(bad.lowBits.to_bytes(16, "big"))
    await world.metadata.put(TABLE, [Put(item, b"damaged", UNCONDITIONAL)])
    other = type(api)(await world.start(seed=2))
    answers = await asyncio.gather(other.commit(bad), other.commit(good), return_exceptions=True)
    assert isinstance(answers[0], Exception)
    assert answers[1] == OK


async def test_the_root_stays_small_and_a_seal_aborts_all(api: Any, world: Any) -> None:
    await api.setup()
    await asyncio.gather(*(api.begin() for _ in range(300)))
    assert len(opened_in(world)) == 300
    rows = world.metadata.dump_table(TABLE)
    assert len(rows[KEY.root]) < 800
    assert max(len(rows[key]) for key in shard_keys(KEY)) < 200
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert opened_in(world) == set()
    assert world.segments.names("scope/stream/") == ["scope/stream/0.#epoch.0"]
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS
    left = [key for key in world.metadata.dump_table(TABLE) if key.startswith(KEY.root)]
    assert left == [KEY.root]


@pytest.mark.parametrize("sole", [True, False])
async def test_a_transaction_that_a_seal_aborts_while_it_begins_leaves_no_segment(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch, sole: bool
) -> None:
    api = make_api(await world.start(sole=sole))
    await api.setup(2)
    create, begun, sealed = world.segments.create_segment, asyncio.Event(), asyncio.Event()

    async def late(name: str, **fields: Any) -> None:
        begun.set()
        await sealed.wait()
        await create(name, **fields)

    monkeypatch.setattr(world.segments, "create_segment", late)
    beginning = asyncio.create_task(api.begin())
    await begun.wait()
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    sealed.set()
    with pytest.raises(WriteConflictError, match="aborted while it began"):
        await beginning
    assert not [name for name in world.segments.names("scope/stream/") if "#transaction" in name]


@pytest.mark.parametrize("sole", [True, False])
async def test_only_a_controller_beside_others_reads_what_it_wrote(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch, sole: bool
) -> None:
    api = make_api(await world.start(sole=sole))
    await api.setup(2)
    for _ in range(limits.TRANSACTION_SHARDS):
        await api.begin()  # then all shards are remembered
    get, reads = world.metadata.get, 0

    async def counting(table: str, keys: Any) -> Any:
        nonlocal reads
        reads += table == TABLE and any(b"/o/" in key for key in keys)
        return await get(table, keys)

    monkeypatch.setattr(world.metadata, "get", counting)
    for _ in range(10):
        await api.begin()
    assert reads == (0 if sole else 10)


async def test_what_another_controller_opened_is_decided_here_and_there(api: Any, world: Any) -> None:
    """This controller remembers the present root, and shards of before."""
    await api.setup()
    other = type(api)(await world.start(seed=2))
    own = (await api.begin()).txnId
    for _ in range(20):
        theirs = (await other.begin()).txnId
        await api.state(own)  # reads the root
        answers = await asyncio.gather(api.begin(), api.commit(theirs), other.commit(theirs))
        assert answers[1:] == [OK, OK]
        await other.until_state(theirs, pb.TxnState.COMMITTED)
        assert await other.abort(answers[0].txnId) == OK
        assert await api.commit(answers[0].txnId) == FAILED
    assert await other.commit(own) == OK
    await api.until_state(own, pb.TxnState.COMMITTED)
    assert opened_in(world) == set()


@pytest.mark.parametrize("earlier", [False, True], ids=["in shards", "in the root"])
async def test_leases_of_a_dead_controller_end(api: Any, world: Any, make_api: Any, earlier: bool) -> None:
    """Also of transactions that programs of before listed in the root."""
    config = {"transaction_lease_min_ms": 1, "idle_s": 0.05}
    dying = make_api(await world.start(seed=3, **config))
    await dying.setup()
    begun = [(await dying.begin(lease_ms=40)).txnId for _ in range(3)]
    await dying.controller.close()
    if earlier and opened_in(world):
        opened = tuple(sorted(opened_in(world)))
        root = msgspec.structs.replace(root_of(world), open_count=0, open_digest=0, open_transactions=opened)
        await world.metadata.put(TABLE, [Put(KEY.root, encode(root), UNCONDITIONAL)])
        await world.metadata.remove(TABLE, [(key, UNCONDITIONAL) for key in shard_keys(KEY)])
    survivor = make_api(await world.start(seed=4, **config))
    for txn in begun:
        await survivor.until_state(txn, pb.TxnState.ABORTED)
    assert opened_in(world) == set()
    assert not root_of(world).open_transactions


async def test_leases_that_end_together_end_by_few_changes_and_leave_turns_to_other_work(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"transaction_lease_min_ms": 1, "idle_s": 0.05}
    monkeypatch.setattr(limits, "TRANSACTION_DECISIONS_COMBINED_MAX", 10)
    done: list[int] = []
    """Leases that a change ended, and 0 for the turn of other work."""
    dies = False

    async def expired(context: Any, key: Any, seen: Any) -> Any:
        if not dies:
            return dict(seen)  # none ends before all have begun, however long that takes
        done.append(len(seen))
        return await expire(context, key, seen)

    async def advanced(*args: Any, **keywords: Any) -> Any:
        done.append(0)
        return await advance(*args, **keywords)

    monkeypatch.setattr(driver, "expire", expired)
    monkeypatch.setattr(steps, "advance", advanced)
    dying = make_api(await world.start(seed=7, **config))
    await dying.setup()
    begun = [(await dying.begin(lease_ms=300)).txnId for _ in range(30)]
    await dying.controller.close()
    dies = True
    done.clear()
    survivor = make_api(await world.start(seed=8, **config))
    for txn in begun:
        await survivor.until_state(txn, pb.TxnState.ABORTED)
    assert opened_in(world) == set()
    assert max(done) == 10
    assert sum(done) == 30
    assert all(0 in pair for pair in itertools.pairwise(done)), "other work has its turn between"


async def test_leases_end_of_what_another_live_controller_opened_and_left(world: Any, make_api: Any) -> None:
    """The mark of pending work names this controller, which has to find what the other one opened by the root."""
    config = {"transaction_lease_min_ms": 1}
    dying, living = [make_api(await world.start(seed=seed, **config)) for seed in (5, 6)]
    await dying.setup()
    kept = (await living.begin(lease_ms=60_000)).txnId
    left = (await dying.begin(lease_ms=30)).txnId
    await living.call("pingTransaction", ping(living, kept, 60_000))
    await dying.controller.close()
    for _ in range(2):
        again = (await living.begin(lease_ms=60_000)).txnId
        assert await living.abort(again) == OK
    await living.until_state(left, pb.TxnState.ABORTED)
    assert await living.state(kept) == pb.TxnState.OPEN
    assert await living.abort(kept) == OK


@pytest.mark.parametrize("steps_ms", [[0], [0, 0, 0], [-1, 0, 1, -500, 499, 1]])
async def test_a_renewal_differs_from_all_before_whatever_the_clocks_say(
    world: Any, make_api: Any, steps_ms: list[int]
) -> None:
    """The clock of the controller that is asked is behind by the time that has passed, or goes back by itself."""
    watching, asked = [make_api(await world.start(seed=seed)) for seed in (1, 2)]
    await watching.setup()
    txn = (await watching.begin()).txnId
    transaction_id = txn.lowBits.to_bytes(16, "big")
    context = watching.controller.services.core.context

    def stored() -> Any:
        record = decode(TransactionRecord, world.metadata.dump_table(TABLE)[KEY.transaction(transaction_id)], "txn")
        return lease_of(record, context.config)

    seen = [stored()]
    for step_ms in steps_ms:
        world.clock.ms += step_ms
        answer = await asked.call("pingTransaction", ping(asked, txn))
        assert answer.status == pb.PingTxnStatus.OK
        for before in seen:
            renewed = await expire(context, KEY, {transaction_id: before})
            assert renewed == {transaction_id: stored()}, "a renewed lease ended"
        seen.append(stored())
    assert await watching.state(txn) == pb.TxnState.OPEN


async def test_a_renewal_that_is_made_greater_may_end_with_the_longest_life(api: Any, world: Any) -> None:
    """What distinguishes renewals takes nothing from the time that a transaction may last."""
    await api.setup()
    txn = (await api.begin()).txnId
    record = TransactionRecord
    item = KEY.transaction(txn.lowBits.to_bytes(16, "big"))
    left_ms = decode(record, world.metadata.dump_table(TABLE)[item], "txn").max_expires_ms - world.clock.ms
    world.clock.ms += left_ms - 20_000
    for _ in range(3):
        assert (await api.call("pingTransaction", ping(api, txn))).status == pb.PingTxnStatus.OK
    world.clock.ms += 1
    answer = await api.call("pingTransaction", ping(api, txn))
    assert answer.status == pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED
