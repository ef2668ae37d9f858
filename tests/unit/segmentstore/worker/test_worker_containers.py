"""Containers come to a worker and leave it while it runs (docs/design.md#ownership)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
import structlog

from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.budgets import budgets_for
from tailrace.common.errors import (
    BadRequestError,
    ContainerStoppedError,
    NotOwnerError,
    OutcomeUnknownError,
    UnavailableError,
    WrongHostError,
)
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.container.background_tasks import BackgroundTasks
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata.untiered_room import APPEND_BYTES
from tailrace.segmentstore.worker.cluster_service import FOLLOWING, WAITING, report_not_open
from tailrace.segmentstore.worker.not_open import NotOpen, summarise_not_open
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.contact import StoreContact
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import Buffer, ObjectStore

from ..conftest import eventually

COUNT = 3


def segment_in(container_id: int) -> str:
    """A segment of that container."""
    names = (f"scope/stream{number}/0.#epoch.0" for number in range(1000))
    return next(name for name in names if container_of(name, COUNT) == container_id)


class Cluster:
    """Logs, epochs and Tier 2 that outlive workers; ``owner`` says which worker may open what."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.logs = [MemoryLogStore() for _ in range(COUNT)]
        self.epochs = [0] * COUNT
        self.owner: dict[int, str] = {}
        self.unavailable = 0
        self.opened: dict[int, MemoryLog] = {}
        """The logs of the newest owners."""

    def worker(self, name: str, owned: tuple[int, ...] = (), contact: StoreContact | None = None) -> Worker:
        async def take(container_id: int, floor: int) -> int:
            if self.owner.get(container_id, name) != name:
                raise NotOwnerError(f"container {container_id} is not of {name}")
            if self.unavailable:
                self.unavailable -= 1
                raise UnavailableError("no answer")
            self.epochs[container_id] = max(self.epochs[container_id], floor) + 1
            return self.epochs[container_id]

        def open_log(container_id: int) -> MemoryLog:
            self.opened[container_id] = MemoryLog(self.logs[container_id])
            return self.opened[container_id]

        ports = WorkerPorts(
            self.store, open_log, take, SystemClock(), SystemEntropy(), b"c" * 16, contact=contact, moves=True
        )
        return Worker(COUNT, owned, budgets_for(64 * limits.MIB, COUNT), ports)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = open_object_store("memory://")
    yield Cluster(store)
    await store.close()


@contextlib.asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    for worker in workers:
        await worker.start()
    try:
        yield
    finally:
        for worker in workers:
            await worker.close()


async def test_a_container_moves_with_all_that_was_acknowledged(cluster: Cluster) -> None:
    one, two = cluster.worker("one"), cluster.worker("two")
    name = segment_in(1)
    async with running(one, two):
        assert one.owned() == ()
        await one.open_container(1)
        await one.open_container(1)
        assert one.owned() == (1,)
        await one.container_for(name).create_segment(name)
        await one.container_for(name).append(name, [b"first"])
        await one.release_container(1)
        assert one.owned() == ()
        assert one.status() == []
        with pytest.raises(WrongHostError):
            one.container_for(name)
        await two.open_container(1)
        moved = two.container_for(name)
        assert await moved.read_exact(name, 0, 5) == b"first"
        assert moved.status().untiered_bytes == 0
        assert cluster.epochs[1] == 2


async def test_who_asks_for_a_container_that_is_to_be_opened_can_wait_for_it(cluster: Cluster) -> None:
    worker = cluster.worker("one")
    name = segment_in(1)
    async with running(worker):
        assert not worker.is_pending(name)
        worker.expect_container(1)
        assert worker.is_pending(name)
        assert not worker.is_pending(segment_in(0))
        worker.is_pending("\udcff\n" + name)  # names are not checked yet: whatever they are, it raises nothing
        waiting = asyncio.ensure_future(worker.wait_opened(name))
        await worker.open_container(1)
        assert not waiting.done()
        worker.unexpect_container(1)
        await waiting
        assert not worker.is_pending(name)
        await worker.wait_opened(name)
        assert worker.container_for(name).container_id == 1


