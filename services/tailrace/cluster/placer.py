"""The placer: watches the workers and writes the container map (design §9). One is active at a time; two do no harm.

Each step looks at the workers' Leases, decides who lives (`failure`), reads the map freshly, decides what moves
(`placement`), and replaces the map by compare-and-swap. Whatever fails ends the step, and nothing has moved. The map
can be lost: containers that it does not mention are where their Leases say.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.cluster.cluster_map import Assignment, ClusterMap, is_of_cluster, read_map, write_map
from tailrace.cluster.failure import FailureDetector, Renewal, Verdict
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, KubernetesApi
from tailrace.cluster.leases import (
    CONTAINER_ROLE,
    WORKER_ROLE,
    WorkerLease,
    labels_of,
    read_container_lease,
    read_worker_lease,
)
from tailrace.cluster.placement import Step, Workers, next_step
from tailrace.cluster.rebalance_gate import Accepting, RebalanceGate
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from typing import NoReturn

    from tailrace.cluster.endpoints import ContainerEndpoints
    from tailrace.cluster.kubernetes import Manifest

_logger = structlog.get_logger()


class Prober(Protocol):
    """Asks a worker itself whether it is there."""

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """Whether the worker answers within ``limits.PROBE_DEADLINE_S``."""
        ...

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """Whether its address refuses a connection: the worker has ended. Silence is none, nor is any other failure."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step did, and why, in one sentence; ``changed``: the map was written."""

    reason: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Homes:
    """Containers by what is known of the workers that the map gives them; all others' live.

    ``lost``: theirs are gone, and nobody is there to take them. ``doubtful``: it is not known whether theirs live.
    """

    lost: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()


