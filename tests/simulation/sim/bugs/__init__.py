"""Every planted bug; importing the package fills ``BUGS``."""

from sim.bugs import log as _log
from sim.bugs.registry import BUGS

__all__ = ["BUGS", "_log"]