async def test_requests_of_a_container_that_leaves_are_sent_away_and_what_is_staged_is_stored(cluster: Cluster) -> None:
    worker = cluster.worker("one", (0,))
    name = segment_in(0)
    async with running(worker):
        container = worker.container_for(name)
        await container.create_segment(name)
        waiting = asyncio.ensure_future(container.read(name, 0, 100, wait=True))
        await asyncio.sleep(0)
        tail = asyncio.ensure_future(container.read(name, 6, 100, wait=True))
        staged = asyncio.ensure_future(container.append(name, [b"staged"]))
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(worker.release_container(0, flush=False))
        await asyncio.sleep(0)
        with pytest.raises(WrongHostError):
            worker.container_for(name)
        with pytest.raises(ContainerStoppedError) as refused:
            await container.append(name, [b"refused"])
        assert refused.value.wire_code == 50
        with pytest.raises(ContainerStoppedError):
            await container.info(name)
        assert await staged == (0, 6)
        for read in (waiting, tail):
            with pytest.raises(ContainerStoppedError):
                await read
        await leaving
        await worker.open_container(0)
        assert (await worker.container_for(name).info(name)).length == 6


class Seen:
    """How many logs are opened, or recovered, at a time, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    @contextlib.asynccontextmanager
    async def one_more(self) -> AsyncIterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)  # what others would do meanwhile, they do
        yield
        self.now -= 1


async def test_containers_open_together_within_a_bound_and_recover_one_after_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of an opening is waiting for the store; the cache is filled by one recovery at a time."""
    monkeypatch.setattr(limits, "CONTAINERS_OPENING_MAX", 2)
    worker, openings, recoveries = cluster.worker("one"), Seen(), Seen()
    open_log, run = MemoryLog.open, Recovery.run

    async def seen_open(self: MemoryLog, epoch: int, nonce: bytes) -> None:
        async with openings.one_more():
            await open_log(self, epoch, nonce)

    async def seen_run(self: Recovery) -> None:
        async with recoveries.one_more():
            await run(self)

    monkeypatch.setattr(MemoryLog, "open", seen_open)
    monkeypatch.setattr(Recovery, "run", seen_run)
    async with running(worker):
        await asyncio.gather(*(worker.open_container(number) for number in range(COUNT)))
        assert len(worker.containers()) == COUNT
    assert (openings.most, recoveries.most) == (2, 1)


async def test_what_belongs_to_another_worker_is_not_opened(cluster: Cluster) -> None:
    worker = cluster.worker("one")
    cluster.owner[2] = "two"
    async with running(worker):
        with pytest.raises(NotOwnerError):
            await worker.open_container(2)
        assert worker.owned() == ()
        with pytest.raises(WrongHostError):
            worker.container_by_id(2)
        with pytest.raises(BadRequestError):
            await worker.open_container(COUNT)
        cluster.owner[2] = "one"
        await worker.open_container(2)
        assert worker.container_by_id(2).status().state == "running"


