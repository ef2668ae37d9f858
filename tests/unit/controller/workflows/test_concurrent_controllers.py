"""Two controllers work on one stream while calls and answers get lost: transactions stay whole and in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from harness.interception import EachSegment, Intercepted
from tailrace.common.errors import ConnectionLostError, TailraceError
from tailrace.common.names import segment_epoch, segment_number
from tailrace.common.ranges import KeyRange, covers_exactly
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

S = "scope/stream/"
ROUNDS = 6
LEASE_MS = 100


class HeldTables:
    """The third table that is created waits until ``let_go`` is set."""

    def __init__(self) -> None:
        self.waits, self.let_go = asyncio.Event(), asyncio.Event()
        self._count = 0

    def wrap(self, target: Any) -> Any:
        """The store with that container."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Any) -> Any:
        if name == "create_table" and "_kvtable" in arguments[0]:
            self._count += 1
            if self._count > 2:
                self.waits.set()
                await self.let_go.wait()
        return await call()


@pytest.mark.parametrize("and_scope", [False, True], ids=["the table", "also its scope"])
async def test_a_table_that_is_deleted_while_it_is_created_leaves_nothing(
    world: Any, make_api: Any, and_scope: bool
) -> None:
    held = HeldTables()
    one, other = make_api(await world.start(held)), make_api(await world.start(seed=2))
    await one.call("createScope", pb.ScopeInfo(scope="scope"))
    config = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=8, primaryKeyLength=4)
    creating = asyncio.create_task(one.call("createKeyValueTable", config))
    await held.waits.wait()
    await other.call("deleteKeyValueTable", pb.KeyValueTableInfo(scope="scope", kvtName="table"))
    if and_scope:
        deleted = await other.call("deleteScope", pb.ScopeInfo(scope="scope"))
        assert deleted.status == pb.DeleteScopeStatus.SUCCESS
    held.let_go.set()
    await asyncio.gather(creating, return_exceptions=True)
    async with asyncio.timeout(120):
        while world.segments.names("scope/table_kvtable"):  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.01)


class Flaky:
    """Loses some calls, and the answers of some others, while `chance` is above 0."""

    def __init__(self, chance: random.Random) -> None:
        self.share = 0.0
        self._chance = chance

    def wrap(self, target: Any) -> Any:
        """The store behind a bad network."""
        return _FlakyStore(target, self)

    async def lose(self) -> bool:
        """Whether this message is lost; other tasks run meanwhile."""
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        return self._chance.random() < self.share


class _FlakyStore(EachSegment):
    def __init__(self, target: Any, flaky: Flaky) -> None:
        self._target = target
        self._flaky = flaky

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any, **keywords: Any) -> Any:
            if await self._flaky.lose():
                raise ConnectionLostError("call lost")
            if name == "merge_batch":
                await asyncio.sleep(0.003)  # slow enough for several commits to come together in a batch
            result = await method(*args, **keywords)
            if await self._flaky.lose():
                raise ConnectionLostError("answer lost")
            return result

        return call


class Client:
    """Runs transactions against one controller and records its replies."""

    def __init__(self, api: Any, world: Any, chance: random.Random, outcomes: dict[bytes, str]) -> None:
        self._api = api
        self._world = world
        self._chance = chance
        self._outcomes = outcomes

    async def run(self, name: str) -> None:
        """Some transactions, one after the other."""
        for number in range(ROUNDS):
            event = f"<{name}.{number}>".encode()
            begun = await self._begin()
            self._outcomes[event] = "unknown"
            with contextlib.suppress(TailraceError):
                await self._one(event, begun)

    async def _begin(self) -> Any:
        """Try again as clients do."""
        while True:
            try:
                return await self._api.begin(LEASE_MS)
            except TailraceError:
                await asyncio.sleep(0.001)

    async def _one(self, event: bytes, begun: Any) -> None:
        suffix = f"#transaction.{begun.txnId.highBits:016x}{begun.txnId.lowBits:016x}"
        for item in begun.activeSegments:
            identifier = item.segmentId.segmentId
            own = f"{S}{segment_number(identifier)}.#epoch.{segment_epoch(identifier)}{suffix}"
            self._world.segments.append(own, event)
        if self._chance.random() < 0.3:
            if await self._api.abort(begun.txnId) == pb.TxnStatus.SUCCESS:
                self._outcomes[event] = "aborted"
        elif await self._api.commit(begun.txnId) == pb.TxnStatus.SUCCESS:
            self._outcomes[event] = "committed"
        else:
            self._outcomes[event] = "aborted"  # the lease was over


