"""Letting go of resources: our finalizer is taken off, and nothing is done with what they stand for (ADR 0016)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    IllegalStateError,
    NotFoundError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)
from tailrace_operator.kube.manifests import FINALIZER, Notice, holds, is_deleted, stamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.objects import Objects

_logger = structlog.get_logger()


class ReleaseRefusedError(IllegalStateError):
    """The API server does not take it, whenever it is asked; the message names resources and reasons."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a resource was not let go."""

    kind: str
    namespace: str
    name: str
    error: TailraceError

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}: {self.error}"


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at all resources: how many were let go, and why others that are held were not."""

    released: int
    failures: tuple[Failure, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing was held any more."""
        return not self.released and not self.failures

    @property
    def is_hopeless(self) -> bool:
        """Another look would change nothing."""
        return (
            not self.released and bool(self.failures) and not any(failure.error.retryable for failure in self.failures)
        )

    def __str__(self) -> str:
        told = "; ".join(str(failure) for failure in self.failures[: limits.OPERATOR_RELEASE_REPORT_MAX])
        return f"{FINALIZER} is still on {len(self.failures)} of the resources: {told}"


class Releasing:
    """What takes the finalizer off all resources of these kinds in a namespace, or (None) in all but those `spared`.

    ``why`` is told, as an Event, of those that were being deleted: what they stand for stays. Without it none is made.
    """

    def __init__(
        self,
        objects: Objects,
        kinds: Sequence[Kind],
        namespace: str | None,
        clock: Clock,
        *,
        spared: frozenset[str] = frozenset(),
        why: str | None = None,
    ) -> None:
        self._objects = objects
        self._kinds = kinds
        self._namespace = namespace
        self._clock = clock
        self._spared = spared
        self._why = why
        self.state = "not begun"
        """How far it is, in words: for whoever has to say why it took too long."""

    async def leaving(self) -> int:
        """How many resources are being deleted and wait for us. Raises UnavailableError."""
        count = 0
        async for _, manifests in self._held():
            count += sum(is_deleted(manifest) for manifest in manifests)
        return count

    async def until_clean(self) -> int:
        """Let go until a look at all finds none that is held; how many were. Who calls it has a deadline.

        Raises:
            ReleaseRefusedError: some never will be let go.
        """
        total, pause_s = 0, limits.OPERATOR_RELEASE_RETRY_MIN_S
        while True:
            try:
                found = await self.once()
            except UnavailableError as error:
                self.state = str(error)
            else:
                if found.is_clean:
                    return total
                if found.is_hopeless:
                    raise ReleaseRefusedError(str(found))
                total += found.released
                self.state = str(found) if found.failures else "what was let go is being looked at once more"
                if found.released:
                    pause_s = limits.OPERATOR_RELEASE_RETRY_MIN_S
            _logger.info("releasing", released=total, state=self.state)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.OPERATOR_RELEASE_RETRY_MAX_S)

    async def once(self) -> Pass:
        """Look at all resources once. Raises UnavailableError: they cannot be listed now.

        What the API server cannot take keeps no other resource waiting: it may be the fault of a webhook or a policy.
        """
        released = 0
        failures: list[Failure] = []
        async for kind, manifests in self._held():
            for first in range(0, len(manifests), limits.KUBERNETES_THREADS):
                some = manifests[first : first + limits.KUBERNETES_THREADS]
                results = await asyncio.gather(*(self._let_go(kind, manifest) for manifest in some))
                failed = [failure for failure in results if failure is not None]
                failures += failed
                released += len(results) - len(failed)
                if failed:
                    self.state = str(Pass(released, tuple(failures)))
        return Pass(released, tuple(failures))

    async def _held(self) -> AsyncIterator[tuple[Kind, list[Manifest]]]:
        """What carries our finalizer, page by page."""
        for kind in self._kinds:
            rest: str | None = None
            while True:
                try:
                    page = await self._objects.page(kind, self._namespace, rest)
                except NotFoundError:
                    break  # its definition is not there, so there are none
                held = [
                    item for item in page.items if holds(item) and item["metadata"]["namespace"] not in self._spared
                ]
                if held:
                    yield kind, held
                rest = page.rest
                if rest is None:
                    break

    async def _let_go(self, kind: Kind, manifest: Manifest) -> Failure | None:
        """Why it was not; None: it is let go, or gone."""
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
            await self._tell(kind, manifest)
        return None

    async def _tell(self, kind: Kind, manifest: Manifest) -> None:
        if self._why is None:
            return
        notice = Notice(f"{kind.kind}Retained", f"What this resource stood for stays as it is: {self._why}.")
        try:
            await self._objects.tell(kind, manifest, notice, stamp(self._clock))
        except (UnavailableError, NotFoundError, BadRequestError, WriteConflictError) as error:
            _logger.info("event_not_made", reason=str(error))