async def test_a_fenced_container_is_opened_again_only_when_it_belongs_here(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MIN_S", 600.0)
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MAX_S", 600.0)
    one, two = cluster.worker("one", (0, 1)), cluster.worker("two", (1,))
    name = segment_in(1)
    async with running(one):
        await one.container_for(name).create_segment(name)
        async with running(two):
            cluster.owner[1] = "two"
            with pytest.raises(ContainerStoppedError):
                await one.container_for(name).append(name, [b"lost"])
            await eventually(lambda: one.owned() == (0,))
            assert (await two.container_for(name).info(name)).length == 0
        cluster.owner[1] = "one"
        await one.open_container(1)
        assert (await one.container_for(name).info(name)).length == 0
        assert cluster.epochs[1] == 3


async def test_a_container_that_cannot_be_opened_at_once_is_opened_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch that is not available for a moment causes a shorter pause than a container that fails."""
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MIN_S", 600.0)
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MAX_S", 600.0)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 0.02)
    worker = cluster.worker("one")
    cluster.unavailable = 8
    async with running(worker):
        await worker.open_container(0)
        assert worker.owned() == (0,)
        with pytest.raises(ContainerStoppedError):
            worker.container_by_id(0)
        await eventually(lambda: len(worker.containers()) == 1)
        assert cluster.unavailable == 0


@pytest.mark.parametrize("first", [True, False], ids=["at the start", "later"])
async def test_an_unforeseen_error_of_an_opening_is_no_end_of_it_and_keeps_no_other_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    monkeypatch.setattr(limits, "CONTAINER_RESTART_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 0.0)
    start, attempts, again = Container.start, 0, asyncio.Event()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, details: reported.append(details))

    async def faulty(container: Container, nonce: bytes) -> None:
        nonlocal attempts
        if container.container_id == 1:
            attempts += 1
            if attempts == 1:
                raise ValueError("read index entry at 0 overlaps")
            await again.wait()
        await start(container, nonce)

    monkeypatch.setattr(Container, "start", faulty)
    reason = "ValueError('read index entry at 0 overlaps')"
    worker = cluster.worker("one", (0, 1, 2) if first else ())
    with structlog.testing.capture_logs() as logs:
        async with running(worker):
            if not first:
                for number in range(COUNT):
                    await worker.open_container(number)
            assert [container.container_id for container in worker.containers()] == [0, 2]
            assert worker.owned() == (0, 1, 2)
            assert [(each.container_id, each.reason) for each in worker.not_open()] == [(1, reason)]
            assert [(each.state, each.reason) for each in worker.status() if each.container_id == 1] == [
                ("stopped", reason)
            ]
            with pytest.raises(ContainerStoppedError, match="read index entry at 0 overlaps"):
                worker.container_by_id(1)
            (entry,) = (entry for entry in logs if entry["event"] == "container_not_opened")
            assert (entry["container"], entry["reason"], entry["log_level"]) == (1, reason, "warning")
            assert [(each["message"], repr(each["exception"])) for each in reported] == [
                ("container 1 was not opened", reason)
            ]
            await eventually(lambda: attempts == 2)
            again.set()
            await eventually(lambda: len(worker.containers()) == COUNT)
            assert worker.not_open() == []


async def test_a_container_that_stays_unopened_is_reported_with_its_reason_until_it_is_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`container_opened` is logged when it is open, not when it was taken; an ordinary opening is nothing to tell."""
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 0.02)
    monkeypatch.setattr(limits, "CONTAINERS_NOT_OPEN_POLL_S", 0.01)
    worker, said, named = cluster.worker("one", (1,)), list[str](), list[str]()
    with structlog.testing.capture_logs() as logs:
        async with running(worker):
            cluster.unavailable = 10**6
            telling = asyncio.ensure_future(report_not_open(worker, said.append, named.append))
            await worker.open_container(0)
            assert worker.owned() == (0, 1)
            assert worker.not_open() == []
            monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 0.0)
            (trouble,) = worker.not_open()
            assert (trouble.container_id, trouble.reason) == (0, "no answer")
            await eventually(lambda: said == [f"{WAITING}container 0 has not been open for 0 s: no answer"])
            await eventually(lambda: named[-1] == "container 0 is not open: no answer")
            assert [entry["container"] for entry in logs if entry["event"] == "container_opened"] == [1]
            cluster.unavailable = 0
            await eventually(lambda: said[1:] == [FOLLOWING])
            assert named[-1] == ""
            assert [entry["container"] for entry in logs if entry["event"] == "container_opened"] == [1, 0]
            telling.cancel()
            await asyncio.wait([telling])


async def test_a_store_that_refuses_is_reported_with_its_words(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other than one that is away: the network is fine, and the credentials are not."""
    monkeypatch.setattr(limits, "CONTAINERS_NOT_OPEN_POLL_S", 0.01)
    worker, said, named = cluster.worker("one", (1,)), list[str](), list[str]()
    silent_s, refusal = 12, "get cluster.json: 403 Forbidden: AccessDenied"
    async with running(worker):
        reporting = asyncio.ensure_future(
            report_not_open(worker, said.append, named.append, lambda: silent_s, lambda: refusal)
        )
        await eventually(lambda: said == [f"{WAITING}the object store has refused requests for 12 s: {refusal}"])
        assert named[-1] == f"the object store refuses requests: {refusal}"
        refusal = ""
        await eventually(lambda: said[1:] == [f"{WAITING}the object store has not answered for 12 s"])
        assert named[-1] == "the object store does not answer"
        silent_s = 0
        await eventually(lambda: said[2:] == [FOLLOWING])
        assert named[-1] == ""
        reporting.cancel()
        await asyncio.wait([reporting])


async def test_a_first_opening_that_lasts_is_shown_like_one_that_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the object store is silent: each attempt lasts for minutes. An ordinary opening is nothing to tell."""
    answered, start = asyncio.Event(), Container.start

    async def silent(container: Container, nonce: bytes) -> None:
        await answered.wait()
        await start(container, nonce)

    monkeypatch.setattr(Container, "start", silent)
    worker = cluster.worker("one")
    async with running(worker):
        monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 3600.0)
        opening = asyncio.ensure_future(worker.open_container(0))
        await eventually(lambda: worker.owned() == (0,))
        assert worker.status() == []
        monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 0.0)
        (status,) = worker.status()
        assert (status.state, status.reason) == ("opening", "its first opening has not ended")
        with pytest.raises(ContainerStoppedError, match="container 0 is opening"):
            worker.container_by_id(0)
        answered.set()
        await opening
        assert [each.state for each in worker.status()] == ["running"]


