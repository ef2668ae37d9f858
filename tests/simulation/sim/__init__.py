"""The deterministic simulator: one seed decides time, scheduling, network, disk and object store.

See docs/design.md#testing.

A `SimWorld` owns a `SimLoop` and what survives a crash (disks, objects). Product code runs inside `SimProcess`es; a
crash abandons everything that a process had in memory, and a new process may start on the same disk.
"""

from sim.disk import SimDisk
from sim.loop import ForbiddenError, SimLoop, StuckError
from sim.ports import SimClock, SimEntropy
from sim.process import ProcessKilledError, SimProcess
from sim.store import SimObjectStore
from sim.world import SimWorld

__all__ = [
    "ForbiddenError",
    "ProcessKilledError",
    "SimClock",
    "SimDisk",
    "SimEntropy",
    "SimLoop",
    "SimObjectStore",
    "SimProcess",
    "SimWorld",
    "StuckError",
]
