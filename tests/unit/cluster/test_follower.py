"""The map reader and the follower: fresh reads decide, watches only wake up, failures leave things as they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, MutableMapping
from functools import partial
from typing import Any

import pytest
import structlog

from harness.localkubernetes import LocalKubernetes
from tailrace.cluster.cluster_map import Assignment, ClusterMap, read_map, write_map
from tailrace.cluster.endpoint_follower import EndpointFollower
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint, EndpointMap
from tailrace.cluster.follower import Follower
from tailrace.cluster.heartbeat import Heart
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, ForbiddenError, Kind
from tailrace.cluster.leases import WorkerLease, read_worker_lease, worker_lease_name, write_worker_lease
from tailrace.cluster.map_reader import MapReader
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
)
from tailrace.common.real_ports import SystemClock

COUNT = 4
HANDOVER_S = 0.2


@pytest.fixture
def api() -> LocalKubernetes:
    api = LocalKubernetes()
    api.core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": COUNT}})
    return api


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAP_RELIST_S", 0.05)
    monkeypatch.setattr(limits, "MAP_RETRY_S", 0.01)
    monkeypatch.setattr(limits, "HANDOVER_POLL_S", 0.005)
    monkeypatch.setattr(limits, "HANDOVER_TIMEOUT_S", HANDOVER_S)


def assign(api: LocalKubernetes, owners: str, *, before: str = "", workers: str = "ab") -> None:
    """Write a map: the owner of each container by a letter, ``-`` for none."""
    assignments = {n: Assignment(owner, before) for n, owner in enumerate(owners) if owner != "-"}
    endpoints = {name: ContainerEndpoints(Endpoint(f"host-{name}", 1)) for name in workers}
    manifest = write_map(api.core.get(STREAM_CLUSTERS, "c"), ClusterMap(COUNT, assignments, endpoints))
    api.core.replace_status(STREAM_CLUSTERS, manifest)


def reads(api: LocalKubernetes) -> int:
    """How many times the map was asked for."""
    return api.requests.count(("get", "c"))


async def until(holds: Callable[[], object]) -> None:
    """Wait for a state that must come."""
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110 - states of several tasks
            await asyncio.sleep(0.002)


# -- the reader -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def maps(api: LocalKubernetes) -> AsyncIterator[list[ClusterMap]]:
    """The maps that a reader reports, in order; equal maps in succession are noted once."""
    reported: list[ClusterMap] = []

    def on_map(cluster_map: ClusterMap) -> None:
        if reported[-1:] != [cluster_map]:
            reported.append(cluster_map)

    reader = asyncio.ensure_future(MapReader(api, "c", on_map).run())
    yield reported
    reader.cancel()
    await asyncio.wait([reader])


async def test_a_change_is_read_when_the_watch_reports_it(
    api: LocalKubernetes, maps: list[ClusterMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAP_RELIST_S", 3600.0)
    await until(lambda: api.watches)
    assign(api, "abab")
    await until(lambda: len(maps) == 2)
    assert maps[-1].assignments[1] == Assignment("b")
    assert api.requests.count(("get", "c")) >= 2


async def test_a_change_is_read_when_no_watch_reports_it(api: LocalKubernetes, maps: list[ClusterMap]) -> None:
    await until(lambda: api.watches)
    api.core.subscribers.clear()  # the watch is silently dead

    class Deaf(list):  # type: ignore[type-arg]
        def remove(self, _: object) -> None:
            """The watch is gone."""

    api.core.subscribers = Deaf()
    assign(api, "abab")
    await until(lambda: len(maps) == 2)


async def test_a_watch_that_breaks_is_begun_again(api: LocalKubernetes, maps: list[ClusterMap]) -> None:
    await until(lambda: api.watches == 1)
    api.close_watches()
    await until(lambda: api.watches == 2)
    assign(api, "abab")
    await until(lambda: len(maps) == 2)


async def test_a_watch_that_is_not_found_for_a_moment_is_begun_again(
    api: LocalKubernetes, maps: list[ClusterMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition is away, as while it is replaced; and the reader reads only when the watch wakes it."""

    async def refuse(verb: str, kind: Kind, name: str) -> None:
        if verb == "watch":
            raise NotFoundError("watch streamclusters: the Kubernetes API answers 404 Not Found")

    await until(lambda: api.watches == 1)
    monkeypatch.setattr(limits, "MAP_RELIST_S", 3600.0)
    watched = api.requests.count(("watch", ""))
    api.before = refuse
    api.close_watches()
    await until(lambda: api.requests.count(("watch", "")) > watched + 1)
    api.before = None
    await until(lambda: api.watches == 2)
    assign(api, "abab")
    await until(lambda: len(maps) == 2)


