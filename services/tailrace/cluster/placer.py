"""The placer: watches the workers and writes the container map. One is active at a time; two do no harm.

See docs/design.md#ownership, docs/design.md#failure-detection.

Each step lists the workers' Leases, decides which workers are alive (`failure`), reads the map, decides what moves
(`placement`), and replaces the map by compare-and-swap. A failure ends the step, and nothing has moved. The map can be
lost: containers that it does not mention are where their Leases say.
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
from tailrace.cluster.placement import Step, Workers, moves_at_a_time, next_step
from tailrace.cluster.rebalance_gate import Accepting, RebalanceGate
from tailrace.cluster.store_silence import StoreSilence
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from typing import NoReturn

    from tailrace.cluster.endpoints import ContainerEndpoints
    from tailrace.cluster.kubernetes import Manifest

_logger = structlog.get_logger()


class Prober(Protocol):
    """Probes a worker directly."""

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """Return whether the worker answers within ``limits.PROBE_DEADLINE_S``."""
        ...

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """Return whether its address refuses a connection: the worker has ended. Other failures prove nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step did and why, in one sentence; ``changed``: the map was written."""

    reason: str
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Containers whose assigned worker is not confirmed alive, by number.

    ``worker_dead``: no other worker can take them. ``worker_unknown``: whether their worker is alive is unknown.
    """

    worker_dead: frozenset[int] = frozenset()
    worker_unknown: frozenset[int] = frozenset()


