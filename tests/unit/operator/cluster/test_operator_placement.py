"""Placers of the operator: one for each cluster, again after a failure, none after the end; in simulated time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.localclusters import NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from tailrace.cluster.cluster_map import read_map
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.failure import FailureDetector
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind
from tailrace.cluster.leases import WorkerLease, write_worker_lease
from tailrace.cluster.placer import Unconfirmed
from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace_operator.cluster.placement import Placements


class CountingDetector(FailureDetector):
    """Counts the looks of its placer."""

    looks = 0

    def look(self, *arguments: Any) -> None:
        self.looks += 1
        super().look(*arguments)


def play(scenario: Callable[[LocalKubernetes, Placements], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            api = LocalKubernetes()
            api.core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": 4}})
            placements = Placements(lambda namespace: api, NoWorkerAnswers())
            try:
                await scenario(api, placements)
            finally:
                await placements.close()

        world.run(main())


def make_worker(api: LocalKubernetes, renewal: int = 1, not_open: str = "") -> None:
    endpoints = ContainerEndpoints(Endpoint("host", 1))
    found = api.core.objects.get(("leases", "c.worker.a"))
    worker = WorkerLease("a", "one", renewal, endpoints=endpoints, not_open=not_open)
    lease = write_worker_lease("c", worker, found, 0)
    (api.core.replace if found else api.core.create)(LEASES, lease)


def test_a_cluster_is_placed_by_one_placer() -> None:
    async def scenario(api: LocalKubernetes, placements: Placements) -> None:
        assert placements.reason("here", "c") == "the placer has not been started"
        placements.ensure("here", "c")
        placements.ensure("here", "c")
        assert len(placements) == 1
        await asyncio.sleep(3)
        make_worker(api)
        for renewal in range(2, 8):
            await asyncio.sleep(1)
            make_worker(api, renewal)
        assert len(read_map(api.core.get(STREAM_CLUSTERS, "c")).assignments) == 4
        assert "workers that take containers: 1" in placements.reason("here", "c")
        assert placements.failure("here", "c") is None
        await placements.end("here", "c")
        requests = len(api.requests)
        await asyncio.sleep(10)
        assert len(api.requests) == requests, "it has ended"

    play(scenario)


def test_a_placer_that_fails_is_started_again_with_growing_pauses() -> None:
    async def scenario(api: LocalKubernetes, placements: Placements) -> None:
        tries: list[float] = []

        async def fail(verb: str, kind: Kind, name: str) -> None:
            tries.append(asyncio.get_running_loop().time())
            raise RuntimeError("unforeseen")

        api.before = fail
        placements.ensure("here", "c")
        await asyncio.sleep(200)
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert pauses[0] < 1.5 * limits.PLACER_RETRY_MIN_S
        assert all(later > 0.99 * earlier for earlier, later in itertools.pairwise(pauses))
        assert max(pauses) <= limits.PLACER_RETRY_MAX_S + 1
        assert "unforeseen" in str(placements.failure("here", "c"))
        api.before = None
        await asyncio.sleep(limits.PLACER_RETRY_MAX_S + 2)
        assert placements.failure("here", "c") is None

    play(scenario)


@pytest.mark.parametrize("error", [StartError("no token is mounted"), OSError("the CA file is away")], ids=repr)
def test_a_placer_without_an_api_is_started_again_until_it_has_one(error: Exception) -> None:
    async def scenario(api: LocalKubernetes, _placements: Placements) -> None:
        tries: list[float] = []
        left: list[str] = []
        broken = True

        def api_of(namespace: str) -> LocalKubernetes:
            if broken:
                tries.append(asyncio.get_running_loop().time())
                raise error
            return api

        async def leave(namespace: str) -> None:
            left.append(namespace)

        detector = CountingDetector()
        placements = Placements(api_of, NoWorkerAnswers(), leave, known={("here", "c"): detector})
        placements.ensure("here", "c")
        for _ in range(100):
            await asyncio.sleep(1)
            placements.ensure("here", "c")  # as each look at the cluster does
        assert len(placements) == 1
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert 1 < len(pauses) < 20
        assert pauses == sorted(pauses)
        for reported in (placements.reason("here", "c"), placements.failure("here", "c")):
            assert repr(error) in str(reported)
        broken = False
        await asyncio.sleep(limits.PLACER_RETRY_MAX_S + 1)
        for renewal in range(1, 8):
            make_worker(api, renewal)
            await asyncio.sleep(1)
        assert placements.failure("here", "c") is None
        assert len(read_map(api.core.get(STREAM_CLUSTERS, "c")).assignments) == 4
        assert detector.looks > 0, "what was known of the workers is used by the placer that has an API"
        broken = True
        placements.ensure("there", "c")
        await asyncio.sleep(10)
        await placements.close()
        assert len(placements) == 0
        assert left == ["here", "there"]

    play(scenario)


def test_changes_of_workers_are_reported_at_once() -> None:
    """The map does not change while no worker can take a container, so its watch reports nothing."""

    async def scenario(api: LocalKubernetes, _: Placements) -> None:
        reported: list[Unconfirmed | None] = []
        placements = Placements(
            lambda namespace: api,
            NoWorkerAnswers(),
            changed=lambda *place: reported.append(placements.unconfirmed(*place)),
        )
        assert placements.unconfirmed("here", "c") is None
        placements.ensure("here", "c")
        for renewal in range(1, 8):
            make_worker(api, renewal)
            await asyncio.sleep(1)
        everything = frozenset(range(4))
        assert reported == [Unconfirmed()]
        await asyncio.sleep(4 * limits.WORKER_LEASE_LAPSE_S)
        assert reported == [
            Unconfirmed(),
            Unconfirmed(worker_unknown=everything),
            Unconfirmed(worker_dead=everything),
        ], "silent, and then given up"
        make_worker(api, 8)
        await asyncio.sleep(2)
        assert reported[3:] == [Unconfirmed()]
        await placements.close()

    play(scenario)


def test_what_workers_cannot_open_is_reported_at_once() -> None:
    async def scenario(api: LocalKubernetes, _: Placements) -> None:
        reported: list[Any] = []
        placements = Placements(
            lambda namespace: api,
            NoWorkerAnswers(),
            changed=lambda *place: reported.append(placements.not_open(*place)),
        )
        assert placements.not_open("here", "c") is None
        placements.ensure("here", "c")
        for renewal in range(1, 10):
            make_worker(api, renewal, not_open="container 3 is not open: damaged" if renewal in (5, 6) else "")
            await asyncio.sleep(1)
        assert reported == [{}, {"a": "container 3 is not open: damaged"}, {}]
        await placements.close()

    play(scenario)


def test_connections_to_a_namespace_are_kept_while_a_cluster_of_it_is_placed() -> None:
    async def scenario(api: LocalKubernetes, _: Placements) -> None:
        left: list[str] = []

        async def leave(namespace: str) -> None:
            left.append(namespace)

        placements = Placements(lambda namespace: api, NoWorkerAnswers(), leave)
        for place in (("here", "c"), ("here", "d"), ("there", "c")):
            placements.ensure(*place)
        await asyncio.sleep(2)
        await placements.end("here", "c")
        assert left == []
        await placements.end("here", "d")
        assert left == ["here"]
        await placements.close()
        assert left == ["here", "there"]

    play(scenario)
