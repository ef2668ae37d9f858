"""The container map of a simulated cluster as it was at every moment, and what must hold of it (design §9)."""

from __future__ import annotations

from sim.kubernetes import SimKubernetes
from sim.violations import require
from sim.workloads.fleetnodes import CLUSTER, CONTAINERS
from tailrace.cluster.clustermap import read_map
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, WatchEvent


class MapHistory:
    """Every map that was written, with its time; told by the API server itself."""

    def __init__(self, kubernetes: SimKubernetes) -> None:
        self._loop = kubernetes.loop
        self._maps: list[tuple[float, dict[int, str]]] = []
        kubernetes.core.subscribers.append(self._changed)

    def _changed(self, plural: str, event: WatchEvent) -> None:
        if plural == STREAM_CLUSTERS.plural and event.manifest["metadata"]["name"] == CLUSTER:
            assignments = {} if event.kind == "DELETED" else read_map(event.manifest).assignments
            now = {container: assignment.worker for container, assignment in assignments.items()}
            self._maps.append((self._loop.time(), now))

    @property
    def now(self) -> dict[int, str]:
        """The worker of each container that has one."""
        return self._maps[-1][1] if self._maps else {}

    def named(self, container: int, worker: str, since_s: float) -> bool:
        """Whether a map named the worker at some moment since then."""
        for at_s, assignments in reversed(self._maps):
            if assignments.get(container) == worker:
                return True
            if at_s < since_s:
                return False
        return False

    def is_even(self, workers: list[str]) -> bool:
        """Whether all containers are with these workers, and their numbers differ by one at most."""
        now = self.now
        counts = [list(now.values()).count(worker) for worker in workers]
        return len(now) == CONTAINERS == sum(counts) and max(counts) - min(counts) <= 1

    def check_stood_still(self, since_s: float) -> None:
        """Nothing happened since then that is a reason to move a container."""
        before: dict[int, str] = {}
        for at_s, assignments in self._maps:
            if at_s > since_s:
                require(assignments == before, f"containers moved from {before} to {assignments} without a cause")
            before = assignments
