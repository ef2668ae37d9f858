"""A server whose container has another owner by now answers nothing that is older than the bound.

See docs/design.md#stale-owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import obstore
import pytest

from tailrace.common import limits
from tailrace.common.budgets import budgets_for
from tailrace.common.errors import UnavailableError
from tailrace.common.limits import MIB
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.api import NULL_ATTRIBUTE
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.wire import commands as c

from .conftest import Client, Setting

SEGMENT = "scope/stream/0.#epoch.0"
TABLE = "scope/_tables/one/0.#epoch.0"
WRITER = bytes(range(16))


class Objects(ObstoreObjects):
    """Objects that all owners share; each owner has a connection of its own, which may be cut."""

    def __init__(self, memory: obstore.store.MemoryStore) -> None:
        super().__init__(memory)
        self.cut = False
        self.looks = 0

    async def get(self, key: str) -> bytes:
        """See ObjectStore."""
        self.looks += "/claims/" in key
        if self.cut:
            raise UnavailableError("the store does not answer")
        return await super().get(key)


class Owner:
    """A worker with one container, and the server in front of it."""

    def __init__(self, memory: obstore.store.MemoryStore, epoch: int) -> None:
        self.store = Objects(memory)
        self._epoch = epoch

        async def take(container_id: int, floor: int) -> int:
            self._epoch = max(self._epoch, floor) + 1
            return self._epoch

        def open_log(container_id: int) -> ObjectLog:
            return ObjectLog(self.store, container_id)

        ports = WorkerPorts(self.store, open_log, take, SystemClock(), SystemEntropy(), bytes(16))
        self.worker = Worker(1, (0,), budgets_for(64 * MIB, 1), ports)
        self.setting = Setting(self.worker)
        self.client: Client

    async def start(self) -> None:
        await self.worker.start()
        await self.setting.start()
        self.client = await self.setting.connect()

    async def close(self) -> None:
        await self.setting.close()
        await self.worker.close()


@pytest.fixture
async def memory(object_runtime: None, monkeypatch: pytest.MonkeyPatch) -> obstore.store.MemoryStore:
    monkeypatch.setattr(limits, "OWNER_ANSWER_DEADLINE_S", 0.5)
    monkeypatch.setattr(limits, "OWNER_LOOK_RETRY_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 60.0)
    monkeypatch.setattr(limits, "OWNER_LOOK_INTERVAL_S", 0.01)
    return obstore.store.MemoryStore()


@pytest.fixture
async def first(memory: obstore.store.MemoryStore) -> AsyncIterator[Owner]:
    owner = Owner(memory, 0)
    await owner.start()
    await owner.client.create(SEGMENT)
    created = await owner.client.call(c.CreateTableSegment(1, TABLE, ""))
    assert isinstance(created, c.SegmentCreated)
    yield owner
    await owner.close()


@pytest.fixture
async def second(memory: obstore.store.MemoryStore) -> AsyncIterator[Callable[[], Awaitable[Owner]]]:
    owners: list[Owner] = []

    async def start() -> Owner:
        owners.append(Owner(memory, 1))
        await owners[-1].start()
        return owners[-1]

    yield start
    for owner in owners:
        await owner.close()


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch, memory: obstore.store.MemoryStore) -> None:
    """No owner checks for other owners unless a request asks for it."""
    monkeypatch.setattr(limits, "OWNER_LOOK_INTERVAL_S", 3600.0)


REQUESTS: dict[str, c.Command] = {
    "info": c.GetStreamSegmentInfo(7, SEGMENT, ""),
    "info of what the new owner may have created": c.GetStreamSegmentInfo(7, SEGMENT + "1", ""),
    "attribute": c.GetSegmentAttribute(7, SEGMENT, WRITER, ""),
    "read": c.ReadSegment(SEGMENT, 0, 100, "", 7),
    "setup": c.SetupAppend(7, WRITER, SEGMENT, ""),
    "table info": c.GetTableSegmentInfo(7, TABLE, ""),
    "table read": c.ReadTable(7, TABLE, "", [c.TableKey(b"key")]),
    "refused update": c.UpdateTableEntries(7, TABLE, "", [c.TableEntry(b"key", b"", 17)], -1),
    "refused create": c.CreateSegment(7, SEGMENT, 0, 0, ""),
    "removal of what the new owner may have": c.RemoveTableKeys(7, TABLE, "", [c.TableKey(b"new")], -1),
    "update of nothing": c.UpdateTableEntries(7, TABLE, "", [], -1),
    "truncation at the start": c.TruncateSegment(7, SEGMENT, 0, ""),
    "merge of what is missing": c.MergeSegmentsBatch(7, SEGMENT, [f"{SEGMENT}#transaction.{0xAA:032x}"], ""),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_stale_owner_sends_requests_away(
    no_looks: None, first: Owner, second: Callable[[], Awaitable[Owner]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = REQUESTS[name]
    assert not isinstance(await first.client.call(c.GetStreamSegmentInfo(2, SEGMENT, "")), c.WrongHost)
    await second()
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 0.0)
    reply = await first.client.call(request)
    assert isinstance(reply, c.WrongHost), reply
    assert reply.request_id == 7
    assert first.worker.containers() == []


async def test_a_stale_owner_refuses_no_append_for_what_it_knows(
    no_looks: None, first: Owner, second: Callable[[], Awaitable[Owner]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the segment ends may be another place by now; the answer to the writer's next setup is no stale one."""
    await first.client.setup(WRITER, SEGMENT)
    await second()
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 0.0)
    first.client.send(c.ConditionalAppend(WRITER, 1, 5, b"where another owner's segment ends", 9))
    reply = await first.client.receive()
    assert isinstance(reply, c.WrongHost), reply
    assert reply.request_id == 9


