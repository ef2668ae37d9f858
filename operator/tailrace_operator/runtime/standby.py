"""What a process that does not lead knows of the workers, so that it decides at once when it comes to lead (ADR 0009).

A placer that begins anew must see a worker silent for as long as a lapse takes. Where the operator and a worker end
together, that would come on top of the time until a standby leads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.failure import FailureDetector, Renewal
from tailrace.cluster.kubernetes import LEASES
from tailrace.cluster.leases import CLUSTER_LABEL, ROLE_LABEL, WORKER_ROLE, read_worker_lease
from tailrace.common import limits
from tailrace.common.errors import TailraceError

if TYPE_CHECKING:
    from typing import NoReturn

    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


class Standby:
    """Looks at the Leases of all workers of a namespace, or (None) of all namespaces."""

    def __init__(self, objects: Objects, namespace: str | None) -> None:
        self._objects = objects
        self._namespace = namespace
        self._trouble = ""
        self.detectors: dict[tuple[str, str], FailureDetector] = {}
        """By namespace and cluster: for the first placer of each."""

    async def run(self) -> NoReturn:
        """Look until cancelled, as often as a placer does."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self.look()
            except Exception:  # whatever it is: without this a process leads, too, only not as soon
                _logger.exception("workers_not_looked_at")
                self.detectors = {}
            await asyncio.sleep(max(0.0, began_s + limits.PLACER_PERIOD_S - loop.time()))

    async def look(self) -> None:
        """Look once. While nobody answers, nobody is silent."""
        try:
            leases = await self._objects.list(LEASES, self._namespace, {ROLE_LABEL: WORKER_ROLE})
        except TailraceError as error:
            if (trouble := str(error)) != self._trouble:
                _logger.info("workers_not_seen", reason=trouble)
                self._trouble = trouble
            for detector in self.detectors.values():
                detector.lost_contact()
            return
        self._trouble = ""
        found: dict[tuple[str, str], dict[str, Renewal]] = {}
        for manifest in leases:
            lease, cluster = read_worker_lease(manifest), manifest["metadata"].get("labels", {}).get(CLUSTER_LABEL)
            if lease is not None and cluster:
                renewals = found.setdefault((manifest["metadata"]["namespace"], cluster), {})
                renewals[lease.worker] = Renewal(lease.incarnation, lease.renewal)
        now_s = asyncio.get_running_loop().time()
        self.detectors = {place: self.detectors.get(place) or FailureDetector() for place in found}
        for place, renewals in found.items():
            self.detectors[place].look(now_s, renewals)
            self.detectors[place].verdict(now_s)