async def test_an_epoch_beyond_the_log_is_given_back_and_the_container_opens(cluster: Cluster) -> None:
    """A number in a Lease that was written by hand must not close a container for good."""
    lowered = list[tuple[int, int]]()
    can_lower = True

    def worker() -> Worker:
        async def take(container_id: int, floor: int) -> int:
            cluster.epochs[container_id] = max(cluster.epochs[container_id], floor) + 1
            return cluster.epochs[container_id]

        async def lower(container_id: int, last: int) -> None:
            lowered.append((container_id, last))
            if not can_lower:
                raise UnavailableError("the Lease cannot be written")
            cluster.epochs[container_id] = last

        ports = WorkerPorts(
            cluster.store,
            lambda container_id: ObjectLog(cluster.store, container_id),
            take,
            SystemClock(),
            SystemEntropy(),
            b"c" * 16,
            lower_epoch=lower,
        )
        return Worker(COUNT, (), budgets_for(64 * limits.MIB, COUNT), ports)

    name = segment_in(0)
    first = worker()
    async with running(first):
        await first.open_container(0)
        await first.container_for(name).create_segment(name)
        await first.container_for(name).append(name, [b"kept"])
    cluster.epochs[0] = 1_000_000
    second = worker()
    async with running(second):
        await second.open_container(0)
        assert lowered == [(0, 1)]
        assert second.container_for(name).status().epoch == 2
        assert await second.container_for(name).read_exact(name, 0, 4) == b"kept"
    cluster.epochs[0], can_lower = 1_000_000, False
    third = worker()
    async with running(third):
        await third.open_container(0)
        assert third.containers() == []
        assert third.owned() == (0,)


async def test_containers_that_stopped_or_have_no_proved_data_are_reported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 0.0)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 600.0)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 600.0)
    one, two = cluster.worker("one", (0,)), cluster.worker("two", (0,))
    async with running(one):
        assert one.not_open() == []
        async with running(two):
            name = segment_in(0)
            with contextlib.suppress(ContainerStoppedError):
                await one.container_for(name).create_segment(name)
            await eventually(lambda: len(one.not_open()) == 1)
            assert "epoch" in one.not_open()[0].reason
            cluster.logs[1].frames.append((1, b"no frame of a container"))
            await two.open_container(1)
            assert [(each.container_id, bool(each.reason)) for each in two.not_open()] == [(1, True)]
            assert "being opened" not in two.not_open()[0].reason