class Placer:
    """Places the containers of one cluster."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: str,
        prober: Prober,
        calm_s: float | None = None,
        detector: FailureDetector | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``calm_s``: how long the map is left uneven after a failure (default: ``limits.PLACER_BALANCE_DELAY_S``).

        ``detector``: what is known of the workers already. ``changed`` is called by `run` when `homes` are others.
        """
        self._api = api
        self._cluster = cluster
        self._prober = prober
        self._detector = detector or FailureDetector()
        self._changed = changed
        self._calm = RebalanceGate(limits.PLACER_BALANCE_DELAY_S if calm_s is None else calm_s)
        self._named: frozenset[str] = frozenset()
        self._endpoints: dict[str, ContainerEndpoints] = {}
        self._marked_at_s: dict[tuple[int, Assignment], float] = {}
        self.decision: Decision | None = None
        """What the last step of `run` did."""
        self.homes: Homes | None = None
        """As of the last step that could look and write; None: there was none yet."""

    async def run(self) -> NoReturn:
        """Take steps until cancelled."""
        loop = asyncio.get_running_loop()
        last = ""
        while True:
            began_s, homes = loop.time(), self.homes
            self.decision = decision = await self.step()
            if self.homes != homes:
                self._changed()
            if decision.reason != last:
                _logger.info("placement", cluster=self._cluster, reason=decision.reason)
                last = decision.reason
            await asyncio.sleep(max(0.0, began_s + limits.PLACER_PERIOD_S - loop.time()))

    async def step(self) -> Decision:
        """Look, decide, write. What could not be read or written is tried again by the next step."""
        try:
            leases = await self._look()
        except UnavailableError as error:
            self._detector.lost_contact()
            return Decision(f"the workers' Leases could not be listed, nothing moves: {error}")
        verdict = await self._judge(asyncio.get_running_loop().time())
        try:
            return await self._place(leases, verdict)
        except (UnavailableError, WriteConflictError) as error:
            return Decision(f"the map was not written: {error}")
        except (NotFoundError, BadRequestError) as error:
            return Decision(f"there is no cluster to place: {error}")

    async def _look(self) -> dict[str, WorkerLease]:
        listing = await self._api.list(LEASES, labels_of(self._cluster, WORKER_ROLE))
        leases = [lease for item in listing.items if (lease := read_worker_lease(item)) is not None]
        renewals = {lease.worker: Renewal(lease.incarnation, lease.renewal) for lease in leases}
        self._detector.look(asyncio.get_running_loop().time(), renewals, self._named)
        # Not the map's alone: with a detector that knows the workers already, they may be asked before the map is read.
        self._endpoints |= {lease.worker: lease.endpoints for lease in leases if lease.endpoints is not None}
        return {lease.worker: lease for lease in leases}

    async def _judge(self, looked_s: float) -> Verdict:
        """What is known as of the last look. Nobody lapses by the time that asking others takes."""
        suspects = self._detector.suspects(looked_s)[: limits.PROBES_REFUSAL_MAX]  # the next look is not to be late
        for worker, refuses in await self._ask(self._prober.refuses, suspects, limits.PROBES_REFUSAL_MAX):
            if refuses:
                self._detector.refused(worker, looked_s)
        verdict = self._detector.verdict(looked_s)
        for worker, alive in await self._ask(self._prober.answers, verdict.ask, limits.PROBES_CONCURRENT_MAX):
            _logger.warning("worker_asked", worker=worker, answers=alive)
            self._detector.answered(worker, looked_s, alive=alive)
        return self._detector.verdict(looked_s)

    async def _ask(
        self,
        question: Callable[[str, ContainerEndpoints | None], Awaitable[bool]],
        workers: Sequence[str],
        at_a_time: int,
    ) -> list[tuple[str, bool]]:
        room = asyncio.Semaphore(at_a_time)

        async def ask(worker: str) -> bool:
            async with room:
                return await question(worker, self._endpoints.get(worker))

        answers = await asyncio.gather(*(ask(worker) for worker in workers))
        return list(zip(workers, answers, strict=True))

    async def _place(self, leases: Mapping[str, WorkerLease], verdict: Verdict) -> Decision:
        manifest = await self._api.get(STREAM_CLUSTERS, self._cluster)
        before = read_map(manifest)
        strangers = {name for name, lease in leases.items() if not is_of_cluster(manifest, lease.cluster_id)}
        leases = {name: lease for name, lease in leases.items() if name not in strangers}
        verdict = _without(verdict, strangers)
        holders = await self._holders(manifest, before)
        now = self._without_old_marks(_with_lost_assignments(before, holders, verdict))
        self._named = frozenset(assignment.worker for assignment in now.assignments.values())
        unheard = sorted({*verdict.unheard, *(self._named - verdict.known)})
        if unheard:
            decision, after = f"nothing moves until it is known whether {', '.join(unheard)} live", now
        else:
            workers = _workers(leases, verdict)
            accepting = frozenset((worker, leases[worker].incarnation) for worker in workers.accepting)
            going = sum(bool(assignment.handed_over_by) for assignment in now.assignments.values())
            step = await self._next_step(manifest, now, workers, accepting, going)
            after = _after(now, step)
            decision = _sentence(step, workers, verdict, going)
        after = dataclasses.replace(after, workers=_endpoints(before, leases, verdict, after))
        self._endpoints = dict(after.workers)
        if after == before:
            self.homes = _homes(after, verdict)
            return Decision(decision)
        await self._api.replace_status(STREAM_CLUSTERS, write_map(manifest, after))
        self.homes = _homes(after, verdict)
        self._named = frozenset(assignment.worker for assignment in after.assignments.values())
        return Decision(decision, changed=True)

    async def _next_step(
        self, manifest: Manifest, now: ClusterMap, workers: Workers, accepting: Accepting, going: int
    ) -> Step:
        """What moves now; for balance alone only in calm times. Who holds what is asked when all else is calm."""
        current = {number: assignment.worker for number, assignment in now.assignments.items()}
        needed, evened = (
            next_step(now.container_count, current, workers, going, limits.MOVES_IN_FLIGHT_MAX, balancing_max=count)
            for count in (0, limits.MOVES_FOR_BALANCE_MAX)
        )
        now_s = asyncio.get_running_loop().time()
        uneven = needed.uneven > 0
        self._calm.saw(now_s, accepting, placed=bool(needed.placed), uneven=uneven)
        if not uneven or not self._calm.may_balance(now_s, held=True):
            return needed
        held = _are_held(now, await self._list_holders(manifest))
        return evened if self._calm.may_balance(now_s, held=held) else needed

    def _without_old_marks(self, cluster_map: ClusterMap) -> ClusterMap:
        """Hand-overs that take too long are over: their workers may never tell, and the new one waits no longer.

        A worker that took an epoch and lost the container before it opened it stays in the Lease; who has the container
        has no reason to open it again.
        """
        now_s = asyncio.get_running_loop().time()
        marked = [(number, found) for number, found in cluster_map.assignments.items() if found.handed_over_by]
        self._marked_at_s = {mark: self._marked_at_s.get(mark, now_s) for mark in marked}
        assignments = {
            number: Assignment(found.worker)
            if now_s - self._marked_at_s.get((number, found), now_s) > limits.HANDOVER_RECORD_MAX_S
            else found
            for number, found in cluster_map.assignments.items()
        }
        return dataclasses.replace(cluster_map, assignments=assignments)

    async def _holders(self, manifest: Manifest, cluster_map: ClusterMap) -> dict[int, str]:
        """Who holds the containers of which the map says nothing, or says that they are handed over."""
        assignments = cluster_map.assignments
        if len(assignments) == cluster_map.container_count and not any(
            assignment.handed_over_by for assignment in assignments.values()
        ):
            return {}
        return await self._list_holders(manifest)

    async def _list_holders(self, manifest: Manifest) -> dict[int, str]:
        listing = await self._api.list(LEASES, labels_of(self._cluster, CONTAINER_ROLE))
        leases = [lease for item in listing.items if (lease := read_container_lease(item)) is not None]
        return {lease.container_id: lease.holder for lease in leases if is_of_cluster(manifest, lease.cluster_id)}


