"""Observe the workers' Leases on a standby, so that it can place containers as soon as it leads (ADR 0009).

A placer without this knowledge must observe a worker for a whole lapse before it counts as dead. When the operator and
a worker fail together, that time would add to the time until a standby leads.
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
    """Observes the Leases of all workers of a namespace, or (None) of all namespaces."""

    def __init__(self, objects: Objects, namespace: str | None) -> None:
        self._objects = objects
        self._namespace = namespace
        self._last_error = ""
        self.detectors: dict[tuple[str, str], FailureDetector] = {}
        """By namespace and cluster, for the first placer of each cluster."""

    async def run(self) -> NoReturn:
        """List the Leases until cancelled, as often as a placer does."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self.look()
            except Exception:  # any error: the process can lead without these observations, only later
                _logger.exception("worker_check_failed")
                self.detectors = {}
            await asyncio.sleep(max(0.0, began_s + limits.PLACER_PERIOD_S - loop.time()))

    async def look(self) -> None:
        """List the Leases once. During an API outage the workers' silence is not counted."""
        try:
            leases = await self._objects.list(LEASES, self._namespace, {ROLE_LABEL: WORKER_ROLE})
        except TailraceError as error:
            if (reason := str(error)) != self._last_error:
                _logger.info("worker_leases_not_listed", reason=reason)
                self._last_error = reason
            for detector in self.detectors.values():
                detector.lost_contact()
            return
        self._last_error = ""
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