class Placer:
    """Places the containers of one cluster."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: str,
        prober: Prober,
        balance_delay_s: float | None = None,
        detector: FailureDetector | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``balance_delay_s``: how long the map stays uneven after a failure, by default PLACER_BALANCE_DELAY_S.

        ``detector``: what is known of the workers already. `run` calls ``changed`` when `unconfirmed` or `not_open`
        changes.
        """
        self._api = api
        self._cluster = cluster
        self._prober = prober
        self._detector = detector or FailureDetector()
        self._silence = StoreSilence()
        self._changed = changed
        self._gate = RebalanceGate(limits.PLACER_BALANCE_DELAY_S if balance_delay_s is None else balance_delay_s)
        self._named: frozenset[str] = frozenset()
        self._endpoints: dict[str, ContainerEndpoints] = {}
        self._marked_at_s: dict[tuple[int, Assignment], float] = {}
        self.decision: Decision | None = None
        """What the last step of `run` did."""
        self.unconfirmed: Unconfirmed | None = None
        """As of the last step that could list and write; None before the first."""
        self.not_open: Mapping[str, str] | None = None
        """Which containers workers that are alive cannot open, and why, as of the last list; None before the first."""

    async def run(self) -> NoReturn:
        """Take steps until cancelled."""
        loop = asyncio.get_running_loop()
        last = ""
        while True:
            began_s, before = loop.time(), (self.unconfirmed, self.not_open)
            self.decision = decision = await self.step()
            if (self.unconfirmed, self.not_open) != before:
                self._changed()
            if decision.reason != last:
                _logger.info("placement", cluster=self._cluster, reason=decision.reason)
                last = decision.reason
            await asyncio.sleep(max(0.0, began_s + limits.PLACER_PERIOD_S - loop.time()))

    async def step(self) -> Decision:
        """List, decide, write. The next step retries what could not be read or written."""
        try:
            leases = await self._look()
        except UnavailableError as error:
            self._detector.lost_contact()
            return Decision(f"the workers' Leases could not be listed, nothing moves: {error}")
        verdict = await self._judge(asyncio.get_running_loop().time())
        alive = sorted(set(verdict.alive) & leases.keys())
        self.not_open = {worker: leases[worker].not_open for worker in alive if leases[worker].not_open}
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
        now_s = asyncio.get_running_loop().time()
        self._detector.look(now_s, renewals, self._named)
        self._silence.look(now_s, {lease.worker: lease.store_silent_s for lease in leases})
        # Also from Leases: a detector that knows the workers already may have them probed before the map is read.
        self._endpoints |= {lease.worker: lease.endpoints for lease in leases if lease.endpoints is not None}
        return {lease.worker: lease for lease in leases}

    async def _judge(self, looked_s: float) -> Verdict:
        """Return the verdict as of the last look; the time that probes take lets no worker lapse."""
        suspects = self._detector.suspects(looked_s)[: limits.PROBES_REFUSAL_MAX]  # bounded, or the next look is late
        for worker, refuses in await self._ask(self._prober.refuses, suspects, limits.PROBES_REFUSAL_MAX):
            if refuses:
                self._detector.refused(worker, looked_s)
        verdict = self._detector.verdict(looked_s)
        for worker, alive in await self._ask(self._prober.answers, verdict.ask, limits.PROBES_CONCURRENT_MAX):
            _logger.warning("worker_probed", worker=worker, answers=alive)
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
            decision, after = f"nothing moves until it is known whether {', '.join(unheard)} are alive", now
        else:
            workers = _workers(leases, verdict)
            cut_off = self._silence.cut_off(asyncio.get_running_loop().time(), verdict.alive, workers.accepting)
            workers = _without_cut_off(workers, cut_off)
            accepting = frozenset((worker, leases[worker].incarnation) for worker in workers.accepting)
            going = sum(bool(assignment.handed_over_by) for assignment in now.assignments.values())
            step = await self._next_step(manifest, now, workers, accepting, going)
            after = _after(now, step)
            decision = _sentence(step, workers, verdict, cut_off, going)
        after = dataclasses.replace(after, workers=_endpoints(before, leases, verdict, after))
        self._endpoints = dict(after.workers)
        if after == before:
            self.unconfirmed = _unconfirmed(after, verdict)
            return Decision(decision)
        await self._api.replace_status(STREAM_CLUSTERS, write_map(manifest, after))
        self.unconfirmed = _unconfirmed(after, verdict)
        self._named = frozenset(assignment.worker for assignment in after.assignments.values())
        return Decision(decision, changed=True)

    async def _next_step(
        self, manifest: Manifest, now: ClusterMap, workers: Workers, accepting: Accepting, going: int
    ) -> Step:
        """Return what moves now; for balance alone only through the gate. Holders are listed only when it may open."""
        current = {number: assignment.worker for number, assignment in now.assignments.items()}
        at_a_time = moves_at_a_time(current, workers, limits.MOVES_AT_A_TIME, limits.MOVES_AT_A_TIME_SHARE)
        needed, evened = (
            next_step(now.container_count, current, workers, going, at_a_time, balancing_max=count)
            for count in (0, limits.MOVES_FOR_BALANCE_MAX)
        )
        now_s = asyncio.get_running_loop().time()
        uneven = needed.uneven > 0
        self._gate.observe(now_s, accepting, placed=bool(needed.placed), uneven=uneven)
        if not uneven or not self._gate.may_balance(now_s, held=True):
            return needed
        held = _are_held(now, await self._list_holders(manifest))
        return evened if self._gate.may_balance(now_s, held=held) else needed

    def _without_old_marks(self, cluster_map: ClusterMap) -> ClusterMap:
        """Drop hand-overs that take too long: their old workers may never report, and the new ones wait no longer.

        A worker that took an epoch, and lost the container before opening it, stays in the Lease. The container's owner
        has no reason to take another epoch.
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
        """Return the holders of containers that the map does not mention or marks as handed over."""
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
    """Count workers of an earlier cluster of the same name as dead.

    While their pods end, they renew their Leases and serve their own Tier 2. A container of this cluster that was
    placed there would write events into the other cluster's data.
    """
    return dataclasses.replace(
        verdict,
        alive=tuple(name for name in verdict.alive if name not in strangers),
        unheard=tuple(name for name in verdict.unheard if name not in strangers),
        held=tuple(name for name in verdict.held if name not in strangers),
        dead=tuple(sorted({*verdict.dead, *strangers})),
    )


def _with_lost_assignments(before: ClusterMap, holders: Mapping[int, str], verdict: Verdict) -> ClusterMap:
    """Complete the map: containers that it lost are with their holders, and ended hand-overs are dropped."""
    assignments = dict(before.assignments)
    living = {*verdict.alive, *verdict.unheard, *verdict.held}
    for number, holder in holders.items():
        if number not in assignments and holder and number < before.container_count:
            assignments[number] = Assignment(holder)
    for number, assignment in assignments.items():
        giver = assignment.handed_over_by
        # Without a Lease the state is unknown. An empty holder: the giver released it, the new worker has not taken it.
        if giver and (giver not in living or holders.get(number) not in (giver, "")):
            assignments[number] = Assignment(assignment.worker)
    return dataclasses.replace(before, assignments=assignments)


def _unconfirmed(cluster_map: ClusterMap, verdict: Verdict) -> Unconfirmed:
    alive, dead = {*verdict.alive}, {*verdict.dead}
    workers = {number: assignment.worker for number, assignment in cluster_map.assignments.items()}
    return Unconfirmed(
        worker_dead=frozenset(number for number, worker in workers.items() if worker in dead),
        worker_unknown=frozenset(number for number, worker in workers.items() if worker not in alive | dead),
    )


def _are_held(cluster_map: ClusterMap, holders: Mapping[int, str]) -> bool:
    """Return whether every worker holds its assigned containers according to the Leases; hand-overs do not count."""
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


def _without_cut_off(workers: Workers, cut_off: Collection[str]) -> Workers:
    """Let workers that are cut off from the object store have no containers: they cannot write or flush them."""
    collections = (workers.accepting, workers.keeping, workers.leaving)
    return Workers(*([worker for worker in some if worker not in cut_off] for some in collections))


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
    """Return the endpoints of all workers with a Lease that are not dead; of others only while they have containers.

    A draining worker waits for the workers named here to take its containers.
    """
    published = {worker: lease.endpoints for worker, lease in leases.items() if lease.endpoints is not None}
    needed = {assignment.worker for assignment in after.assignments.values()}
    found = {**before.workers, **published}
    return {worker: found[worker] for worker in sorted({*published} - {*verdict.dead} | (needed & found.keys()))}


def _sentence(step: Step, workers: Workers, verdict: Verdict, cut_off: Sequence[str], going: int) -> str:
    parts = [f"workers that take containers: {len(workers.accepting)}"]
    for what, names in (
        ("leaving", workers.leaving),
        ("silent together and kept until they are probed", verdict.held),
        ("without an answer of the object store", cut_off),
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
