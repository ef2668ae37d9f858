"""Planted bugs of a cluster: ownership, placement, and what owners do that are none any more."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.ports import EPOCH_MS
from sim.workloads.fleet import FleetWorkload
from tailrace.cluster.failure import FailureDetector, Renewal
from tailrace.cluster.kubernetes import LEASES, Manifest
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import (
    WORKER_ROLE,
    ContainerLease,
    WorkerLease,
    labels_of,
    micro_time,
    read_worker_lease,
    write_container_lease,
)
from tailrace.cluster.placer import Placer
from tailrace.cluster.store_silence import StoreSilence
from tailrace.common import limits
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.container.ownership_check import OwnershipCheck


def _short(seed: int, faults: Sequence[str], rounds: int, least_s: float = 0.0) -> FleetWorkload:
    """A seed with little but these faults."""
    workload = FleetWorkload(seed, faults)
    workload.store_count, workload.controller_count = 2, 1
    workload.starts_from_nothing = workload.verifies = False
    workload.nemesis.rounds, workload.nemesis.least_s = rounds, least_s
    return workload


def _zombies(seed: int) -> FleetWorkload:
    """Owners that do not hear that they are none any more."""
    workload = _short(seed, ["isolated"], 1, least_s=15.0)
    workload.writers, workload.users = 1, 2
    return workload


async def _never(self: OwnershipCheck) -> None:
    """Looks never."""


@bug("stale-owner-reads", _zombies, checker="workloads/fleetledger.py", words="returned .* were there .* s before")
def _stale_owner_reads(patch: pytest.MonkeyPatch) -> None:
    """An owner answers reads until it is notified that another owner exists.

    Breaks: an owner that was replaced answers nothing older than 2 s.
    """
    patch.setattr(OwnershipCheck, "may_answer", lambda self: True)
    patch.setattr(OwnershipCheck, "run", _never)


@bug(
    "acknowledge-after-the-claim",
    _zombies,
    checker="workloads/fleetledger.py",
    words="acknowledged frame .* after Opening",
)
def _acknowledge_after_the_claim(patch: pytest.MonkeyPatch) -> None:
    """A server acknowledges stored frames without checking for a later owner.

    Breaks: only one owner of a log acknowledges.
    """

    async def acknowledge_stored(self: ObjectLog) -> None:
        """Trusts that no later owner exists since it opened the log."""
        while self._stored_through > self._acknowledged_through and self._failure is None:
            self._acknowledge(self._stored_through)
        self._looking = False

    patch.setattr(ObjectLog, "_acknowledge_stored", acknowledge_stored)


def _rivals(seed: int) -> FleetWorkload:
    """Containers are moved away from workers that hear of it late."""
    workload = _short(seed, ["crash"], 3, least_s=8.0)
    workload.kubernetes.dead_watch_chance = 1.0
    return workload


def _late_writes(seed: int) -> FleetWorkload:
    """Workers that take many epochs, over an API whose writes may come late."""
    workload = _short(seed, ["crash"], 8)
    workload.kubernetes.late_chance = 0.3
    workload.kubernetes.late_max_s = 15.0
    return workload


@bug("epoch-of-lease-reused", _late_writes, checker="workloads/fleetledger.py", words="got epoch .* (after|which)")
def _epoch_of_lease_reused(patch: pytest.MonkeyPatch) -> None:
    """A worker writes its epoch to the container's Lease without compare-and-swap.

    Breaks: two owners never get the same epoch.
    """

    async def write(self: LeaseEpochs, lease: ContainerLease, found: Manifest | None) -> None:
        """Overwrites."""
        attached: Any = self._api
        manifest = write_container_lease(self._cluster, lease, found, self._clock.now_ms())

        def effect() -> None:
            objects, key = attached._api.core, (LEASES.plural, manifest["metadata"]["name"])
            if key not in objects.objects:
                objects.create(LEASES, manifest)
                return
            there = objects.objects[key]["metadata"]
            manifest["metadata"].update(uid=there["uid"], resourceVersion=there["resourceVersion"])
            objects.replace(LEASES, manifest)

        await attached._request("patch leases", effect, writes=True)

    patch.setattr(LeaseEpochs, "_write", write)


def _wiped(seed: int) -> FleetWorkload:
    """Leases are lost again and again while workers take epochs."""
    return _short(seed, ["wipe", "crash"], 6)


@bug("floor-of-the-log-ignored", _wiped, checker="workloads/fleetledger.py", words="it must be above")
def _floor_of_the_log_ignored(patch: pytest.MonkeyPatch) -> None:
    """A container's Lease that was lost starts again at epoch 1, whatever the log says.

    Breaks: two owners never get the same epoch.
    """
    take = LeaseEpochs.take
    patch.setattr(LeaseEpochs, "take", lambda self, container_id, floor=0: take(self, container_id))


@bug(
    "fenced-owner-takes-back",
    _rivals,
    checker="workloads/fleetledger.py",
    words="takes container .*, which the map has given to others",
)
def _fenced_owner_takes_back(patch: pytest.MonkeyPatch) -> None:
    """A fenced worker opens the container again without checking the map.

    Breaks: a worker opens only containers that the map assigns to it.
    """

    async def check_named(self: LeaseEpochs, container_id: int) -> None:
        """Trusts the map of before."""

    patch.setattr(LeaseEpochs, "_check_named", check_named)


def _calm(seed: int) -> FleetWorkload:
    """Nothing that happens is a reason to move a container."""
    return _short(seed, ["workers_away_from_kubernetes"], 2, least_s=8.0)


@bug("lapse-by-lease-timestamps", _calm, checker="workloads/fleetplacement.py", words="without a cause")
def _lapse_by_lease_timestamps(patch: pytest.MonkeyPatch) -> None:
    """The placer gives up a worker whose Lease timestamp is old by the placer's own clock.

    Breaks: clock skew moves no container.
    """

    async def look(self: Placer) -> dict[str, WorkerLease]:
        """Compares clocks of two machines."""
        listing = await self._api.list(LEASES, labels_of(self._cluster, WORKER_ROLE))
        leases = {lease.worker: lease for item in listing.items if (lease := read_worker_lease(item)) is not None}
        loop = asyncio.get_running_loop()
        renewals = {lease.worker: Renewal(lease.incarnation, lease.renewal) for lease in leases.values()}
        self._detector.look(loop.time(), renewals, self._named)
        oldest = micro_time(EPOCH_MS + int((loop.time() - limits.WORKER_LEASE_LAPSE_S) * 1000))
        for item in listing.items:
            lease = read_worker_lease(item)
            if lease is not None and item["spec"]["renewTime"] < oldest:
                self._detector._workers[lease.worker].dead = True
        return leases

    patch.setattr(Placer, "_look", look)


@bug("lapsed-together-given-up", _calm, checker="workloads/fleetplacement.py", words="without a cause")
def _lapsed_together_given_up(patch: pytest.MonkeyPatch) -> None:
    """The placer gives up lapsed workers at once, even when most of them lapse together.

    Breaks: an outage between most workers and the Kubernetes API moves no container.
    """
    patch.setattr(FailureDetector, "_hold", lambda self, lapsed, now_s: None)


def _cut_off(seed: int) -> FleetWorkload:
    """The object store answers some workers and not others, for long."""
    return _short(seed, ["away_from_objects"], 2, least_s=25.0)


@bug("cut-off-worker-keeps-containers", _cut_off, checker="workloads/fleetplacement.py", words="is cut off since")
def _cut_off_worker_keeps_containers(patch: pytest.MonkeyPatch) -> None:
    """The placer trusts every worker that renews its Lease.

    Breaks: a worker that the object store does not answer gives up its containers.
    """
    patch.setattr(StoreSilence, "cut_off", lambda self, now_s, alive, accepting: [])


def _without_objects(seed: int) -> FleetWorkload:
    """The object store answers no worker, for long."""
    return _short(seed, ["no_objects"], 2, least_s=20.0)


@bug(
    "outage-of-the-store-moves-containers",
    _without_objects,
    checker="workloads/fleetplacement.py",
    words="without a cause",
)
def _outage_of_the_store_moves_containers(patch: pytest.MonkeyPatch) -> None:
    """The placer compares only with what the others' Leases say at the moment.

    Breaks: an outage of the object store, and its end, move no container.
    """

    def cut_off(self: StoreSilence, now_s: float, alive: Collection[str], accepting: Collection[str]) -> list[str]:
        silent_s = self._silent_s
        if all(silent_s.get(worker) for worker in accepting):
            return []
        return [worker for worker in alive if silent_s.get(worker, 0) >= limits.WORKER_STORE_SILENT_S]

    patch.setattr(StoreSilence, "cut_off", cut_off)
