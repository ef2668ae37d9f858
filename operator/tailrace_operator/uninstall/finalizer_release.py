"""Remove the operator's finalizer from resources, and keep their streams and reader groups (ADR 0016)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    IllegalStateError,
    NotFoundError,
    TailraceError,
    UnavailableError,
)
from tailrace_operator.kube.manifests import FINALIZER, has_finalizer, is_deleted, timestamp
from tailrace_operator.reconcile.deletion_policy import release_notice
from tailrace_operator.reconcile.status_writer import create_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


class ReleaseRefusedError(IllegalStateError):
    """The API server refuses to remove finalizers, also when retried; the message names resources and reasons."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the finalizer of a resource was not removed."""

    kind: str
    namespace: str
    name: str
    error: TailraceError

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}: {self.error}"


@dataclass(frozen=True, slots=True)
class ReleasePass:
    """The result of one pass over all resources: how many were released, and why others were not."""

    released: int
    failures: tuple[Failure, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether no resource had the finalizer any more."""
        return not self.released and not self.failures

    @property
    def is_hopeless(self) -> bool:
        """Return whether another pass would change nothing."""
        return (
            not self.released and bool(self.failures) and not any(failure.error.retryable for failure in self.failures)
        )

    def __str__(self) -> str:
        shown = "; ".join(str(failure) for failure in self.failures[: limits.OPERATOR_RELEASE_REPORT_MAX])
        count = len(self.failures)
        return f"finalizer {FINALIZER} is still on {count} resource{'s' * (count != 1)}: {shown}"


class FinalizerRelease:
    """Removes the finalizer from all resources of these kinds in a namespace, or (None) in all but those `excluded`.

    ``reason`` is written in an Event for each resource that was being deleted, whether its stream or group is kept.
    Without a reason no Events are created.
    """

    def __init__(
        self,
        objects: Objects,
        kinds: Sequence[Kind],
        namespace: str | None,
        clock: Clock,
        *,
        excluded: frozenset[str] = frozenset(),
        reason: str | None = None,
    ) -> None:
        self._objects = objects
        self._kinds = kinds
        self._namespace = namespace
        self._clock = clock
        self._excluded = excluded
        self._reason = reason
        self.state = "not started"
        """The progress in words, for the message of a deadline."""

    async def terminating_count(self) -> int:
        """Return how many resources are being deleted and have the finalizer. Raises UnavailableError."""
        count = 0
        async for _, manifests in self._resources():
            count += sum(is_deleted(manifest) for manifest in manifests)
        return count

    async def run_until_done(self) -> int:
        """Release resources until a pass finds none with the finalizer. Return how many were released.

        The caller sets the deadline.

        Raises:
            ReleaseRefusedError: the API server refuses to remove some finalizers.
        """
        total, pause_s = 0, limits.OPERATOR_RELEASE_RETRY_MIN_S
        while True:
            try:
                found = await self.run_once()
            except UnavailableError as error:
                self.state = str(error)
            else:
                if found.is_clean:
                    return total
                if found.is_hopeless:
                    raise ReleaseRefusedError(str(found))
                total += found.released
                self.state = str(found) if found.failures else "checking that no resource is left"
                if found.released:
                    pause_s = limits.OPERATOR_RELEASE_RETRY_MIN_S
            _logger.info("releasing", released=total, state=self.state)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.OPERATOR_RELEASE_RETRY_MAX_S)

    async def run_once(self) -> ReleasePass:
        """Make one pass over all resources. Raises UnavailableError: they cannot be listed now.

        A resource that the API server refuses to change, perhaps because of a webhook or policy, delays no other.
        """
        released = 0
        failures: list[Failure] = []
        async for kind, manifests in self._resources():
            for first in range(0, len(manifests), limits.KUBERNETES_THREADS):
                batch = manifests[first : first + limits.KUBERNETES_THREADS]
                results = await asyncio.gather(*(self._release(kind, manifest) for manifest in batch))
                failed = [failure for failure in results if failure is not None]
                failures += failed
                released += len(results) - len(failed)
                if failed:
                    self.state = str(ReleasePass(released, tuple(failures)))
        return ReleasePass(released, tuple(failures))

    async def _resources(self) -> AsyncIterator[tuple[Kind, list[Manifest]]]:
        """Yield the resources with the finalizer, page by page."""
        for kind in self._kinds:
            rest: str | None = None
            while True:
                try:
                    page = await self._objects.page(kind, self._namespace, rest)
                except NotFoundError:
                    break  # its definition is not installed, so there are no such resources
                held = [
                    item
                    for item in page.items
                    if has_finalizer(item) and item["metadata"]["namespace"] not in self._excluded
                ]
                if held:
                    yield kind, held
                rest = page.rest
                if rest is None:
                    break

    async def _release(self, kind: Kind, manifest: Manifest) -> Failure | None:
        """Remove the finalizer. Return why that failed; None: it is removed, or the resource was deleted."""
        metadata = manifest["metadata"]
        finalizers = [name for name in metadata["finalizers"] if name != FINALIZER]
        try:
            await self._objects.set_finalizers(kind, manifest, finalizers)
        except NotFoundError:
            return None
        except TailraceError as error:
            return Failure(kind.kind, metadata["namespace"], metadata["name"], error)
        if is_deleted(manifest):
            _logger.info("released", kind=kind.kind, namespace=metadata["namespace"], name=metadata["name"])
            await self._create_event(kind, manifest)
        return None

    async def _create_event(self, kind: Kind, manifest: Manifest) -> None:
        if self._reason is None:
            return
        notice = release_notice(manifest, kind.kind, "Its stream or reader group", self._reason)
        await create_event(self._objects, kind, manifest, notice, timestamp(self._clock))