async def test_a_watch_from_too_long_ago_begins_again_from_a_fresh_read(
    api: LocalKubernetes, maps: list[ClusterMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change falls between two watches, and the API server has forgotten it when the second one begins."""
    monkeypatch.setattr(limits, "MAP_RELIST_S", 3600.0)
    await until(lambda: api.watches == 1 and maps)
    away = UnavailableError("not now")

    async def refuse(verb: str, kind: Kind, name: str) -> None:
        if verb == "get":
            raise away

    api.before = refuse  # the reader keeps the version from before
    assign(api, "aaaa")
    api.core.compact()
    watched = api.requests.count(("watch", ""))
    api.close_watches()
    await until(lambda: api.requests.count(("watch", "")) > watched + 2)
    assert api.watches == 1, "a watch from a forgotten version is refused"
    assert len(maps) == 1
    api.before = None
    await until(lambda: len(maps) == 2)
    assert maps[-1].assignments[0] == Assignment("a")
    await until(lambda: api.watches == 2)
    assign(api, "bbbb")
    await until(lambda: len(maps) == 3)
    assert maps[-1].assignments[0] == Assignment("b")


async def test_a_map_that_cannot_be_read_is_not_reported(api: LocalKubernetes, maps: list[ClusterMap]) -> None:
    await until(lambda: maps)
    manifest = api.core.get(STREAM_CLUSTERS, "c")
    api.core.replace(STREAM_CLUSTERS, {**manifest, "spec": {}})
    before = reads(api)
    await until(lambda: reads(api) > before + 3)
    api.core.delete(STREAM_CLUSTERS, "c")
    before = reads(api)
    await until(lambda: reads(api) > before + 3)
    assert len(maps) == 1


# -- the follower -----------------------------------------------------------------------------------------------------


class Containers:
    """A host of containers, a hand-over and renewals, all in memory: the ports of the follower."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.expected: set[int] = set()
        self.calls: list[str] = []
        self.refusals: dict[int, Exception] = {}
        self.opening = asyncio.Event()
        self.opening.set()
        self.closing = asyncio.Event()
        self.closing.set()
        self.holders: dict[int, str] = {}
        self.holder_error: Exception | None = None
        self.leaving = False
        self.left = asyncio.Event()
        self.left.set()
        self.kept: list[list[int]] = []
        self.asked: Counter[int] = Counter()
        """How many times the follower asked who holds a container."""

    def expect_container(self, container_id: int) -> None:
        self.expected.add(container_id)

    def unexpect_container(self, container_id: int) -> None:
        self.expected.discard(container_id)

    async def open_container(self, container_id: int) -> None:
        self.calls.append(f"open {container_id}")
        await self.opening.wait()
        if container_id in self.refusals:
            raise self.refusals[container_id]
        self.running.add(container_id)

    async def release_container(self, container_id: int) -> None:
        self.calls.append(f"release {container_id}")
        if container_id in self.refusals:
            raise self.refusals[container_id]
        self.running.discard(container_id)
        await self.closing.wait()

    def owned(self) -> set[int]:
        return self.running

    async def release(self, container_id: int) -> None:
        self.calls.append(f"reported {container_id}")
        if self.holder_error is not None:
            raise self.holder_error

    async def holder(self, container_id: int) -> str:
        self.asked[container_id] += 1
        if self.holder_error is not None:
            raise self.holder_error
        return self.holders.get(container_id, "")

    async def keep(self, container_ids: Collection[int]) -> None:
        self.kept.append(sorted(container_ids))
        if self.holder_error is not None:
            raise self.holder_error

    async def start(self) -> None:
        """Not needed."""

    def leave(self) -> None:
        self.leaving = True

    async def wait_left(self) -> None:
        await self.left.wait()

    async def wait_superseded(self) -> None:
        """Not needed."""

    async def stop(self) -> None:
        """Not needed."""


@pytest.fixture
async def containers() -> Containers:
    return Containers()


@pytest.fixture
async def follower(api: LocalKubernetes, containers: Containers) -> AsyncIterator[Follower]:
    follower = Follower(api, "c", "a", containers, containers, containers)
    running = asyncio.ensure_future(follower.run())
    yield follower
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.usefixtures("follower")
async def test_it_opens_what_names_it_and_releases_what_names_others(
    api: LocalKubernetes, containers: Containers
) -> None:
    assign(api, "aab-")
    await until(lambda: containers.running == {0, 1})
    assign(api, "baa-")
    await until(lambda: containers.running == {1, 2})
    assert containers.calls.index("release 0") < containers.calls.index("reported 0")
    assert "open 3" not in containers.calls


@pytest.mark.usefixtures("follower")
async def test_what_the_map_does_not_mention_stays(api: LocalKubernetes, containers: Containers) -> None:
    assign(api, "aaaa")
    await until(lambda: len(containers.running) == COUNT)
    assign(api, "----")
    before = api.requests.count(("get", "c"))
    await until(lambda: api.requests.count(("get", "c")) > before + 3)
    api.core.delete(STREAM_CLUSTERS, "c")
    before = api.requests.count(("get", "c"))
    await until(lambda: api.requests.count(("get", "c")) > before + 3)
    assert containers.running == {0, 1, 2, 3}
    assert not [call for call in containers.calls if call.startswith("release")]


@pytest.mark.usefixtures("follower")
@pytest.mark.parametrize(
    "error", [NotOwnerError("not yet"), UnavailableError("no"), CorruptionError("x", "y"), OSError("disk")]
)
async def test_what_fails_is_tried_again(api: LocalKubernetes, containers: Containers, error: Exception) -> None:
    containers.refusals[1] = error
    assign(api, "aaaa")
    await until(lambda: containers.calls.count("open 1") > 2)
    assert containers.running == {0, 2, 3}
    containers.refusals.clear()
    await until(lambda: containers.running == {0, 1, 2, 3})
    containers.refusals[2] = UnavailableError("not now")
    assign(api, "bbbb")
    await until(lambda: containers.calls.count("release 2") > 2)
    containers.refusals.clear()
    await until(lambda: not containers.running)


@pytest.mark.usefixtures("follower")
async def test_a_map_that_changes_while_a_container_opens_counts(api: LocalKubernetes, containers: Containers) -> None:
    containers.opening.clear()
    assign(api, "aaaa")
    await until(lambda: len(containers.calls) == COUNT)
    assign(api, "baaa")
    before = api.requests.count(("get", "c"))
    await until(lambda: api.requests.count(("get", "c")) > before + 3)
    containers.opening.set()
    await until(lambda: containers.running == {1, 2, 3})
    assert containers.calls[-2:] == ["release 0", "reported 0"]


@pytest.mark.usefixtures("follower")
async def test_it_waits_for_a_living_owner_to_let_go(
    api: LocalKubernetes, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDOVER_TIMEOUT_S", 3600.0)
    containers.holders = {0: "b", 1: "b"}
    assign(api, "aa--", before="b")
    await until(lambda: containers.expected == {0, 1})
    await until(lambda: min(containers.asked[0], containers.asked[1]) > 3)
    assert not containers.calls
    assert containers.expected == {0, 1}
    containers.holders[1] = ""
    await until(lambda: containers.running == {1})
    assert containers.expected == {0}
    assign(api, "ba--")  # it does not wait for what it is not to have any more
    await until(lambda: not containers.expected)
    assign(api, "aa--")  # nor when there is no worker to wait for
    await until(lambda: containers.running == {0, 1})


@pytest.mark.usefixtures("follower")
async def test_it_sees_that_the_leases_of_what_it_has_are_there(api: LocalKubernetes, containers: Containers) -> None:
    assign(api, "ab-a")
    await until(lambda: [0, 3] in containers.kept)
    containers.holder_error = UnavailableError("not now")
    before = len(containers.kept)
    await until(lambda: len(containers.kept) > before + 2)


@pytest.mark.usefixtures("follower")
async def test_it_waits_no_longer_than_its_timeout(
    api: LocalKubernetes, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDOVER_TIMEOUT_S", 3600.0)
    loop = asyncio.get_running_loop()
    real_time = loop.time
    containers.holders = {0: "b"}
    assign(api, "a---", before="b")
    await until(lambda: containers.asked[0] > 1)
    assert not containers.running
    monkeypatch.setattr(loop, "time", lambda: real_time() + limits.HANDOVER_TIMEOUT_S)
    await until(lambda: containers.running == {0})


@pytest.mark.usefixtures("follower")
async def test_it_does_not_wait_for_an_api_that_does_not_answer(
    api: LocalKubernetes, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDOVER_TIMEOUT_S", 3600.0)
    containers.holder_error = UnavailableError("no")
    assign(api, "a---", before="b")
    await until(lambda: containers.running == {0})
    assign(api, "b---")
    await until(lambda: not containers.running)


async def test_a_drain_waits_until_the_placer_has_moved_everything(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    draining = asyncio.ensure_future(follower.drain())
    await until(lambda: containers.leaving)
    assign(api, "abab")
    await until(lambda: containers.running == {0, 2})
    assert not draining.done()
    assign(api, "bbbb")
    await asyncio.wait_for(draining, 120)
    assert not containers.running
    assign(api, "aaaa")
    before, opened = reads(api), containers.calls.count("open 0")
    await until(lambda: reads(api) > before + 3)
    assert not containers.running
    assert containers.calls.count("open 0") == opened


async def test_a_worker_without_containers_does_not_end_before_its_lease_says_that_it_leaves(
    api: LocalKubernetes,
) -> None:
    """Otherwise the other workers count it as alive until its Lease lapses."""

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Renewer]:
        there = LocalKubernetes(api.core)
        yield Renewer(there, "c", "a", "1", ContainerEndpoints(Endpoint("h", 1)), SystemClock(), Heart())

    assign(api, "bbbb")
    thread = RenewalThread(connect)
    await thread.start()
    containers = Containers()
    follower = Follower(api, "c", "a", containers, containers, thread)
    running = asyncio.ensure_future(follower.run())
    await until(lambda: follower.has_followed)
    await asyncio.wait_for(follower.drain(), 120)
    lease = read_worker_lease(api.core.get(LEASES, worker_lease_name("c", "a")))
    assert lease is not None
    assert lease.leaving
    await thread.stop()
    running.cancel()
    await asyncio.wait([running])


async def test_a_drain_hands_over_while_its_lease_does_not_say_so_yet(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_MARK_TIMEOUT_S", 3600.0)
    containers.left.clear()
    assign(api, "aaaa", workers="a")
    await until(lambda: len(containers.running) == COUNT)
    draining = asyncio.ensure_future(follower.drain())
    await until(lambda: not containers.running)
    await asyncio.sleep(0.05)
    assert not draining.done()
    containers.left.set()
    await asyncio.wait_for(draining, 120)


async def test_a_drain_goes_on_without_a_mark_that_cannot_be_written(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout counts from the drain's beginning: a hand-over that takes longer is not followed by a wait."""
    loop, real_time, skipped_s = asyncio.get_running_loop(), asyncio.get_running_loop().time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_time() + skipped_s)
    for name in ("DRAIN_DEADLINE_S", "WORKER_LEASE_LAPSE_S"):
        monkeypatch.setattr(limits, name, 1e6)
    monkeypatch.setattr(limits, "DRAIN_MARK_TIMEOUT_S", 3600.0)
    containers.left.clear()
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    draining = asyncio.ensure_future(follower.drain())
    with structlog.testing.capture_logs() as entries:
        await until(lambda: containers.leaving)
        skipped_s = 3601.0
        assert containers.running
        assign(api, "bbbb")
        await until(lambda: not containers.running)
        await asyncio.wait_for(draining, 120)
    assert [entry["event"] for entry in entries if entry["log_level"] == "warning"] == ["leave_not_recorded"]
    monkeypatch.setattr(limits, "DRAIN_MARK_TIMEOUT_S", 0.3)
    began_s = loop.time()
    await asyncio.wait_for(follower.drain(), 120)  # now with nothing to hand over
    assert loop.time() - began_s >= 0.3


async def test_a_drain_needs_no_mark_when_the_cluster_is_gone(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_MARK_TIMEOUT_S", 3600.0)
    containers.left.clear()
    assign(api, "bbbb")
    await until(lambda: follower.has_followed)
    api.core.delete(STREAM_CLUSTERS, "c")
    await until(lambda: follower.trouble)
    await asyncio.wait_for(follower.drain(), 120)


async def test_a_drain_ends_at_its_deadline(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_DEADLINE_S", 0.05)
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    await asyncio.wait_for(follower.drain(), 120)
    assert not containers.running
    assert {"reported 0", "reported 1", "reported 2"} <= set(containers.calls)


async def test_what_a_drain_could_not_hand_over_is_named(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_DEADLINE_S", 0.05)
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    with structlog.testing.capture_logs() as logs:
        await asyncio.wait_for(follower.drain(), 120)
    assert named(logs) == [("containers_not_handed_over", [0, 1, 2])]


async def test_a_drain_names_nothing_that_is_on_its_way(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    containers.closing.clear()
    with structlog.testing.capture_logs() as logs:
        draining = asyncio.ensure_future(follower.drain())
        assign(api, "bbbb")
        await until(lambda: not containers.running)
        await asyncio.sleep(0.1)
        assert not draining.done()
        containers.closing.set()
        await asyncio.wait_for(draining, 120)
    assert named(logs) == []


async def test_a_drain_names_what_does_not_close(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DRAIN_CLOSE_TIMEOUT_S", 0.05)
    assign(api, "aaab")
    await until(lambda: len(containers.running) == 3)
    containers.closing.clear()
    with structlog.testing.capture_logs() as logs:
        draining = asyncio.ensure_future(follower.drain())
        assign(api, "bbbb")
        await until(lambda: bool(named(logs)))
        containers.closing.set()
        await asyncio.wait_for(draining, 120)
    assert named(logs) == [("containers_not_closed", [0, 1, 2])]


def named(logs: list[MutableMapping[str, Any]]) -> list[tuple[str, list[int]]]:
    """The warnings of a drain and the containers that they name."""
    return [(line["event"], line["containers"]) for line in logs if line["log_level"] == "warning"]


async def test_a_drain_does_not_wait_without_other_workers(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaaa", workers="a")
    await until(lambda: len(containers.running) == COUNT)
    await asyncio.wait_for(follower.drain(), 120)
    assert not containers.running


async def test_a_drain_does_not_wait_for_a_worker_that_leaves_with_it(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaaa", workers="ab")
    await until(lambda: len(containers.running) == COUNT)
    assert follower.has_followed
    await asyncio.wait_for(follower.drain(together_with=("b",)), 120)
    assert not containers.running


async def test_a_drain_does_not_wait_for_a_worker_whose_lease_says_that_it_leaves(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    """All pods of a cluster end at the same time: each would wait for the others as long as it may."""
    assign(api, "aaaa", workers="abc")
    for name, leaving in (("b", True), ("c", False)):
        api.core.create(LEASES, write_worker_lease("c", WorkerLease(name, "1", 1, leaving), None, 0))
    await until(lambda: len(containers.running) == COUNT)
    draining = asyncio.ensure_future(follower.drain())
    listed = api.requests.count(("list", ""))
    await until(lambda: api.requests.count(("list", "")) > listed + 3)
    assert not draining.done()
    assert len(containers.running) == COUNT
    lease = api.core.get(LEASES, worker_lease_name("c", "c"))
    api.core.replace(LEASES, write_worker_lease("c", WorkerLease("c", "1", 2, leaving=True), lease, 0))
    await asyncio.wait_for(draining, 120)
    assert not containers.running


async def test_a_drain_does_not_wait_for_a_worker_that_has_ended(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may end before its Lease says that it leaves; the map names it until others have its containers.

    Worker c has no Lease at all.
    """
    monkeypatch.setattr(limits, "WORKER_LEASE_LAPSE_S", 2.0)
    assign(api, "aabc", workers="abc")
    api.core.create(LEASES, write_worker_lease("c", WorkerLease("b", "1", 1), None, 0))
    await until(lambda: containers.running == {0, 1})
    draining = asyncio.ensure_future(follower.drain())
    for number in range(2, 32):  # as long as it renews it may take them
        await asyncio.sleep(0.1)
        lease = api.core.get(LEASES, worker_lease_name("c", "b"))
        api.core.replace(LEASES, write_worker_lease("c", WorkerLease("b", "1", number), lease, 0))
    assert not draining.done()
    await asyncio.wait_for(draining, 120)
    assert not containers.running


async def test_a_drain_does_not_wait_when_the_cluster_is_gone(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaaa", workers="ab")
    await until(lambda: len(containers.running) == COUNT)
    draining = asyncio.ensure_future(follower.drain())
    before = len(api.requests)
    await until(lambda: len(api.requests) > before + 3)
    assert not draining.done()
    api.core.delete(STREAM_CLUSTERS, "c")
    await asyncio.wait_for(draining, 120)
    assert not containers.running


async def test_a_drain_waits_while_it_cannot_be_known_who_leaves(
    api: LocalKubernetes, containers: Containers, follower: Follower
) -> None:
    assign(api, "aaaa", workers="ab")
    await until(lambda: len(containers.running) == COUNT)
    refused: list[str] = []

    async def refuse(verb: str, kind: Kind, name: str) -> None:
        if verb == "list":
            refused.append(name)
            raise UnavailableError("not now")

    api.before = refuse
    draining = asyncio.ensure_future(follower.drain())
    await until(lambda: len(refused) > 2)
    assert not draining.done()
    assign(api, "bbbb")
    await asyncio.wait_for(draining, 120)
    assert not containers.running


async def test_a_drain_does_not_wait_when_it_may_not_read_leases(
    api: LocalKubernetes, containers: Containers, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is removed takes the rights of its pods away while they end."""
    monkeypatch.setattr(limits, "WORKER_LEASE_LAPSE_S", 0.3)
    assign(api, "aaaa", workers="ab")
    await until(lambda: len(containers.running) == COUNT)
    answers = [ForbiddenError("403"), UnavailableError("503")]
    refused = 0

    async def refuse(verb: str, kind: Kind, name: str) -> None:
        nonlocal refused
        refused += verb == "list"
        raise answers[refused % len(answers)]

    api.before = refuse
    draining = asyncio.ensure_future(follower.drain())
    await asyncio.sleep(1.0)
    assert refused > 2
    assert not draining.done(), "an outage is no answer"
    answers.pop()
    await asyncio.wait_for(draining, 120)
    assert not containers.running


async def test_why_the_map_cannot_be_read_is_reported(api: LocalKubernetes, follower: Follower) -> None:
    assign(api, "aaaa")
    await until(lambda: follower.has_followed)
    assert follower.trouble == ""

    async def refuse(verb: str, kind: Kind, name: str) -> None:
        raise UnavailableError("not now")

    api.before = refuse
    assign(api, "bbbb")
    await until(lambda: follower.trouble == "not now")
    api.before = None
    await until(lambda: follower.trouble == "")


# -- endpoints --------------------------------------------------------------------------------------------------------


async def test_endpoints_follow_the_map_and_stay_without_one(api: LocalKubernetes) -> None:
    assign(api, "aab-")
    follower = EndpointFollower(api, "c", EndpointMap(COUNT))
    running = asyncio.ensure_future(follower.run())

    def hosts() -> dict[int, str]:
        found = {}
        for number in range(60):
            name = f"scope/stream/{number}"
            with contextlib.suppress(UnavailableError):
                found[container_of(name, COUNT)] = follower.endpoints.endpoint_of(name)[0]
        return found

    await until(lambda: hosts() == {0: "host-a", 1: "host-a", 2: "host-b"})
    assign(api, "bbbb")
    await until(lambda: hosts() == dict.fromkeys(range(4), "host-b"))
    assign(api, "x---")
    api.core.replace(STREAM_CLUSTERS, {**api.core.get(STREAM_CLUSTERS, "c"), "spec": {"containers": 8}})
    before = api.requests.count(("get", "c"))
    await until(lambda: api.requests.count(("get", "c")) > before + 3)
    assert hosts() == dict.fromkeys(range(4), "host-b")
    running.cancel()
    await asyncio.wait([running])


def _reports(follower: EndpointFollower, words: str) -> bool:
    """Whether a follower reports a trouble with these words."""
    return words in follower.trouble


async def test_endpoints_of_no_cluster(api: LocalKubernetes) -> None:
    api.core.replace(STREAM_CLUSTERS, {**api.core.get(STREAM_CLUSTERS, "c"), "spec": {}})
    for cluster, trouble in (("other", "other"), ("c", "spec.containers is None")):
        follower = EndpointFollower(api, cluster, EndpointMap(COUNT))
        running = asyncio.ensure_future(follower.run())
        await until(partial(_reports, follower, trouble))
        running.cancel()
        await asyncio.wait([running])
    assert read_map({"spec": {"containers": 1}}).assignments == {}
