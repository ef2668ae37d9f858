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


@bug(
    "conflict-taken-for-own-success",
    _only(calm=["herd"], troubles=[]),
    checker="owners.py",
    words="was handed out without being stored, or twice",
)
def _conflict_taken_for_own_success(patch: pytest.MonkeyPatch) -> None:
    """A write conflict on the Lease counts as the answer to one's own repeated request.

    Breaks: two owners never get the same epoch.
    """
    write = LeaseEpochs._write

    async def lenient(self: LeaseEpochs, lease: ContainerLease, found: Manifest | None) -> None:
        with contextlib.suppress(WriteConflictError):
            await write(self, lease, found)

    patch.setattr(LeaseEpochs, "_write", lenient)


@bug(
    "epoch-of-unknown-outcome-used",
    OwnershipWorkload,
    checker="owners.py",
    words="was handed out without being stored, or twice",
)
def _epoch_of_unknown_outcome_used(patch: pytest.MonkeyPatch) -> None:
    """A worker uses an epoch although the answer to the write that takes it was lost.

    Breaks: two owners never get the same epoch.
    """
    write = LeaseEpochs._write

    async def hopeful(self: LeaseEpochs, lease: ContainerLease, found: Manifest | None) -> None:
        with contextlib.suppress(UnavailableError):
            await write(self, lease, found)

    patch.setattr(LeaseEpochs, "_write", hopeful)


@bug(
    "two-processes-of-one-worker-both-own",
    _only(calm=[], troubles=["second_process"]),
    checker="workloads/ownership.py",
    words="when nothing happens",
)
def _two_processes_of_one_worker_both_own(patch: pytest.MonkeyPatch) -> None:
    """Two processes with one worker name both count as that worker.

    Breaks: a container has one owner.
    """
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
    "lost-map-made-from-nothing",
    _only(calm=["status_is_wiped"], troubles=[]),
    checker="workloads/ownership.py",
    words="the map is made again as it was",
)
def _lost_map_made_from_nothing(patch: pytest.MonkeyPatch) -> None:
    """The placer assigns the containers of a lost map without asking who holds them.

    Breaks: the loss of the map moves no container.
    """

    async def no_holders(self: placer.Placer, manifest: Manifest, cluster_map: ClusterMap) -> dict[int, str]:
        return {}

    patch.setattr(placer.Placer, "_holders", no_holders)


@bug(
    "drain-does-not-wait-for-the-giver",
    _only(calm=["drain"], troubles=[]),
    checker="workloads/ownership.py",
    words="a drain fences no worker",
)
def _drain_does_not_wait_for_the_giver(patch: pytest.MonkeyPatch) -> None:
    """The next worker opens a container while the previous one still flushes it.

    Breaks: a drain fences no owner.
    """

    async def at_once(self: follower.Follower, container_id: int) -> bool:
        return True

    patch.setattr(follower.Follower, "_is_free", at_once)


@bug(
    "hung-loop-renewed-for-ever",
    _only(calm=["hang"], troubles=[]),
    checker="workloads/ownership.py",
    words="a worker whose loop hangs is given up",
)
def _hung_loop_renewed_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The renewal thread renews the worker's Lease even when the worker's event loop hangs.

    Breaks: a worker whose event loop hangs loses its containers.
    """

    def always(self: HeartbeatRule, beats: int, now_s: float) -> bool:
        return True

    patch.setattr(HeartbeatRule, "may_renew", always)


@bug(
    "watch-trusted-to-tell-everything",
    _only(calm=[], troubles=["cut", "restart"] * 3),
    checker="owners.py",
    words="served by whom the map names",
)
def _watch_trusted_to_tell_everything(patch: pytest.MonkeyPatch) -> None:
    """A worker reads the map only when a watch reports a change.

    Breaks: every container is served soon after the last fault.
    """
    patch.setattr(limits, "MAP_RELIST_S", 1e6)
    patch.setattr(limits, "KUBERNETES_WATCH_S", 1e6)


@bug(
    "silence-counted-through-an-outage",
    _only(calm=["outage"] * 4, troubles=[]),
    checker="workloads/ownership.py",
    words="when the API is away",
)
def _silence_counted_through_an_outage(patch: pytest.MonkeyPatch) -> None:
    """The placer counts its own API outage as silence of the workers, and asks no worker directly.

    Breaks: an outage of the Kubernetes API moves no container.
    """
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


@bug(
    "containers-placed-without-need",
    _only(calm=["crash"], troubles=[]),
    checker="workloads/ownership.py",
    words="only what the dead worker had moves|gets nothing of what was just recovered|no container",
)
def _containers_placed_without_need(patch: pytest.MonkeyPatch) -> None:
    """The placer deals out all containers again whenever the workers change.

    Breaks: placement moves as few containers as possible.
    """

    def dealt(
        count: int, current: Mapping[int, str], workers: Any, going: int, going_max: int, *, balancing_max: int
    ) -> Step:
        accepting = sorted(workers.accepting)
        wanted = {number: accepting[number % len(accepting)] for number in range(count)} if accepting else {}
        if workers.keeping or workers.leaving:
            wanted = place(count, current, workers)
        return Step({number: worker for number, worker in wanted.items() if current.get(number) != worker})

    patch.setattr(placer, "next_step", dealt)
