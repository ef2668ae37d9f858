"""A placer for every StreamCluster of the active operator, apart from reconciling (design §9, ADR 0013)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.placer import Placer
from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.cluster.failure import FailureDetector
    from tailrace.cluster.kubernetes import KubernetesApi
    from tailrace.cluster.placer import Homes, Prober

_logger = structlog.get_logger()


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    placer: Placer | None = None
    failure: str | None = None
    """Why the placer before ended; None: the present one is the first, or took a step."""


async def _nothing(_: str) -> None:
    """Whoever gave the API keeps it."""


def _untold(_namespace: str, _cluster: str) -> None:
    """Nobody asked to be told."""


class Placements:
    """The placers that run. ``api_of`` gives the API of a namespace; ``leave`` is told when none is placed in it.

    ``known``: what is known of workers before the first placer of a namespace's cluster begins. ``changed`` is told of
    a namespace's cluster whose `homes` are others now.
    """

    def __init__(
        self,
        api_of: Callable[[str], KubernetesApi],
        prober: Prober,
        leave: Callable[[str], Awaitable[None]] = _nothing,
        known: dict[tuple[str, str], FailureDetector] | None = None,
        changed: Callable[[str, str], None] = _untold,
    ) -> None:
        self._api_of = api_of
        self._prober = prober
        self._leave = leave
        self._known = known or {}
        self._changed = changed
        self._running: dict[tuple[str, str], _Running] = {}

    def __len__(self) -> int:
        """How many clusters are placed."""
        return len(self._running)

    def ensure(self, namespace: str, cluster: str) -> None:
        """Let a placer run for the cluster."""
        place = (namespace, cluster)
        if place not in self._running:
            self._running[place] = _Running(asyncio.create_task(self._keep(namespace, cluster)))
            _logger.info("placement_begun", namespace=namespace, cluster=cluster)

    async def end(self, namespace: str, cluster: str) -> None:
        """Let none run for the cluster."""
        running = self._running.pop((namespace, cluster), None)
        if running is not None:
            running.task.cancel()
            await asyncio.wait([running.task])
            if all(place[0] != namespace for place in self._running):
                await self._leave(namespace)
            _logger.info("placement_ended", namespace=namespace, cluster=cluster)

    async def close(self) -> None:
        """Let none run at all."""
        for namespace, cluster in list(self._running):
            await self.end(namespace, cluster)

    def reason(self, namespace: str, cluster: str) -> str:
        """What the placer did last, or why there is none, in one sentence."""
        running = self._running.get((namespace, cluster))
        if running is None:
            return "the cluster is not placed yet"
        if running.placer is not None and running.placer.decision is not None:
            return running.placer.decision.reason
        return running.failure or "the placer has just begun"

    def homes(self, namespace: str, cluster: str) -> Homes | None:
        """What is known of the workers that have containers; None: nothing yet."""
        running = self._running.get((namespace, cluster))
        return running.placer.homes if running is not None and running.placer is not None else None

    def failure(self, namespace: str, cluster: str) -> str | None:
        """Why the placer ended before and has not taken a step since; None: it goes on."""
        running = self._running.get((namespace, cluster))
        if running is None or (running.placer is not None and running.placer.decision is not None):
            return None
        return running.failure

    async def _keep(self, namespace: str, cluster: str) -> None:
        """Run placers, one after the other, with growing pauses between them."""
        loop = asyncio.get_running_loop()
        pause_s = limits.PLACER_RETRY_MIN_S
        while True:
            running = self._running[namespace, cluster]
            detector = self._known.pop((namespace, cluster), None)
            running.placer = Placer(
                self._api_of(namespace),
                cluster,
                self._prober,
                detector=detector,
                changed=lambda: self._changed(namespace, cluster),
            )
            began_s = loop.time()
            try:
                await running.placer.run()
            except Exception as error:  # whatever it is: without a placer containers of dead workers stay closed
                running.failure = f"the placer ended and is started again: {error!r}"
                _logger.exception("placer_ended", namespace=namespace, cluster=cluster, again_in_s=pause_s)
            running.placer = None
            if loop.time() - began_s > limits.PLACER_RETRY_MAX_S:
                pause_s = limits.PLACER_RETRY_MIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.PLACER_RETRY_MAX_S)