async def test_an_owner_that_was_idle_refuses_an_append_after_the_next_setup(
    no_looks: None, first: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first.client.setup(WRITER, SEGMENT)
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 0.0)
    first.client.send(c.ConditionalAppend(WRITER, 1, 5, b"data", 9))
    await first.client.expect(c.WrongHost)
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 3600.0)
    assert await first.client.setup(WRITER, SEGMENT) == NULL_ATTRIBUTE
    first.client.send(c.ConditionalAppend(WRITER, 1, 5, b"data", 10))
    await first.client.expect(c.ConditionalCheckFailed)
    first.client.send(c.ConditionalAppend(WRITER, 1, 0, b"data", 11))
    await first.client.expect(c.DataAppended)


async def test_a_stale_owner_may_answer_within_the_bound_without_a_look(
    no_looks: None, first: Owner, second: Callable[[], Awaitable[Owner]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 3600.0)
    looks = first.store.looks
    await second()
    assert isinstance(await first.client.call(REQUESTS["info"]), c.StreamSegmentInfo)
    assert first.store.looks == looks


async def test_a_read_that_waits_hears_of_another_owner(
    first: Owner, second: Callable[[], Awaitable[Owner]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_IDLE_S", 0.0)
    first.client.send(c.ReadSegment(SEGMENT, 0, 100, "", 7))
    await second()
    reply = await first.client.expect(c.WrongHost)
    assert reply.request_id == 7


async def test_an_owner_that_cannot_look_sends_reads_away_and_keeps_the_container(
    first: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 0.0)
    first.store.cut = True
    assert isinstance(await first.client.call(REQUESTS["read"]), c.WrongHost)
    assert isinstance(await first.client.call(REQUESTS["table read"]), c.WrongHost)
    assert len(first.worker.containers()) == 1
    first.store.cut = False
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 2.0)
    assert isinstance(await first.client.call(REQUESTS["info"]), c.StreamSegmentInfo)


async def test_a_claim_that_cannot_be_read_stops_the_container(
    first: Owner, memory: obstore.store.MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await obstore.put_async(memory, f"log/0/claims/{2:020d}", b"nonsense")
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", 0.0)
    assert isinstance(await first.client.call(REQUESTS["info"]), c.WrongHost)
    (status,) = first.worker.status()
    assert status.state == "stopped"
    assert "the object is not a claim" in status.reason


async def test_looks_go_on_while_a_container_is_used_and_end_when_it_is_idle(
    first: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = first.worker.container_by_id(0)
    async with asyncio.timeout(120):
        while first.store.looks < 10:
            assert isinstance(await first.client.call(REQUESTS["info"]), c.StreamSegmentInfo)
    monkeypatch.setattr(limits, "OWNER_IDLE_S", 0.0)
    async with asyncio.timeout(120):
        while True:
            looks = first.store.looks
            await asyncio.sleep(0.05)
            if first.store.looks == looks:
                break
    assert owner.status().state == "running"


async def test_appends_under_way_of_a_fenced_owner_are_sent_away_and_never_acknowledged(
    first: Owner, second: Callable[[], Awaitable[Owner]]
) -> None:
    assert await first.client.setup(WRITER, SEGMENT) == NULL_ATTRIBUTE
    owner = await second()
    first.client.send(c.ConditionalAppend(WRITER, 1, 0, b"event", 9))
    reply = await first.client.expect(c.WrongHost)
    assert reply.segment == SEGMENT
    assert await owner.client.setup(WRITER, SEGMENT) == NULL_ATTRIBUTE
    info = await owner.client.call(REQUESTS["info"])
    assert isinstance(info, c.StreamSegmentInfo)
    assert info.write_offset == 0


CHANGES: dict[str, c.Command] = {
    "table update": c.UpdateTableEntries(7, TABLE, "", [c.TableEntry(b"key", b"value", c.NOT_EXISTS)], -1),
    "attribute": c.UpdateSegmentAttribute(7, SEGMENT, WRITER, 1, NULL_ATTRIBUTE, ""),
    "create": c.CreateSegment(7, SEGMENT + "1", 0, 0, ""),
    "seal": c.SealSegment(7, SEGMENT, ""),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_that_may_have_been_made_is_never_answered_as_if_it_was_not(
    no_looks: None,
    first: Owner,
    second: Callable[[], Awaitable[Owner]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that gets WrongHost repeats the change, and takes what it finds for the change of another client."""
    await second()
    first.client.send(CHANGES[name])
    await first.client.expect_end()


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_that_was_made_is_answered_so_by_an_owner_that_was_replaced_since(
    no_looks: None, first: Owner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OWNER_SEEN_MAX_S", -1.0)
    reply = await first.client.call(CHANGES[name])
    assert not isinstance(reply, c.WrongHost)
