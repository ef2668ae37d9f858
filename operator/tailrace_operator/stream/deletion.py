"""Delete the stream of a deleted resource, without ever blocking a namespace (docs/design.md#resources, ADR 0014).

A resource has the finalizer only while ``deletionPolicy`` is Delete. The finalizer is removed when the stream is
deleted, or when it cannot be deleted: the resource does not own it, the cluster is missing or being deleted, the
namespace is being deleted, or the user set the annotation. An Event reports that the stream is then kept, or that the
controllers may go on with a deletion that began before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import InvalidSpecError, NotTheOwnerError, TailraceError
from tailrace_operator.connections.controllers import ClusterName
from tailrace_operator.kube.manifests import Notice, has_finalizer
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.deletion_policy import DELETION_WAITS, FORCE_DELETE, release_notice, retention_reason
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
        return _release(manifest, "The stream", f"the specification is invalid: {error}")
    me, stream = Owner.of(manifest), StreamName(spec.scope, spec.stream_name)
    cluster = ClusterName(me.namespace, spec.cluster)
    kept = await retention_reason(objects, controllers, manifest, cluster, spec.deletion_policy)
    if kept is not None:
        return _release(manifest, f"Stream {stream} with its data", kept)
    try:
        async with controllers.use(cluster) as client:
            there_was_one = await client.context.controller.delete_owned_stream(stream, str(me))
    except NotTheOwnerError as error:
        kept = f"Stream {stream} and its data are kept: {_owned_by(error.owner)}."
        return Outcome(notices=(Notice("StreamRetained", kept),), finalizer=False)
    except TailraceError as error:
        return _retry_later(stream, error)
    if not there_was_one:
        return Outcome(finalizer=False)
    return Outcome(notices=(Notice("StreamDeleted", f"Stream {stream} and its data were deleted."),), finalizer=False)


def _owned_by(owner: str) -> str:
    return f"it belongs to {owner}" if owner else "another client created it again"


def _release(manifest: Manifest, what: str, why: str) -> Outcome:
    return Outcome(notices=(release_notice(manifest, STREAMS.kind, what, why),), finalizer=False)


def _retry_later(stream: StreamName, error: TailraceError) -> Outcome:
    message = (
        f"Stream {stream} could not be deleted yet: {error}. The operator retries. To delete the resource without the "
        f"stream, set the annotation {FORCE_DELETE}; the controllers complete a deletion that has begun."
    )
    return Outcome((conditions.not_ready(DELETION_WAITS, message),), retry_after_s=limits.OPERATOR_DELETION_RETRY_S)
