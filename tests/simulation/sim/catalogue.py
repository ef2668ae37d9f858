"""The workloads by name; what `make simulate` runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Protocol

from sim.workloads.cluster import ClusterWorkload
from sim.workloads.container import ContainerWorkload
from sim.workloads.fleet import FleetWorkload
from sim.workloads.log import LogWorkload
from sim.workloads.moving import MovingWorkload
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
    "moving": MovingWorkload,
    "ownership": OwnershipWorkload,
}

TURNS = (
    ("log", "objectlog", "container", "tier2", "recovery", "tables", "cluster"),
    ("objectcontainer", "snapshots", "pressure", "server", "fleet", "moving", "ownership"),
)
"""Workloads whose seeds CI runs in turn, from day to day: about equally long."""


def workloads_of(day: datetime.date) -> tuple[str, ...]:
    """Return the workloads that have their turn on a day."""
    return TURNS[day.toordinal() % len(TURNS)]


RARE_FAULTS: frozenset[tuple[str, str]] = frozenset(
    {
        *((workload, "sync error") for workload in ("log", "container", "pressure", "tables", "server")),
        *((workload, "partial body") for workload in ("container", "pressure", "tables", "server", "cluster")),
        *((workload, "store timeout without effect") for workload in ("server", "cluster")),
        ("container", "clock jump"),
        ("pressure", "store reply lost"),
        ("tables", "pause"),
        ("ownership", "watch closed"),
    }
)
"""Workloads, and faults that they turn on with so small a chance that 20 seeds may be without."""
