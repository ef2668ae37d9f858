"""Write what a reconciler found to its object, which other clients write, too (ADR 0013)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError
from tailrace_operator.kube.manifests import generation_of, timestamp
from tailrace_operator.reconcile.outcome import changes_of

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.manifests import Notice
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.reconcile.outcome import Outcome

_logger = structlog.get_logger()


class StatusWriter:
    """Writes finalizer, status and Events of an outcome to its object."""

    def __init__(self, objects: Objects, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock

    async def write(self, kind: Kind, manifest: Manifest, outcome: Outcome) -> Manifest | None:
        """Write an outcome that was found for `manifest`; return the object then, None when it is gone.

        After a write conflict the object is read again, and only the fields that the outcome names are changed. An
        object that was deleted, or replaced by another of the same name, is left alone.

        Raises:
            WriteConflictError: every attempt conflicted with another writer. UnavailableError. BadRequestError: the
            installed definition of the kind refuses the status.
        """
        generation, uid = generation_of(manifest), manifest["metadata"]["uid"]
        now = timestamp(self._clock)
        for attempt in range(limits.OPERATOR_CONFLICTS_MAX):
            changes = changes_of(manifest, outcome, generation, now)
            try:
                if changes.finalizers is not None:
                    manifest = await self._objects.set_finalizers(kind, manifest, changes.finalizers)
                if changes.status is not None and outcome.finalizer is not False:
                    manifest = await self._objects.merge_status(kind, manifest, changes.status)
            except NotFoundError:
                return None
            except WriteConflictError:
                if attempt + 1 == limits.OPERATOR_CONFLICTS_MAX:
                    raise
                metadata = manifest["metadata"]
                try:
                    manifest = await self._objects.get(kind, metadata["namespace"], metadata["name"])
                except NotFoundError:
                    return None
                if manifest["metadata"]["uid"] != uid:
                    return None
                continue
            for notice in changes.notices:
                _log_transition(kind, manifest, notice)
                await create_event(self._objects, kind, manifest, notice, now)
            return manifest
        raise AssertionError("the last attempt returns or raises")


async def create_event(objects: Objects, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
    """Create an Event about the object. A failure is only logged, because the status says the same."""
    try:
        await objects.create_event(kind, manifest, notice, now)
    except (UnavailableError, NotFoundError, BadRequestError, WriteConflictError) as error:
        _logger.info("event_not_created", reason=str(error))


def _log_transition(kind: Kind, manifest: Manifest, notice: Notice) -> None:
    metadata = manifest["metadata"]
    _logger.log(
        logging.WARNING if notice.warning else logging.INFO,
        "transition",
        kind=kind.kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        reason=notice.reason,
        message=notice.message,
    )
