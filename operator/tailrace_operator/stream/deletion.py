"""What becomes of a stream when its resource is deleted; never keeps a namespace from going (design §11, ADR 0014).

The finalizer is there only while ``deletionPolicy`` is Delete. It goes when the stream is deleted, when there is none
of ours to delete, and when nobody can delete it any more: the cluster is missing or going, the namespace is going, or
somebody says so by the annotation. Then the stream stays, and an Event says it.
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
    """Delete what the resource leaves, if it is to; the finalizer goes when that is done or cannot be done."""
    if not has_finalizer(manifest):
        return Outcome()
    try:
        spec = StreamSpec.parse(manifest)
    except InvalidSpecError as error:
        return _let_go("StreamRetained", f"What is asked for cannot be read, so nothing was deleted: {error}.")
    me, stream = Owner.of(manifest), StreamName(spec.scope, spec.stream_name)
    cluster = ClusterName(me.namespace, spec.cluster)
    kept = await retention_reason(objects, controllers, manifest, cluster, spec.deletion_policy)
    if kept is not None:
        return _let_go("StreamRetained", f"Stream {stream} and its data stay: {kept}.")
    try:
        async with controllers.use(cluster) as client:
            there_was_one = await client.context.controller.delete_owned_stream(stream, str(me))
    except NotTheOwnerError as error:
        return _let_go("StreamRetained", f"Stream {stream} and its data stay: {_of(error.owner)}.")
    except TailraceError as error:
        return _not_yet(stream, error)
    if not there_was_one:
        return Outcome(finalizer=False)
    return Outcome(notices=(Notice("StreamDeleted", f"Stream {stream} and its data were deleted."),), finalizer=False)


def _of(owner: str) -> str:
    return f"it belongs to {owner}" if owner else "it was made again by somebody else"


def _let_go(reason: str, message: str) -> Outcome:
    return Outcome(notices=(Notice(reason, message),), finalizer=False)


def _not_yet(stream: StreamName, error: TailraceError) -> Outcome:
    message = (
        f"Stream {stream} could not be deleted yet: {error}. It is tried again; the annotation {FORCE_DELETE} lets "
        "the resource go and keeps the stream."
    )
    return Outcome((conditions.not_ready("DeletionWaits", message),), retry_after_s=limits.OPERATOR_DELETION_RETRY_S)
