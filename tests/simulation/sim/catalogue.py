"""The workloads by name; what `make simulate` runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sim.workloads.cluster import ClusterWorkload
from sim.workloads.container import ContainerWorkload
from sim.workloads.fleet import FleetWorkload
from sim.workloads.log import LogWorkload
from sim.workloads.objectcontainer import ObjectContainerWorkload
from sim.workloads.objectlog import ObjectLogWorkload
from sim.workloads.ownership import OwnershipWorkload
from sim.workloads.pressure import PressureWorkload
from sim.workloads.recoverysweep import RecoverySweep
from sim.workloads.server import ServerWorkload
from sim.workloads.snapshots import SnapshotWorkload
from sim.workloads.tables import TablesWorkload
from sim.workloads.tier2 import Tier2Workload
from sim.world import SimWorld


class Workload(Protocol):
    """One seed's run."""

    world: SimWorld

    @property
    def steps(self) -> int:
        """What its clients did, in numbers."""

    def run(self) -> None:
        """Raises whatever went wrong."""


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "log": LogWorkload,
    "objectlog": ObjectLogWorkload,
    "objectcontainer": ObjectContainerWorkload,
    "container": ContainerWorkload,
    "tier2": Tier2Workload,
    "snapshots": SnapshotWorkload,
    "pressure": PressureWorkload,
    "recovery": RecoverySweep,
    "tables": TablesWorkload,
    "server": ServerWorkload,
    "cluster": ClusterWorkload,
    "fleet": FleetWorkload,
    "ownership": OwnershipWorkload,
}

CI_SEEDS = dict.fromkeys(WORKLOADS, 12) | dict.fromkeys(
    ("log", "objectlog", "objectcontainer", "container", "tier2", "snapshots", "pressure"), 40
)
"""How many seeds of each workload CI runs: a count, not a time, so that a slow machine runs the same ones.

Enough for every fault to occur in the workload; those with more seeds are the cheap ones.
"""

_STORE = ("store error", "store reply lost", "store duplicate", "stale list")
_CRASHES = ("crash", "power cut")
PLANNED = {
    "log": (*_CRASHES, "bit flip", "write cut short"),
    "objectlog": ("crash", *_STORE),
    "objectcontainer": (*_CRASHES, *_STORE),
    "container": (*_CRASHES, "store error", "store reply lost", "write cut short"),
    "tier2": (*_CRASHES, *_STORE),
    "snapshots": (*_CRASHES, *_STORE),
    "pressure": (*_CRASHES, "store error", "store reply lost", "slow disk", "slow store"),
    "recovery": ("crash", "slow disk", "slow store"),
    "tables": (*_CRASHES, "store error", "store reply lost"),
    "server": _CRASHES,
    "cluster": ("crash", "slow disk"),
    "fleet": ("crash", "clock jump", "connection reset", "half-open connection", "slow network", "slow store"),
    "ownership": (
        "crash",
        "conflict after own success",
        "kubernetes 429",
        "kubernetes 5xx",
        "kubernetes 5xx after effect",
        "kubernetes cut off",
        "kubernetes reply lost",
        "late kubernetes effect",
        "wiped Lease",
        "slow store",
    ),
}
"""Faults that a workload has by its own plan, beside those that its swarm chooses; some of its seeds must have each."""
