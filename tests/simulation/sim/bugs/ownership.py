"""Planted bugs of ownership and placement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.ownership import OwnershipWorkload
from tailrace.cluster import follower, placer
from tailrace.cluster.cluster_map import ClusterMap
from tailrace.cluster.failure import FailureDetector
from tailrace.cluster.heartbeat import HeartbeatRule
from tailrace.cluster.kubernetes import Manifest
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import ContainerLease
from tailrace.cluster.placement import Step, place
from tailrace.cluster.renewal import Renewer
from tailrace.common import limits
from tailrace.common.errors import NotOwnerError, UnavailableError, WriteConflictError


def _only(*, calm: list[str], troubles: list[str]) -> Callable[[int], OwnershipWorkload]:
    """Seeds in which nothing else happens."""

    def workload(seed: int) -> OwnershipWorkload:
        made = OwnershipWorkload(seed)
        made.calm, made.troubles = calm, troubles
        return made

    return workload


@bug("conflict-taken-for-own-success", _only(calm=["herd"], troubles=[]), words="handed out")
def _conflict_taken_for_own_success(patch: pytest.MonkeyPatch) -> None:
    """A conflict while an epoch is taken counts as the answer to one's own repeated request."""
    write = LeaseEpochs._write

    async def lenient(self: LeaseEpochs, lease: ContainerLease, found: Manifest | None) -> None:
        with contextlib.suppress(WriteConflictError):
            await write(self, lease, found)

    patch.setattr(LeaseEpochs, "_write", lenient)


@bug("epoch-of-unknown-outcome-used", OwnershipWorkload, words="handed out")
def _epoch_of_unknown_outcome_used(patch: pytest.MonkeyPatch) -> None:
    """An epoch is used although the answer to the write that takes it was lost."""
    write = LeaseEpochs._write

    async def hopeful(self: LeaseEpochs, lease: ContainerLease, found: Manifest | None) -> None:
        with contextlib.suppress(UnavailableError):
            await write(self, lease, found)

    patch.setattr(LeaseEpochs, "_write", hopeful)


@bug("two-processes-of-one-worker-both-own", _only(calm=[], troubles=["second_process"]), words="nothing happens")
def _two_processes_of_one_worker_both_own(patch: pytest.MonkeyPatch) -> None:
    """Processes of one name are one worker, whichever was started last."""
    renew = Renewer.renew
    check = LeaseEpochs._check_named

    async def renewed(self: Renewer) -> None:
        try:
            await renew(self)
        except NotOwnerError:
            await self.register()

    async def checked(self: LeaseEpochs, container_id: int) -> None:
        try:
            await check(self, container_id)
        except NotOwnerError as error:
            if "elsewhere" not in str(error):
                raise

    patch.setattr(Renewer, "renew", renewed)
    patch.setattr(LeaseEpochs, "_check_named", checked)


@bug(
    "lost-map-made-from-nothing", _only(calm=["status_is_wiped"], troubles=[]), words="the map is made again as it was"
)
def _lost_map_made_from_nothing(patch: pytest.MonkeyPatch) -> None:
    """A map that lost its containers is placed anew, wherever these are."""

    async def nobody(self: placer.Placer, manifest: Manifest, cluster_map: ClusterMap) -> dict[int, str]:
        return {}

    patch.setattr(placer.Placer, "_holders", nobody)


@bug("drain-does-not-wait-for-the-giver", _only(calm=["drain"], troubles=[]), words="a drain fences nobody")
def _drain_does_not_wait_for_the_giver(patch: pytest.MonkeyPatch) -> None:
    """The next worker opens a container while the one before still flushes it."""

    async def at_once(self: follower.Follower, container_id: int) -> bool:
        return True

    patch.setattr(follower.Follower, "_is_free", at_once)


@bug("hung-loop-renewed-for-ever", _only(calm=["hang"], troubles=[]), words="loop hangs")
def _hung_loop_renewed_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The thread renews the worker's Lease whatever the worker's loop does."""

    def always(self: HeartbeatRule, beats: int, now_s: float) -> bool:
        return True

    patch.setattr(HeartbeatRule, "may_renew", always)


@bug(
    "watch-trusted-to-tell-everything",
    _only(calm=[], troubles=["cut", "restart"] * 3),
    words="served by whom the map names",
)
def _watch_trusted_to_tell_everything(patch: pytest.MonkeyPatch) -> None:
    """The map is read when a watch tells of a change, and never else."""
    patch.setattr(limits, "MAP_RELIST_S", 1e6)
    patch.setattr(limits, "KUBERNETES_WATCH_S", 1e6)


@bug("silence-counted-through-an-outage", _only(calm=["outage"] * 4, troubles=[]), words="when the API is away")
def _silence_counted_through_an_outage(patch: pytest.MonkeyPatch) -> None:
    """The time during which the placer reached nobody counts as the workers' silence, and nobody is asked."""
    look = FailureDetector.look

    def counting(self: FailureDetector, now_s: float, renewals: Mapping[str, Any], expected: Any = frozenset()) -> None:
        if self._looked_s is not None:
            self._looked_s = now_s
        look(self, now_s, renewals, expected)
        for name, worker in self._workers.items():
            if now_s - worker.heard_s > limits.WORKER_LEASE_LAPSE_S and name in renewals:
                worker.dead = True

    patch.setattr(FailureDetector, "look", counting)
    patch.setattr(FailureDetector, "lost_contact", lambda self: None)


@bug("containers-placed-without-need", _only(calm=["crash"], troubles=[]))
def _containers_placed_without_need(patch: pytest.MonkeyPatch) -> None:
    """Containers are dealt out anew whenever the workers change, whoever has them."""

    def dealt(
        count: int, current: Mapping[int, str], workers: Any, going: int, going_max: int, *, balancing_max: int
    ) -> Step:
        accepting = sorted(workers.accepting)
        wanted = {number: accepting[number % len(accepting)] for number in range(count)} if accepting else {}
        if workers.keeping or workers.leaving:
            wanted = place(count, current, workers)
        return Step({number: worker for number, worker in wanted.items() if current.get(number) != worker})

    patch.setattr(placer, "next_step", dealt)
