"""Delete the stream of a deleted resource, without ever blocking a namespace (docs/design.md#resources, ADR 0014).

A resource has the finalizer only while ``deletionPolicy`` is Delete. The finalizer is removed when the stream is
deleted, or when it cannot be deleted: the resource does not own it, the cluster is missing or being deleted, the
namespace is being deleted, or the user set the annotation. The stream is then kept, and an Event reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import InvalidSpecError, NotTheOwnerError, TailraceError
from tailrace_operator.connections.controllers import ClusterName
from tailrace_operator.kube.manifests import Notice, has_finalizer
from tailrace_operator.reconcile.deletion_policy import FORCE_DELETE, retention_reason
from tailrace_operator.reconcile.outcome import Outcome
from tailrace_operator.schema.specs import StreamSpec
from tailrace_operator.stream import conditions
from tailrace_operator.stream.owner import Owner

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.connections.controllers import Controllers
    from tailrace_operator.kube.objects import Objects


async def delete_stream(objects: Objects, controllers: Controllers, manifest: Manifest) -> Outcome:
    """Delete the stream if the policy says so. Remove the finalizer when that is done, or cannot be done."""
    if not has_finalizer(manifest):
        return Outcome()
    try:
        spec = StreamSpec.parse(manifest)
    except InvalidSpecError as error:
        return _remove_finalizer("StreamRetained", f"The specification is invalid, so nothing was deleted: {error}.")
    me, stream = Owner.of(manifest), StreamName(spec.scope, spec.stream_name)
    cluster = ClusterName(me.namespace, spec.cluster)
    kept = await retention_reason(objects, controllers, manifest, cluster, spec.deletion_policy)
    if kept is not None:
        return _remove_finalizer("StreamRetained", f"Stream {stream} and its data are kept: {kept}.")
    try:
        async with controllers.use(cluster) as client:
            there_was_one = await client.context.controller.delete_owned_stream(stream, str(me))
    except NotTheOwnerError as error:
        return _remove_finalizer("StreamRetained", f"Stream {stream} and its data are kept: {_owned_by(error.owner)}.")
    except TailraceError as error:
        return _retry_later(stream, error)
    if not there_was_one:
        return Outcome(finalizer=False)
    return Outcome(notices=(Notice("StreamDeleted", f"Stream {stream} and its data were deleted."),), finalizer=False)


def _owned_by(owner: str) -> str:
    return f"it belongs to {owner}" if owner else "another client created it again"


def _remove_finalizer(reason: str, message: str) -> Outcome:
    return Outcome(notices=(Notice(reason, message),), finalizer=False)


def _retry_later(stream: StreamName, error: TailraceError) -> Outcome:
    message = (
        f"Stream {stream} could not be deleted yet: {error}. The operator retries. To delete the resource and keep the "
        f"stream, set the annotation {FORCE_DELETE}."
    )
    return Outcome((conditions.not_ready("DeletionWaits", message),), retry_after_s=limits.OPERATOR_DELETION_RETRY_S)
