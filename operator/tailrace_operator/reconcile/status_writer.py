"""Writing what a reconciler found to its object, beside other writers of it (ADR 0013)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError, WriteConflictError
from tailrace_operator.kube.manifests import generation_of, stamp
from tailrace_operator.reconcile.outcome import changes_of

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest
    from tailrace.common.ports import Clock
    from tailrace_operator.kube.manifests import Notice
    from tailrace_operator.kube.objects import Objects
    from tailrace_operator.reconcile.outcome import Outcome

_logger = structlog.get_logger()


async def settle(objects: Objects, clock: Clock, kind: Kind, manifest: Manifest, outcome: Outcome) -> None:
    """Write finalizer, status and Events of an outcome that is about `manifest`.

    When somebody else changed the object meanwhile, only what the outcome names is changed in what is there now. An
    object that is gone, or another one of that name, is left alone.

    Raises:
        WriteConflictError: others win every time. UnavailableError. BadRequestError: the definition of the kind does
        not take the status.
    """
    generation, uid = generation_of(manifest), manifest["metadata"]["uid"]
    now = stamp(clock)
    for attempt in range(limits.OPERATOR_CONFLICTS_MAX):
        changes = changes_of(manifest, outcome, generation, now)
        try:
            if changes.finalizers is not None:
                manifest = await objects.set_finalizers(kind, manifest, changes.finalizers)
            if changes.status is not None and outcome.finalizer is not False:
                manifest = await objects.merge_status(kind, manifest, changes.status)
        except NotFoundError:
            return
        except WriteConflictError:
            if attempt + 1 == limits.OPERATOR_CONFLICTS_MAX:
                raise
            metadata = manifest["metadata"]
            try:
                manifest = await objects.get(kind, metadata["namespace"], metadata["name"])
            except NotFoundError:
                return
            if manifest["metadata"]["uid"] != uid:
                return
            continue
        for notice in changes.notices:
            await _tell(objects, kind, manifest, notice, now)
        return


async def _tell(objects: Objects, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
    """In the log and as an Event. An Event that cannot be made is no reason to fail: the status says the same."""
    metadata = manifest["metadata"]
    _logger.log(
        30 if notice.warning else 20,
        "transition",
        kind=kind.kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        reason=notice.reason,
        message=notice.message,
    )
    try:
        await objects.tell(kind, manifest, notice, now)
    except (UnavailableError, NotFoundError, BadRequestError, WriteConflictError) as error:
        _logger.info("event_not_made", reason=str(error))
