"""Every planted bug; importing the package fills ``registry.BUGS``."""

from sim.bugs import log as _log

__all__ = ["_log"]
