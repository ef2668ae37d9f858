"""Every planted bug; importing the package fills ``BUGS``."""

from sim.bugs import (
    cache,
    client,
    container,
    containerstate,
    controller,
    fleet,
    folder,
    log,
    objectlog,
    ownership,
    recovery,
    snapshots,
    tables,
    tier2,
)
from sim.bugs.registry import BUGS

__all__ = [
    "BUGS",
    "cache",
    "client",
    "container",
    "containerstate",
    "controller",
    "fleet",
    "folder",
    "log",
    "objectlog",
    "ownership",
    "recovery",
    "snapshots",
    "tables",
    "tier2",
]