def _without(verdict: Verdict, strangers: Collection[str]) -> Verdict:
    """The verdict for which workers of a cluster that had the name before are gone, whatever they do.

    While their pods end they live, renew their Leases and serve their own Tier 2: a container of this cluster that was
    placed there would take events into the other one's data.
    """
    return dataclasses.replace(
        verdict,
        alive=tuple(name for name in verdict.alive if name not in strangers),
        unheard=tuple(name for name in verdict.unheard if name not in strangers),
        held=tuple(name for name in verdict.held if name not in strangers),
        dead=tuple(sorted({*verdict.dead, *strangers})),
    )


def _with_lost_assignments(before: ClusterMap, holders: Mapping[int, str], verdict: Verdict) -> ClusterMap:
    """The map as it is meant: containers that it lost are with their holders; hand-overs that have ended are over."""
    assignments = dict(before.assignments)
    living = {*verdict.alive, *verdict.unheard, *verdict.held}
    for number, holder in holders.items():
        if number not in assignments and holder and number < before.container_count:
            assignments[number] = Assignment(holder)
    for number, assignment in assignments.items():
        giver = assignment.handed_over_by
        # Without a Lease nobody can tell; with an empty one the giver has let go and the other has not taken it yet.
        if giver and (giver not in living or holders.get(number) not in (giver, "")):
            assignments[number] = Assignment(assignment.worker)
    return dataclasses.replace(before, assignments=assignments)


def _homes(cluster_map: ClusterMap, verdict: Verdict) -> Homes:
    alive, dead = {*verdict.alive}, {*verdict.dead}
    workers = {number: assignment.worker for number, assignment in cluster_map.assignments.items()}
    return Homes(
        lost=frozenset(number for number, worker in workers.items() if worker in dead),
        doubtful=frozenset(number for number, worker in workers.items() if worker not in alive | dead),
    )


def _are_held(cluster_map: ClusterMap, holders: Mapping[int, str]) -> bool:
    """Whether everybody has taken what is assigned, as far as Leases tell; what is on its way is another matter."""
    return all(
        found.handed_over_by or holders.get(number, found.worker) == found.worker
        for number, found in cluster_map.assignments.items()
    )


def _workers(leases: Mapping[str, WorkerLease], verdict: Verdict) -> Workers:
    leaving = [worker for worker in verdict.alive if worker in leases and leases[worker].leaving]
    accepting = [
        worker
        for worker in verdict.alive
        if worker in leases and worker not in leaving and leases[worker].endpoints is not None
    ]
    keeping = [worker for worker in verdict.alive if worker not in leaving and worker not in accepting]
    return Workers(accepting, [*keeping, *verdict.held], leaving)


def _after(now: ClusterMap, step: Step) -> ClusterMap:
    assignments = dict(now.assignments)
    for number, worker in step.placed.items():
        assignments[number] = Assignment(worker)
    for number, worker in step.moved.items():
        assignments[number] = Assignment(worker, now.assignments[number].worker)
    return dataclasses.replace(now, assignments=assignments)


def _endpoints(
    before: ClusterMap, leases: Mapping[str, WorkerLease], verdict: Verdict, after: ClusterMap
) -> dict[str, ContainerEndpoints]:
    """Endpoints of all workers with a Lease that are not given up; others' only while they are to have containers.

    Who leaves waits for whoever is named here to take its containers.
    """
    told = {worker: lease.endpoints for worker, lease in leases.items() if lease.endpoints is not None}
    needed = {assignment.worker for assignment in after.assignments.values()}
    found = {**before.workers, **told}
    return {worker: found[worker] for worker in sorted({*told} - {*verdict.dead} | (needed & found.keys()))}


def _sentence(step: Step, workers: Workers, verdict: Verdict, going: int) -> str:
    parts = [f"workers that take containers: {len(workers.accepting)}"]
    for what, names in (
        ("leaving", workers.leaving),
        ("silent together and kept until their pods were asked", verdict.held),
        ("gone", verdict.dead),
    ):
        if names:
            parts.append(f"{what}: {', '.join(names)}")
    for what, count in (
        ("containers placed", len(step.placed)),
        ("begin to move", len(step.moved)),
        ("were on their way", going),
        ("move later", step.postponed),
    ):
        if count:
            parts.append(f"{what}: {count}")
    return "; ".join(parts)
