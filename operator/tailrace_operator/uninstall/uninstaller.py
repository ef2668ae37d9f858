"""What is left behind when an operator is taken away for good: nothing that waits for it (ADR 0016).

The operator goes on while resources that are being deleted still go. Then it is stopped, and its Lease is taken, so
that nothing puts a finalizer back; then every resource that it served is let go. They stay, with all that they stand
for. The Lease is not given back: it lapses, and until then no pod of the operator that is slow to end may lead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotFoundError, UnavailableError, WriteConflictError
from tailrace.common.task_groups import run_until_first
from tailrace_operator.kube.leader_election import LEASE_NAME, Leadership, LeadershipLostError
from tailrace_operator.kube.objects import DEPLOYMENTS, READER_GROUPS, STREAM_CLUSTERS, STREAMS
from tailrace_operator.uninstall.finalizer_release import Releasing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.cluster.kubernetes import KubernetesApi, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "tailrace", "app.kubernetes.io/component": "operator"}
KINDS: Final = (STREAMS, READER_GROUPS, STREAM_CLUSTERS)
_WHY: Final = "its operator was uninstalled before it could delete that"

_logger = structlog.get_logger()

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Leaving:
    """The operator that goes. ``deployment``: what runs it, None: nothing does any more.

    ``namespace``: where it and its Lease are; it serves that one, or all.
    """

    namespace: str
    all_namespaces: bool
    deployment: str | None

    @property
    def served(self) -> str | None:
        """The namespace that it serves; None: all."""
        return None if self.all_namespaces else self.namespace

    def others(self, deployments: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
        """Other operators that run, of the Deployments of all operators that can be seen."""
        own = (self.namespace, self.deployment)
        return tuple(found for found in deployments if _replicas(found) and _place(found) != own)

    def is_replaced_by(self, others: tuple[Manifest, ...]) -> bool:
        """Whether another operator serves all that this one served."""
        return any(_serves_all(other) or _place(other)[0] == self.served for other in others)


class Uninstalling:
    """Carries it out. May be done again at any time, also when an attempt before ended in the middle."""

    def __init__(self, leaving: Leaving, objects: Objects, api: KubernetesApi, identity: str, clock: Clock) -> None:
        self._leaving = leaving
        self._objects = objects
        self._api = api
        self._identity = identity
        self._clock = clock
        self._doing = "not begun"

    async def run(self, deadline_s: float) -> None:
        """Do all of it.

        Raises:
            DeadlineError: it could not be done in that time; the message says how far it is.
            ReleaseRefusedError: the API server does not take a change, whenever it is asked. BadRequestError: nor this.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await self._run(deadline_s)
        except TimeoutError:
            raise DeadlineError(f"not done within {deadline_s:g} s: {self._doing}") from None

    async def _run(self, deadline_s: float) -> None:
        leaving = self._leaving
        others = leaving.others(await self._insist("looking for other operators", self._operators))
        if leaving.is_replaced_by(others):
            _logger.info("nothing_released", namespace=leaving.served or "all", reason="another operator serves it")
            return
        spared = frozenset(_place(other)[0] for other in others)
        releasing = Releasing(self._objects, KINDS, leaving.served, self._clock, spared=spared, why=_WHY)
        await self._deletions(releasing, deadline_s / 2)
        while True:
            await self._insist(f"stopping Deployment {leaving.deployment}", self._stop)
            try:
                count = await self._release(releasing)
                break
            except LeadershipLostError as error:
                _logger.warning("begun_again", reason=str(error))
        _logger.info("all_released", namespace=leaving.served or "all", resources=count, spared=sorted(spared))

    async def _operators(self) -> tuple[Manifest, ...]:
        return await self._objects.list(DEPLOYMENTS, self._leaving.served, OPERATOR_LABELS)

    async def _deletions(self, releasing: Releasing, patience_s: float) -> None:
        """Let the operator finish what is being deleted, as long as it gets on."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + patience_s
        fewest, since_s = None, loop.time()
        while True:
            count = await self._insist("looking for resources that are being deleted", releasing.leaving)
            if fewest is None or count < fewest:
                fewest, since_s = count, loop.time()
            if count == 0:
                return
            if loop.time() > min(ends_s, since_s + limits.OPERATOR_RELEASE_TIMEOUT_S):
                _logger.warning("deletions_not_awaited", resources=count)
                return
            await asyncio.sleep(limits.OPERATOR_RELEASE_POLL_S)

    async def _stop(self) -> None:
        """Ask for no pods of the operator; they may take their time."""
        leaving = self._leaving
        if leaving.deployment is None:
            return
        try:
            found = await self._objects.get(DEPLOYMENTS, leaving.namespace, leaving.deployment)
        except NotFoundError:
            return
        if _replicas(found) == 0:
            return
        metadata = {"name": leaving.deployment, "uid": found["metadata"]["uid"]}
        change = {"metadata": metadata, "spec": {"replicas": 0}}
        await self._objects.apply(DEPLOYMENTS, leaving.namespace, change)
        _logger.info("operator_stopped", namespace=leaving.namespace, deployment=leaving.deployment)

    async def _release(self, releasing: Releasing) -> int:
        """How many were let go. Raises LeadershipLostError, ReleaseRefusedError."""
        leadership = Leadership(self._api, self._identity, self._clock)
        self._doing = f"Lease {LEASE_NAME} is held by an operator that still runs, this one or another"
        await leadership.acquire()
        try:
            count: int = await run_until_first(releasing.until_clean(), leadership.keep())
            return count
        finally:
            self._doing = releasing.state

    async def _insist(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Until the API server does it, or refuses it."""
        self._doing, pause_s = what, limits.OPERATOR_RELEASE_RETRY_MIN_S
        while True:
            try:
                return await call()
            except (UnavailableError, WriteConflictError) as error:
                self._doing = f"{what}: {error}"
                _logger.warning("not_done_yet", what=what, reason=str(error), retry_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.OPERATOR_RELEASE_RETRY_MAX_S)


def _place(manifest: Manifest) -> tuple[str, str]:
    return str(manifest["metadata"]["namespace"]), str(manifest["metadata"]["name"])


def _serves_all(deployment: Manifest) -> bool:
    """Whether the operator that a Deployment runs is one of all namespaces."""
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any("--all-namespaces" in (container.get("args") or []) for container in pod.get("containers") or [])


def _replicas(deployment: Manifest) -> int:
    """How many pods it is asked for; 1 when it does not say."""
    found = (deployment.get("spec") or {}).get("replicas")
    return found if type(found) is int else 1
