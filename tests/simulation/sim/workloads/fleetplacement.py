"""The container map of a simulated cluster as it was at every moment, and what must hold of it.

See docs/design.md#ownership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sim.kubernetes import Change, SimKubernetes
from sim.violations import require
from sim.workloads.fleetnodes import CLUSTER, CONTAINERS
from tailrace.cluster.cluster_map import read_map
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace.cluster.leases import read_worker_lease
from tailrace.common import limits

SEEN_EARLY_S = 1.5
"""A list is so old at most when the placer has it: it may count a silence that the API server saw for so much less."""
SEEN_IN_BLINKS_S = 1.5
"""The same when the placer may are paused over a list that it was sent: `LOOKS_MIN` looks say little of a time."""
SEEN_LATE_S = 4.0
"""So much longer than a lapse is a silence that no placer can miss: two of its looks, and slow answers to both."""
CUT_OFF_LEAST_S = limits.WORKER_STORE_SILENT_S - limits.WORKER_STORE_PROBE_S - 1.0
"""The object store was away for so long at least from a worker that loses its containers by it."""
CUT_OFF_SEEN_S = limits.WORKER_STORE_SILENT_S + limits.WORKER_STORE_PROBE_S + 6.0
"""So long after a cut its worker has no containers any more, when nothing else is wrong."""
CUT_OFF_LATE_S = limits.WORKER_STORE_PROBE_DEADLINE_S + 5.0
"""So long after its return a worker may lose them still: it has to notice, its Lease to say so, the placer to look."""
TOGETHER_S = limits.WORKER_LEASE_TOGETHER_S - 1.5
"""Silences that begin so close to each other are together for every placer, whenever it looks."""


@dataclass(frozen=True, slots=True)
class Causes:
    """What the faults of a seed may do to the placer's view of workers that are well.

    ``silences``: renewals fail. ``blinks``: the placer is paused or starts to observe again, so that it sees more or
    less of a silence than there is. ``unanswered``: a worker may not be heard when it is asked.
    """

    silences: bool = False
    blinks: bool = False
    unanswered: bool = False


class Silences:
    """How long the API server saw no renewal of whom."""

    def __init__(self) -> None:
        self._renewed_s: dict[str, list[float]] = {}

    def renewed(self, worker: str, at_s: float) -> None:
        """The worker's Lease was written."""
        self._renewed_s.setdefault(worker, []).append(at_s)

    def may_lapse_alone(self, worker: str, since_s: float, until_s: float, *, blinks: bool) -> bool:
        """Whether a placer may have given the worker up between then: silent for long, and most others were not."""
        least_s = SEEN_IN_BLINKS_S if blinks else limits.WORKER_LEASE_LAPSE_S - SEEN_EARLY_S
        for began_s, ended_s in self._of(worker, until_s):
            if ended_s > since_s and ended_s - began_s >= least_s:
                together = {worker, *self._surely_lapsed(began_s, until_s)}
                if blinks or 2 * len(together) <= len(self._renewed_s):
                    return True
        return False

    def _surely_lapsed(self, about_s: float, until_s: float) -> list[str]:
        least_s = limits.WORKER_LEASE_LAPSE_S + SEEN_LATE_S
        return [
            worker
            for worker in self._renewed_s
            for began_s, ended_s in self._of(worker, until_s)
            if abs(began_s - about_s) <= TOGETHER_S and ended_s - began_s >= least_s
        ]

    def _of(self, worker: str, until_s: float) -> list[tuple[float, float]]:
        times = [at_s for at_s in self._renewed_s.get(worker, []) if at_s < until_s]
        return list(zip(times, [*times[1:], until_s], strict=True))


class MapHistory:
    """Every map that was written, with its time; reported by the API server itself."""

    def __init__(self, kubernetes: SimKubernetes) -> None:
        self._loop = kubernetes.loop
        self._maps: list[tuple[float, dict[int, str]]] = []
        self._silences = Silences()
        self._unanswered: list[tuple[float, str]] = []
        self._cut_off: list[tuple[float, float, str]] = []
        kubernetes.core.subscribers.append(self._changed)

    def _changed(self, event: Change) -> None:
        if event.plural == STREAM_CLUSTERS.plural and event.manifest["metadata"]["name"] == CLUSTER:
            assignments = {} if event.kind == "DELETED" else read_map(event.manifest).assignments
            now = {container: assignment.worker for container, assignment in assignments.items()}
            self._maps.append((self._loop.time(), now))
        elif event.plural == LEASES.plural and event.kind != "DELETED":
            lease = read_worker_lease(event.manifest)
            if lease is not None:
                self._silences.renewed(lease.worker, self._loop.time())

    def unanswered(self, worker: str) -> None:
        """The placer asked the worker, and had no answer."""
        self._unanswered.append((self._loop.time(), worker))

    def cut_off(self, worker: str, span_s: float) -> None:
        """The worker cannot reach the object store for so long from now on."""
        self._cut_off.append((self._loop.time(), self._loop.time() + span_s, worker))

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

    def check_stood_still(self, since_s: float, causes: Causes) -> None:
        """Nothing happened since then that is a reason to move a container.

        That a worker lapses is one, as the placer promises it: no renewal for 5 s, unless most lapse together (then: no
        answer either). That the object store does not answer it alone is another one. When the worker is back,
        containers come back to it.
        """
        before: dict[int, str] = {}
        given_up: set[str] = set()
        for at_s, assignments in self._maps:
            if at_s > since_s:
                for worker in _givers(before, assignments, given_up):
                    require(
                        self._may_be_given_up(worker, since_s, at_s, causes),
                        f"containers moved from {before} to {assignments} without a cause",
                    )
                    given_up.add(worker)
            before = assignments

    def _may_be_given_up(self, worker: str, since_s: float, until_s: float, causes: Causes) -> bool:
        if causes.unanswered and any(since_s < at_s < until_s and who == worker for at_s, who in self._unanswered):
            return True
        if self._may_be_cut_off(worker, until_s):
            return True
        return causes.silences and self._silences.may_lapse_alone(worker, since_s, until_s, blinks=causes.blinks)

    def check_cut_off(self, workers: Collection[str]) -> int:
        """Each worker that the object store did not answer, while it answered another one, lost its containers in time.

        Nothing else was wrong. Returns how many there were.
        """
        count = 0
        for began_s, ended_s, worker in self._cut_off:
            seen_s = began_s + CUT_OFF_SEEN_S
            cut = {who for since_s, to_s, who in self._cut_off if since_s < seen_s and to_s > began_s - CUT_OFF_SEEN_S}
            if ended_s <= seen_s or cut >= {*workers}:
                continue
            count += 1
            assignments = next(found for at_s, found in reversed(self._maps) if at_s <= seen_s)
            require(
                worker not in assignments.values(), f"{worker} is cut off since {began_s:.1f} and has {assignments}"
            )
        return count

    def _may_be_cut_off(self, worker: str, until_s: float) -> bool:
        return any(
            who == worker and ended_s - began_s >= CUT_OFF_LEAST_S and began_s < until_s < ended_s + CUT_OFF_LATE_S
            for began_s, ended_s, who in self._cut_off
        )


def _givers(before: Mapping[int, str], after: Mapping[int, str], given_up: Collection[str]) -> list[str]:
    """Who lost containers, but for those that came back to a worker that was given up; "" for what no worker had."""
    moved = [number for number in sorted({*before, *after}) if before.get(number) != after.get(number)]
    return [before.get(number, "") for number in moved if after.get(number) not in given_up]
