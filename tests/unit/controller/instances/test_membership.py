"""Live controllers see each other, share the buckets, and adopt what a dead one left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.controller.instances.buckets import assign
from tailrace.controller.instances.membership import Membership
from tailrace.controller.metadata.metadata_store import (
    CONTROLLERS_TABLE,
    PENDING_TABLE,
    MemoryMetadataStore,
    bucket_of,
)
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import InstanceRecord, PendingRecord, decode, encode
from tailrace.rpc import controller_pb2 as pb

LAPSE_S = 5.0
BUCKETS = limits.METADATA_BUCKETS


class Now:
    """The time of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)


@pytest.fixture
async def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    return Now(monkeypatch)


@pytest.fixture
async def store() -> MemoryMetadataStore:
    made = MemoryMetadataStore()
    await made.create_table(CONTROLLERS_TABLE)
    return made


async def rounds(now: Now, seconds: int, *members: Membership) -> list[bool]:
    """Each member beats and looks once a second; return whether the last look of each found work to adopt."""
    changed: list[bool] = []
    for _ in range(seconds):
        now.now_s += 1
        for member in members:
            await member.beat()
        changed = [await member.look() for member in members]
    return changed


def member(store: MemoryMetadataStore, name: str) -> Membership:
    return Membership(store, name, [(f"{name}.example", 9090)], lapse_s=LAPSE_S)


def counts(owners: tuple[str, ...]) -> Counter[str]:
    return Counter(owners)