async def scale_now_and_then(api: Any, chance: random.Random) -> None:
    for _ in range(ROUNDS):
        try:
            found = await api.call("getCurrentSegments", api.info)
            chosen = chance.choice(list(found.segmentRanges))
            middle = (chosen.minKey + chosen.maxKey) / 2
            await api.scale([chosen.segmentId.segmentId], [(chosen.minKey, middle), (middle, chosen.maxKey)])
        except TailraceError:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01 * chance.random())


async def tick(clock: Any) -> None:
    """Wall-clock time goes on as the loop's does."""
    loop = asyncio.get_running_loop()
    begun_s, begun_ms = loop.time(), clock.ms
    while True:
        clock.ms = begun_ms + int((loop.time() - begun_s) * 1000)
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("case", range(8))
async def test_transactions_stay_whole_and_in_order(
    case: int, world: Any, make_api: Any, wait_until: Any, test_seed: int
) -> None:
    chance = random.Random(test_seed + case)
    flaky = Flaky(chance)
    settings = {"blocking_deadline_s": 5.0, "transaction_lease_min_ms": 10}
    apis = [make_api(await world.start(flaky, seed=number, **settings)) for number in (1, 2)]
    ticking = asyncio.ensure_future(tick(world.clock))
    await apis[0].setup(2)
    flaky.share = 0.01
    outcomes: dict[bytes, str] = {}
    clients = [Client(api, world, chance, outcomes) for api in apis * 4]
    await asyncio.gather(
        *(client.run(str(number)) for number, client in enumerate(clients)),
        *(scale_now_and_then(api, chance) for api in apis),
    )
    flaky.share = 0.0
    key = StreamKey("scope", "stream")
    store = apis[0].controller.services.core.context.store

    async def is_settled() -> bool:
        root = await store.load(key)
        return not (root.commit_queue or root.commit_batch or root.abort_queue)

    await wait_until(is_settled, 10_000)
    assert (await apis[0].call("sealStream", apis[0].info)).status == pb.UpdateStreamStatus.SUCCESS
    check_events(world, outcomes)
    root = await store.load(key)
    epochs = await store.epochs(key, root, 0, root.active_epoch)
    assert [epoch.epoch for epoch in epochs] == list(range(len(epochs)))
    for epoch in epochs:
        assert covers_exactly([KeyRange(segment.low, segment.high) for segment in epoch.segments])
        for segment in epoch.segments:
            assert f"{S}{segment.number}.#epoch.{segment.epoch}" in world.segments.segments
    assert not [name for name in world.segments.segments if "#transaction" in name]
    assert sum(outcome == "committed" for outcome in outcomes.values()) > ROUNDS
    ticking.cancel()


def check_events(world: Any, outcomes: dict[bytes, str]) -> None:
    """Each transaction is in all segments of an epoch or in none, once, and in the same order everywhere."""
    order: dict[bytes, dict[bytes, int]] = {}
    places: dict[bytes, int] = {}
    for name in world.segments.names(S):
        pieces = world.segments.segments[name].pieces
        assert len(set(pieces)) == len(pieces), f"an event twice in {name}"
        for position, event in enumerate(pieces):
            places[event] = places.get(event, 0) + 1
            for earlier in pieces[:position]:
                order.setdefault(earlier, {})[event] = 1
                assert earlier not in order.get(event, {}), f"{earlier!r} and {event!r} are in both orders"
    for event, outcome in outcomes.items():
        assert (event in places) == (outcome == "committed") or outcome == "unknown", f"{event!r} was {outcome}"
        assert places.get(event, 2) >= 2, f"{event!r} is in one segment only"
