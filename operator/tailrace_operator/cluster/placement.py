"""Run a placer for every StreamCluster on the leader, independent of reconciling.

See docs/design.md#ownership, ADR 0013.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.placer import Placer
from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.cluster.failure import FailureDetector
    from tailrace.cluster.kubernetes import KubernetesApi
    from tailrace.cluster.placer import Prober, Unconfirmed

_logger = structlog.get_logger()


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    placer: Placer | None = None
    failure: str | None = None
    """Why the previous placer failed; None: this is the first one, or it has taken a step."""


async def _keep_api(_: str) -> None:
    """Keep the API connection open."""


def _no_callback(_namespace: str, _cluster: str) -> None:
    """Ignore the change."""


class Placements:
    """The running placers. ``api_of`` returns the API of a namespace; ``release_api`` is called after its last placer.

    ``known``: failure detectors for the first placer of each namespace and cluster. ``changed`` is called with the
    namespace and cluster whose `unconfirmed` or `not_open` changed.
    """

    def __init__(
        self,
        api_of: Callable[[str], KubernetesApi],
        prober: Prober,
        release_api: Callable[[str], Awaitable[None]] = _keep_api,
        known: dict[tuple[str, str], FailureDetector] | None = None,
        changed: Callable[[str, str], None] = _no_callback,
    ) -> None:
        self._api_of = api_of
        self._prober = prober
        self._release_api = release_api
        self._known = known or {}
        self._changed = changed
        self._running: dict[tuple[str, str], _Running] = {}

    def __len__(self) -> int:
        """Return how many placers run."""
        return len(self._running)

    def ensure(self, namespace: str, cluster: str) -> None:
        """Start a placer for the cluster, unless one runs."""
        place = (namespace, cluster)
        if place not in self._running:
            self._running[place] = _Running(asyncio.create_task(self._run_placers(namespace, cluster)))
            _logger.info("placer_started", namespace=namespace, cluster=cluster)

    async def end(self, namespace: str, cluster: str) -> None:
        """Stop the placer of the cluster."""
        running = self._running.pop((namespace, cluster), None)
        if running is not None:
            running.task.cancel()
            await asyncio.wait([running.task])
            if all(place[0] != namespace for place in self._running):
                await self._release_api(namespace)
            _logger.info("placer_stopped", namespace=namespace, cluster=cluster)

    async def close(self) -> None:
        """Stop all placers."""
        for namespace, cluster in list(self._running):
            await self.end(namespace, cluster)

    def reason(self, namespace: str, cluster: str) -> str:
        """Return the reason of the placer's last decision, or why it has not decided yet, in one sentence."""
        running = self._running.get((namespace, cluster))
        if running is None:
            return "the placer has not been started"
        if running.placer is not None and running.placer.decision is not None:
            return running.placer.decision.reason
        return running.failure or "the placer has just started"

    def unconfirmed(self, namespace: str, cluster: str) -> Unconfirmed | None:
        """Return the containers whose worker is not confirmed alive; None: not known yet."""
        running = self._running.get((namespace, cluster))
        return running.placer.unconfirmed if running is not None and running.placer is not None else None

    def not_open(self, namespace: str, cluster: str) -> Mapping[str, str] | None:
        """Return which containers workers cannot open, and why, by worker; None: not known yet."""
        running = self._running.get((namespace, cluster))
        return running.placer.not_open if running is not None and running.placer is not None else None

    def failure(self, namespace: str, cluster: str) -> str | None:
        """Return why the last placer failed; None: it did not, or its successor has taken a step."""
        running = self._running.get((namespace, cluster))
        if running is None or (running.placer is not None and running.placer.decision is not None):
            return None
        return running.failure

    async def _run_placers(self, namespace: str, cluster: str) -> None:
        """Run a placer, and start another one after a growing pause whenever it fails."""
        loop = asyncio.get_running_loop()
        pause_s = limits.PLACER_RETRY_MIN_S
        while True:
            running = self._running[namespace, cluster]
            began_s = loop.time()
            try:
                api = self._api_of(namespace)
                running.placer = Placer(
                    api,
                    cluster,
                    self._prober,
                    detector=self._known.pop((namespace, cluster), None),  # by the first one that has an API
                    changed=lambda: self._changed(namespace, cluster),
                )
                await running.placer.run()
            except Exception as error:  # any error: without a placer, containers of dead workers stay closed
                running.failure = f"the placer failed and is restarted: {error!r}"
                _logger.exception("placer_failed", namespace=namespace, cluster=cluster, retry_s=pause_s)
            running.placer = None
            if loop.time() - began_s > limits.PLACER_RETRY_MAX_S:
                pause_s = limits.PLACER_RETRY_MIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.PLACER_RETRY_MAX_S)