async def test_live_controllers_share_the_buckets_evenly(store: MemoryMetadataStore, now: Now) -> None:
    a, b, c = (member(store, name) for name in "abc")
    await rounds(now, 2, a)
    assert counts(a.owners) == {"a": BUCKETS}
    await rounds(now, 3, a, b)
    assert counts(a.owners) == {"a": BUCKETS // 2, "b": BUCKETS // 2}
    before = a.owners
    await rounds(now, 3, a, b, c)
    assert sorted(counts(a.owners).values()) == [21, 21, 22]
    assert a.owners == b.owners == c.owners
    moved = [owner for owner, then in zip(a.owners, before, strict=True) if owner != then]
    assert set(moved) == {"c"}, "buckets moved between controllers that had both"
    assert [record.instance for record in a.others] == ["b", "c"]


async def test_a_silent_controller_loses_its_buckets_and_its_work(store: MemoryMetadataStore, now: Now) -> None:
    a, b = member(store, "a"), member(store, "b")
    await rounds(now, 4, a, b)
    left = PendingRecord("stream", "scope", "stream", "a")
    survivors = []
    for _ in range(int(LAPSE_S) + 1):
        survivors.append((await rounds(now, 1, b))[0])
        assert b.is_to_adopt(left) == (True in survivors) == (not b.may_live("a"))
    assert survivors.index(True) == LAPSE_S - 1, "found by its own clock, no earlier and no later"
    assert b.is_to_adopt(left)
    assert counts(b.owners) == {"b": BUCKETS}
    assert b.others == []
    assert [entry.key for entry in (await store.entries(CONTROLLERS_TABLE, 10, b""))[0]] == [b"buckets", b"instance/b"]


async def test_a_controller_that_continues_after_a_pause_is_a_member_again(
    store: MemoryMetadataStore, now: Now
) -> None:
    a, b = member(store, "a"), member(store, "b")
    await rounds(now, 4, a, b)
    await rounds(now, 60, b)
    await rounds(now, 3, a, b)
    assert counts(a.owners) == counts(b.owners) == {"a": BUCKETS // 2, "b": BUCKETS // 2}
    assert b.may_live("a")


async def test_one_that_leaves_is_gone_at_once(store: MemoryMetadataStore, now: Now) -> None:
    a, b = member(store, "a"), member(store, "b")
    await rounds(now, 4, a, b)
    await a.leave()
    assert (await rounds(now, 1, b)) == [True]
    assert not b.may_live("a")


async def test_without_the_table_no_controller_is_taken_for_dead(store: MemoryMetadataStore, now: Now) -> None:
    class Away(MemoryMetadataStore):
        away = False

        async def entries(self, table: str, limit: int, token: bytes) -> Any:
            if self.away:
                raise UnavailableError("away")
            return await super().entries(table, limit, token)

    shared = Away()
    await shared.create_table(CONTROLLERS_TABLE)
    a, b = member(shared, "a"), member(shared, "b")
    await rounds(now, 4, a, b)
    shared.away = True
    for _ in range(60):
        now.now_s += 1
        with pytest.raises(UnavailableError):
            await b.look()
    shared.away = False
    await rounds(now, 2, b)  # a needs as long as b to write again
    assert b.may_live("a")
    await rounds(now, 2, a, b)
    assert counts(b.owners) == {"a": BUCKETS // 2, "b": BUCKETS // 2}


async def test_two_that_assign_at_once_agree_on_one_assignment(store: MemoryMetadataStore, now: Now) -> None:
    a, b = member(store, "a"), member(store, "b")
    await asyncio.gather(a.beat(), b.beat())
    await asyncio.gather(a.look(), b.look())  # each takes itself for the first
    await rounds(now, 4, a, b)
    assert a.owners == b.owners


async def test_only_the_owner_of_a_bucket_adopts_what_a_dead_one_left(store: MemoryMetadataStore, now: Now) -> None:
    a, b = member(store, "a"), member(store, "b")
    await rounds(now, 4, a, b)
    for number in range(100):
        record = PendingRecord("stream", "scope", f"s{number}", "long gone")
        owner = a.owners[bucket_of("scope", f"s{number}")]
        assert (a.is_to_adopt(record), b.is_to_adopt(record)) == (owner == "a", owner == "b")
        of_a = PendingRecord("stream", "scope", f"s{number}", "a")
        assert (a.is_to_adopt(of_a), b.is_to_adopt(of_a)) == (True, False)
        older = PendingRecord("stream", "scope", f"s{number}")
        assert a.is_to_adopt(older) != b.is_to_adopt(older)


def test_a_bucket_without_a_live_owner_is_given_away_at_once() -> None:
    owners = assign((), {"a"}, set())
    assert set(owners) == {"a"}
    kept = assign(("dead",) * 10 + ("quiet",) * (BUCKETS - 10), {"a"}, {"quiet"})
    assert counts(kept) == {"a": 10, "quiet": BUCKETS - 10}


# -- whole controllers

QUICK = {"look_s": 0.01, "beat_s": 0.01, "lapse_s": 0.5, "rescan_s": 0.05}
DEADLINE_S = 120.0


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.005)


async def mapping(controller: Any) -> dict[str, list[int]]:
    request = pb.ControllerToBucketMappingRequest()
    answer = await controller.services.call("getControllerToBucketMapping", request)
    return {address: list(found.id) for address, found in answer.mapping.items()}


async def addresses(controller: Any) -> list[str]:
    answer = await controller.services.call("getControllerServerList", pb.ServerRequest())
    return [f"{node.endpoint}:{node.port}" for node in answer.nodeURI]


async def test_discovery_names_every_live_controller_and_its_buckets(world: Any) -> None:
    first, second = world.make(seed=1, **QUICK), world.make(seed=2, **QUICK)
    first.services.core.endpoints.append(("one", 9090))
    second.services.core.endpoints.append(("two", 9090))
    await first.start()
    await second.start()
    owners = first.services.core.membership
    await eventually(lambda: len(set(owners.owners)) == 2)
    assert await addresses(first) == ["one:9090", "two:9090"]
    found = await mapping(first)
    assert {address: len(buckets) for address, buckets in found.items()} == {"one:9090": 32, "two:9090": 32}
    assert sorted(bucket for buckets in found.values() for bucket in buckets) == list(range(BUCKETS))
    await second.close()
    await eventually(lambda: set(owners.owners) == {first.instance})
    assert await addresses(first) == ["one:9090"]


async def test_the_only_controller_owns_all_and_writes_no_heartbeats(world: Any) -> None:
    controller = world.make(sole=True, **QUICK)
    controller.services.core.endpoints.append(("one", 9090))
    await controller.start()
    assert await mapping(controller) == {"one:9090": list(range(BUCKETS))}
    assert world.metadata.dump_table(CONTROLLERS_TABLE) == {}


async def test_no_error_ends_the_adoption_of_work(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await world.start(seed=1, **QUICK), await world.start(seed=2, **QUICK)
    membership = first.services.core.membership
    await eventually(lambda: len(set(membership.owners)) == 2)
    look, failures = membership.look, 0

    async def failing() -> bool:
        nonlocal failures
        failures += 1
        if failures < 5:
            raise ValueError("unforeseen")
        return bool(await look())

    monkeypatch.setattr(membership, "look", failing)
    await second.close()
    await eventually(lambda: failures >= 5 and set(membership.owners) == {first.instance})


async def test_a_damaged_record_keeps_no_controller_from_starting(world: Any) -> None:
    await (await world.start()).close()
    await world.metadata.put(CONTROLLERS_TABLE, [Put(b"instance/x", b"damaged", UNCONDITIONAL)])
    await world.metadata.put("_system/_tables/pending", [Put(b"stream/a/b", b"damaged", UNCONDITIONAL)])
    newer = bytearray(encode(PendingRecord("stream", "a", "c")))
    newer[5] = 99
    await world.metadata.put("_system/_tables/pending", [Put(b"stream/a/c", bytes(newer), UNCONDITIONAL)])
    assert (await world.start(seed=3)).ready


class SlowTable:
    """A metadata store that answers no write of one table while it is held."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.held = asyncio.Event()
        self.go = asyncio.Event()

    def wrap(self, target: Any) -> Any:
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if name == "put" and arguments[0] == self._table:
            self.held.set()
            await self.go.wait()
        return await call()


def beat_of(world: Any, controller: Any) -> int:
    stored = world.metadata.dump_table(CONTROLLERS_TABLE)[f"instance/{controller.instance}".encode()]
    return decode(InstanceRecord, stored, "heartbeat").beat


@pytest.mark.parametrize("starts", [False, True], ids=["while it runs", "while it starts"])
async def test_an_adoption_that_takes_long_delays_no_heartbeat(
    world: Any, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTROLLER_START_TIMEOUT_S", 60.0)
    left = await world.start(seed=9, idle_s=60.0)  # idle streams stay pending
    await left.services.call("createScope", pb.ScopeInfo(scope="scope"))
    info = pb.StreamInfo(scope="scope", stream="stream")
    policy = pb.ScalingPolicy(minNumSegments=1)
    created = await left.services.call("createStream", pb.StreamConfig(streamInfo=info, scalingPolicy=policy))
    assert created.status == pb.CreateStreamStatus.SUCCESS
    slow = SlowTable(PENDING_TABLE)
    if not starts:
        slow.go.set()
    controller = world.make(slow, seed=3, **{**QUICK, "lapse_s": 30.0})
    if starts:
        await left.close()
        controller.start_when_possible()
    else:
        await controller.start()
        slow.go.clear()
        slow.held.clear()
        marked = Put(b"stream/scope/other", encode(PendingRecord("stream", "scope", "other", "dead")), UNCONDITIONAL)
        await world.metadata.put(PENDING_TABLE, [marked])
        await left.close()
    async with asyncio.timeout(120):
        await slow.held.wait()
    before = beat_of(world, controller)
    await eventually(lambda: beat_of(world, controller) >= before + 3)
    slow.go.set()


async def test_an_adoption_that_takes_long_keeps_no_death_from_being_seen(world: Any) -> None:
    slow = SlowTable(PENDING_TABLE)
    slow.go.set()
    controller = world.make(slow, seed=3, **QUICK)
    await controller.start()
    other = await world.start(seed=4, **QUICK)
    await eventually(lambda: controller._membership.may_live(other.instance))
    slow.go.clear()
    slow.held.clear()
    marked = Put(b"stream/scope/other", encode(PendingRecord("stream", "scope", "other", "dead")), UNCONDITIONAL)
    await world.metadata.put(PENDING_TABLE, [marked])
    async with asyncio.timeout(120):
        await slow.held.wait()
    other._beating.cancel()
    await eventually(lambda: not controller._membership.may_live(other.instance))
    slow.go.set()


@pytest.mark.parametrize("turns", range(0, 40, 2))
async def test_a_controller_that_is_closed_while_it_joins_writes_no_more_heartbeats(world: Any, turns: int) -> None:
    slow = SlowTable(CONTROLLERS_TABLE)
    controller = world.make(slow, seed=3, **QUICK)
    controller.start_when_possible()
    async with asyncio.timeout(120):
        await slow.held.wait()
    slow.go.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await controller.close()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "controller heartbeat"] == []
