"""A process that comes to lead knows how long workers were silent while it stood by."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from harness.localclusters import NoWorkerAnswers
from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from tailrace.cluster.cluster_map import Assignment, ClusterMap, read_map, write_map
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, Manifest
from tailrace.cluster.leases import WorkerLease, worker_lease_name, write_worker_lease
from tailrace.common.errors import UnavailableError
from tailrace_operator.cluster.placement import Placements
from tailrace_operator.runtime.standby import Standby

ENDPOINTS = ContainerEndpoints(Endpoint("host", 1))


class Stage:
    """Two workers of cluster ``c`` that renew once a second, each with two of its containers, and who looks at them."""

    def __init__(self) -> None:
        self.api = LocalKubernetes()
        self.reachable = True
        self.renewal = 0
        core = self.api.core
        core.create(STREAM_CLUSTERS, {"metadata": {"name": "c"}, "spec": {"containers": 4}})
        assignments = {number: Assignment("ab"[number % 2]) for number in range(4)}
        cluster_map = ClusterMap(4, assignments, {"a": ENDPOINTS, "b": ENDPOINTS})
        core.replace_status(STREAM_CLUSTERS, write_map(core.get(STREAM_CLUSTERS, "c"), cluster_map))

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """See Objects.list."""
        if not self.reachable:
            raise UnavailableError("away")
        listing = await self.api.list(kind, labels or {})
        return tuple({**item, "metadata": {**item["metadata"], "namespace": "here"}} for item in listing.items)

    async def renew(self, seconds: int, *, silent: str = "") -> None:
        """Renewals, one a second."""
        for _ in range(seconds):
            self.renewal += 1
            for worker in "ab":
                if worker not in silent:
                    name = worker_lease_name("c", worker)
                    found = self.api.core.objects.get(("leases", name))
                    lease = write_worker_lease(
                        "c", WorkerLease(worker, "i", self.renewal, endpoints=ENDPOINTS), found, 0
                    )
                    (self.api.core.replace if found else self.api.core.create)(LEASES, lease)
            await asyncio.sleep(1)

    async def lead(self, standby: Standby) -> int:
        """How many seconds pass before all containers are with worker b."""
        placements = Placements(lambda namespace: self.api, NoWorkerAnswers(), known=dict(standby.detectors))
        placements.ensure("here", "c")
        try:
            for second in range(20):
                found = read_map(self.api.core.get(STREAM_CLUSTERS, "c")).assignments
                if {assignment.worker for assignment in found.values()} == {"b"}:
                    return second
                await self.renew(1, silent="a")
        finally:
            await placements.close()
        raise AssertionError("a was never given up")


@pytest.mark.parametrize(("outage", "least_s", "most_s"), [(False, 0, 2), (True, 4, 8)])
def test_silence_during_standby_counts_unless_the_api_was_away(outage: bool, least_s: int, most_s: int) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            stage: Any = Stage()
            standby = Standby(stage, "here")
            looking = asyncio.create_task(standby.run())
            await stage.renew(4)
            stage.reachable = not outage
            await stage.renew(6, silent="a")
            stage.reachable = True
            looking.cancel()
            await asyncio.wait([looking])
            assert set(standby.detectors) == {("here", "c")}
            assert least_s <= await stage.lead(standby) <= most_s

        world.run(main())


def test_errors_while_observing_do_not_prevent_leadership() -> None:
    """A process looks only to be quick: it goes on, knows nothing, and sees again when it can."""
    with SimWorld(1) as world:

        async def main() -> None:
            stage: Any = Stage()
            standby = Standby(stage, "here")
            looking = asyncio.create_task(standby.run())
            await stage.renew(3)
            listed = stage.list

            async def strange(*asked: Any) -> tuple[Manifest, ...]:
                found = await listed(*asked)
                for item in found:
                    del item["metadata"]["namespace"]
                return tuple(found)

            stage.list = strange
            await stage.renew(3)
            assert not looking.done()
            assert not standby.detectors
            stage.list = listed
            await stage.renew(3)
            assert set(standby.detectors) == {("here", "c")}
            looking.cancel()
            await asyncio.wait([looking])

        world.run(main())
