"""Uninstall an operator, so that no resource waits for its finalizer (ADR 0016).

The operator runs on while it still finishes deletions. Then its Deployment is scaled to 0 and its Lease is acquired, so
that no operator adds a finalizer again. Then the finalizer is removed from every resource that it served. The resources
and their streams are kept. The Lease is not released but expires: until then no pod of the old operator can lead.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotFoundError, UnavailableError, WriteConflictError
from tailrace.common.task_groups import run_until_first
from tailrace_operator.kube.leader_election import LEASE_NAME, LeaderElection, LeadershipLostError
from tailrace_operator.kube.objects import DEPLOYMENTS, READER_GROUPS, STREAM_CLUSTERS, STREAMS
from tailrace_operator.uninstall.finalizer_release import FinalizerRelease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.cluster.kubernetes import KubernetesApi, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "tailrace", "app.kubernetes.io/component": "operator"}
KINDS: Final = (STREAMS, READER_GROUPS, STREAM_CLUSTERS)
_REASON: Final = "the operator was uninstalled before it deleted it"

_logger = structlog.get_logger()

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class UninstallTarget:
    """The operator to uninstall. ``deployment``: its Deployment; None: it runs no more.

    ``namespace``: of the operator and its Lease. It serves that namespace, or all.
    """

    namespace: str
    all_namespaces: bool
    deployment: str | None

    @property
    def served(self) -> str | None:
        """Return the namespace that it serves; None: all."""
        return None if self.all_namespaces else self.namespace

    def other_operators(self, deployments: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
        """Return the Deployments of other running operators."""
        own = (self.namespace, self.deployment)
        return tuple(found for found in deployments if _replicas(found) and _place(found) != own)

    def is_served_by(self, other_operators: tuple[Manifest, ...]) -> bool:
        """Return whether one of these operators serves all that this one served."""
        return any(_serves_all(other) or _place(other)[0] == self.served for other in other_operators)


class Uninstaller:
    """Uninstalls an operator. It can be repeated at any time, also after an attempt that did not complete."""

    def __init__(
        self, target: UninstallTarget, objects: Objects, api: KubernetesApi, identity: str, clock: Clock
    ) -> None:
        self._target = target
        self._objects = objects
        self._api = api
        self._identity = identity
        self._clock = clock
        self._doing = "not started"

    async def run(self, deadline_s: float) -> None:
        """Uninstall the operator.

        Raises:
            DeadlineError: it did not complete in that time; the message gives the progress.
            ReleaseRefusedError: the API server refuses to remove finalizers.
            BadRequestError: the API server refuses another change.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await self._run(deadline_s)
        except TimeoutError:
            raise DeadlineError(f"not completed within {deadline_s:g} s: {self._doing}") from None

    async def _run(self, deadline_s: float) -> None:
        target = self._target
        other_operators = target.other_operators(await self._retry("listing other operators", self._operators))
        if target.is_served_by(other_operators):
            _logger.info("nothing_released", namespace=target.served or "all", reason="another operator serves them")
            return
        excluded = frozenset(_place(other)[0] for other in other_operators)
        release = FinalizerRelease(self._objects, KINDS, target.served, self._clock, excluded=excluded, reason=_REASON)
        await self._await_deletions(release, deadline_s / 2)
        while True:
            await self._retry(f"stopping Deployment {target.deployment}", self._stop_operator)
            try:
                count = await self._release(release)
                break
            except LeadershipLostError as error:
                _logger.warning("release_restarted", reason=str(error))
        _logger.info("all_released", namespace=target.served or "all", resources=count, excluded=sorted(excluded))

    async def _operators(self) -> tuple[Manifest, ...]:
        return await self._objects.list(DEPLOYMENTS, self._target.served, OPERATOR_LABELS)

    async def _await_deletions(self, release: FinalizerRelease, timeout_s: float) -> None:
        """Wait while the operator finishes deletions and still makes progress."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        fewest, since_s = None, loop.time()
        while True:
            count = await self._retry("listing resources that are being deleted", release.terminating_count)
            if fewest is None or count < fewest:
                fewest, since_s = count, loop.time()
            if count == 0:
                return
            if loop.time() > min(ends_s, since_s + limits.OPERATOR_RELEASE_TIMEOUT_S):
                _logger.warning("deletions_not_finished", resources=count)
                return
            await asyncio.sleep(limits.OPERATOR_RELEASE_POLL_S)

    async def _stop_operator(self) -> None:
        """Scale the operator's Deployment to 0, without waiting for its pods."""
        target = self._target
        if target.deployment is None:
            return
        try:
            found = await self._objects.get(DEPLOYMENTS, target.namespace, target.deployment)
        except NotFoundError:
            return
        if _replicas(found) == 0:
            return
        metadata = {"name": target.deployment, "uid": found["metadata"]["uid"]}
        change = {"metadata": metadata, "spec": {"replicas": 0}}
        await self._objects.apply(DEPLOYMENTS, target.namespace, change)
        _logger.info("operator_stopped", namespace=target.namespace, deployment=target.deployment)

    async def _release(self, release: FinalizerRelease) -> int:
        """Release all resources under the Lease. Return how many. Raises LeadershipLostError, ReleaseRefusedError."""
        leadership = LeaderElection(self._api, self._identity, self._clock)
        self._doing = f"waiting for Lease {LEASE_NAME}, which a running operator holds"
        await leadership.acquire()
        try:
            count: int = await run_until_first(release.run_until_done(), leadership.keep())
            return count
        finally:
            self._doing = release.state

    async def _retry(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T:
        """Retry a call until the API server carries it out or refuses it."""
        self._doing, pause_s = what, limits.OPERATOR_RELEASE_RETRY_MIN_S
        while True:
            try:
                return await call()
            except (UnavailableError, WriteConflictError) as error:
                self._doing = f"{what}: {error}"
                _logger.warning("retrying", what=what, reason=str(error), retry_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.OPERATOR_RELEASE_RETRY_MAX_S)


def _place(manifest: Manifest) -> tuple[str, str]:
    return str(manifest["metadata"]["namespace"]), str(manifest["metadata"]["name"])


def _serves_all(deployment: Manifest) -> bool:
    """Return whether the operator of a Deployment serves all namespaces."""
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return any("--all-namespaces" in (container.get("args") or []) for container in pod.get("containers") or [])


def _replicas(deployment: Manifest) -> int:
    """Return the desired number of pods, which is 1 by default."""
    found = (deployment.get("spec") or {}).get("replicas")
    return found if type(found) is int else 1