@pytest.mark.parametrize("error", [OSError("the log was not closed"), ValueError("an unexpected one")])
async def test_unproved_data_stays_the_reason_when_closing_the_container_fails_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An operator must look at the data; and the container is not opened again."""
    monkeypatch.setattr(limits, "CONTAINER_NOT_OPEN_REPORT_S", 0.0)
    asyncio.get_running_loop().set_exception_handler(lambda _, details: None)
    close, errors, worker = MemoryLog.close, [error], cluster.worker("one")

    async def faulty(self: MemoryLog) -> None:
        await close(self)
        if errors:
            raise errors.pop()

    cluster.logs[1].frames.append((1, b"no frame of a container"))
    monkeypatch.setattr(MemoryLog, "close", faulty)
    async with running(worker):
        await worker.open_container(1)
        assert errors == []
        (trouble,), (status,) = worker.not_open(), worker.status()
        assert "corruption" in trouble.reason
        assert (status.state, status.reason) == ("stopped", trouble.reason)


def test_the_report_of_many_containers_has_a_bound() -> None:
    many = [NotOpen(number, 10.0 + number, "x" * 5000) for number in range(200)]
    text = summarise_not_open(many)
    assert text.startswith("container 199 has not been open for 209 s: xxx")
    assert "; container 198 has not been open for 208 s: " in text
    assert text.endswith("; 197 more containers are not open")
    assert len(WAITING + text) <= limits.WORKER_REASON_MAX_CHARACTERS
    assert summarise_not_open([]) == ""


async def test_a_container_comes_and_goes_at_once(cluster: Cluster) -> None:
    worker = cluster.worker("one")
    async with running(worker):
        for _ in range(3):
            opening = asyncio.ensure_future(worker.open_container(0))
            await asyncio.sleep(0)
            await worker.release_container(0, flush=False)
            await opening
            assert worker.owned() == ()
        releasing = worker.release_container(0)
        await asyncio.gather(worker.open_container(0), releasing, worker.open_container(0))
        await worker.release_container(0)
        assert worker.owned() == ()


async def test_a_release_while_the_object_store_is_silent_refuses_what_waits_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONTAINER_LEAVE_DEADLINE_S", "SNAPSHOT_LEAVE_DEADLINE_S"):
        monkeypatch.setattr(limits, name, 3600.0)
    contact = StoreContact()
    worker = cluster.worker("one", (0,), contact)
    async with running(worker):
        (container,) = worker.containers()
        segment = segment_in(0)
        await container.create_segment(segment)
        cluster.opened[0]._delay_s = 3600.0
        waiting = asyncio.ensure_future(container.append(segment, [b"x"]))
        await eventually(lambda: container.core.staged_segment(segment).staged_length == 1)
        contact.began(asyncio.get_running_loop().time() - limits.WORKER_STORE_SILENT_REPORT_S)
        async with asyncio.timeout(120):
            await worker.release_container(0)
            with pytest.raises(OutcomeUnknownError):
                await waiting
        assert worker.owned() == ()


async def test_a_drain_refuses_what_waits_for_room_while_it_flushes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once got no answer while its container left, and its writer did not look for the next owner."""
    monkeypatch.setattr(limits, "CONTAINER_LEAVE_AHEAD_S", 0.1)
    monkeypatch.setattr(limits, "CONTAINER_LEAVE_DEADLINE_S", 3600.0)
    worker = cluster.worker("one", (0,))
    async with running(worker):
        (container,) = worker.containers()
        segment = segment_in(0)
        await container.create_segment(segment)
        room = container.core.ports.untiered
        room.max_bytes = 10 * APPEND_BYTES
        may_put, put = asyncio.Event(), cluster.store.put

        async def waiting_put(key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
            await may_put.wait()
            await put(key, data, if_absent=if_absent)

        monkeypatch.setattr(cluster.store, "put", waiting_put)
        while room.has_room:
            await container.append(segment, [b"x"])
        waiting = asyncio.ensure_future(container.append(segment, [b"x"]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        releasing = asyncio.ensure_future(worker.release_container(0))
        try:
            async with asyncio.timeout(120):
                with pytest.raises(ContainerStoppedError):
                    await waiting
            assert not releasing.done()
        finally:
            may_put.set()
        await releasing


async def test_closing_with_a_flush_goes_on_after_a_container_that_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = cluster.worker("one", (0, 1, 2))
    await worker.start()
    containers = worker.containers()
    for container in containers:
        name = segment_in(container.container_id)
        await container.create_segment(name)
        await container.append(name, [b"x" * 1000])
    flush = BackgroundTasks._run_flush

    async def failing(self: BackgroundTasks, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._core.container_id == 0:
            raise UnavailableError("no Tier 2")
        if self._core.container_id == 1:
            await asyncio.get_running_loop().create_future()
        await flush(self, work)

    monkeypatch.setattr(BackgroundTasks, "_run_flush", failing)
    monkeypatch.setattr(limits, "CONTAINER_LEAVE_DEADLINE_S", 0.2)
    monkeypatch.setattr(limits, "CONTAINER_LEAVE_AHEAD_S", 0.1)
    await worker.close(flush=True)
    assert [container.status().state for container in containers] == ["stopped"] * COUNT
    assert [container.status().untiered_bytes for container in containers] == [1000, 1000, 0]
    assert worker.owned() == ()


async def test_a_container_that_moves_serves_until_most_of_it_is_in_tier_2(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = cluster.worker("one", (0,))
    async with running(worker):
        (container,) = worker.containers()
        segment = segment_in(0)
        await container.create_segment(segment)
        await container.append(segment, [b"before"])
        puts, may_put = 0, asyncio.Event()
        put = cluster.store.put

        async def waiting_put(key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> None:
            nonlocal puts
            puts += 1
            await may_put.wait()
            await put(key, data, if_absent=if_absent)

        monkeypatch.setattr(cluster.store, "put", waiting_put)
        releasing = asyncio.ensure_future(worker.release_container(0))
        await eventually(lambda: puts)
        assert worker.owned() == ()
        assert not releasing.done()
        served = worker.container_for(segment)
        async with asyncio.timeout(120):
            assert await served.append(segment, [b" and after"]) == (6, 16)
        may_put.set()
        await releasing
        with pytest.raises(WrongHostError):
            worker.container_for(segment)
        await worker.open_container(0)
        opened = worker.container_for(segment)
        assert await opened.read_exact(segment, 0, 16) == b"before and after"
        assert opened.status().untiered_bytes == 0
