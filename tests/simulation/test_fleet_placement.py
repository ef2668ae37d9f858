"""What the checker of the fleet takes for a cause to move containers, and what it does not."""

from __future__ import annotations

import asyncio

import pytest

from sim import SimWorld
from sim.kubernetes import SimKubernetes
from sim.violations import Violation
from sim.workloads.fleetnodes import CLUSTER, stream_cluster
from sim.workloads.fleetplacement import Causes, MapHistory
from tailrace.cluster.cluster_map import Assignment, ClusterMap, write_map
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.cluster.leases import WorkerLease, worker_lease_name, write_worker_lease

SILENCES = Causes(silences=True)
Silent = dict[str, tuple[int, int]]
"""By worker: from which second to which it renews nothing."""


def history(silent: Silent, maps: dict[int, str], unanswered: dict[int, str] | None = None) -> MapHistory:
    """A minute of a cluster whose workers renew once a second; `maps` have a letter for each container."""
    with SimWorld(1) as world:
        kubernetes = SimKubernetes(world.loop, 1)
        core, found = kubernetes.core, MapHistory(kubernetes)

        def renew(worker: str, number: int) -> None:
            name, lease = worker_lease_name(CLUSTER, worker), WorkerLease(worker, "1", number)
            if number == 0:
                core.create(LEASES, write_worker_lease(CLUSTER, lease, None, 0))
            else:
                core.replace(LEASES, write_worker_lease(CLUSTER, lease, core.get(LEASES, name), 0))

        async def minute() -> None:
            core.create(STREAM_CLUSTERS, stream_cluster())
            for second in range(60):
                for worker in sorted(set(maps[0])):
                    begins, ends = silent.get(worker, (0, 0))
                    if not begins <= second < ends:
                        renew(worker, second)
                if second in maps:
                    assignments = {number: Assignment(worker) for number, worker in enumerate(maps[second])}
                    manifest = core.get(STREAM_CLUSTERS, CLUSTER)
                    core.replace_status(STREAM_CLUSTERS, write_map(manifest, ClusterMap(4, assignments)))
                if second in (unanswered or {}):
                    found.unanswered((unanswered or {})[second])
                await asyncio.sleep(1)

        world.run(minute())
    return found


def check(found: MapHistory, causes: Causes) -> None:
    found.check_stood_still(1001.5, causes)


@pytest.mark.parametrize(
    ("silent", "maps"),
    [
        pytest.param({}, {0: "aabb"}, id="nothing moves"),
        pytest.param({"a": (10, 60)}, {0: "aabb", 16: "bbbb"}, id="a worker is gone"),
        pytest.param({"a": (10, 15), "b": (10, 14)}, {0: "aabb", 15: "bbbb"}, id="one is back before the other lapses"),
        pytest.param({"a": (10, 17)}, {0: "aabb", 16: "bbbb", 18: "aabb"}, id="containers come back with their worker"),
        pytest.param({"a": (10, 60), "b": (20, 60)}, {0: "abcc", 16: "bbcc", 26: "cccc"}, id="one after the other"),
        pytest.param({"a": (10, 60), "b": (14, 60)}, {0: "aabb", 15: "bbbb"}, id="the first of two is long silent"),
    ],
)
def test_the_silence_of_a_worker_is_a_cause(silent: Silent, maps: dict[int, str]) -> None:
    check(history(silent, maps), SILENCES)


@pytest.mark.parametrize(
    ("silent", "maps"),
    [
        pytest.param({}, {0: "aabb", 16: "bbbb"}, id="no worker is silent"),
        pytest.param({"a": (10, 60)}, {0: "aabb", 16: "aaaa"}, id="another is silent"),
        pytest.param({"a": (10, 60)}, {0: "aabb", 12: "bbbb"}, id="silent for a short time"),
        pytest.param({"a": (10, 25), "b": (10, 22)}, {0: "aabb", 23: "bbbb"}, id="both lapsed, one is back"),
        pytest.param({"a": (10, 25), "b": (10, 23)}, {0: "abcc", 18: "cccc"}, id="two of three lapse"),
        pytest.param({"a": (10, 17)}, {0: "abcc", 16: "bbcc", 18: "accc"}, id="more moves than comes back"),
        pytest.param({"a": (10, 60)}, {0: "aabb", 16: "bb"}, id="containers without a worker"),
    ],
)
def test_all_else_is_none(silent: Silent, maps: dict[int, str]) -> None:
    with pytest.raises(Violation, match="without a cause"):
        check(history(silent, maps), SILENCES)


def test_silence_is_a_cause_only_where_renewals_may_fail() -> None:
    found = history({"a": (10, 60)}, {0: "aabb", 16: "bbbb"})
    with pytest.raises(Violation, match="without a cause"):
        check(found, Causes())


def test_a_placer_that_starts_again_sees_less_than_there_was() -> None:
    found = history({"a": (10, 25), "b": (10, 22)}, {0: "aabb", 23: "bbbb"})
    check(found, Causes(silences=True, blinks=True))


def test_no_answer_is_a_cause_only_where_answers_may_be_lost() -> None:
    found = history({"a": (10, 30), "b": (10, 30)}, {0: "aabb", 23: "bbbb"}, unanswered={22: "a"})
    check(found, Causes(silences=True, unanswered=True))
    with pytest.raises(Violation, match="without a cause"):
        check(found, SILENCES)
