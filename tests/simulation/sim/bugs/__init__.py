"""Every planted bug; importing the package fills ``BUGS``."""

from sim.bugs import client, container, log, objectlog, tables, tier2
from sim.bugs.registry import BUGS

__all__ = ["BUGS", "client", "container", "log", "objectlog", "tables", "tier2"]
