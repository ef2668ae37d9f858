"""Delete the reader group of a deleted resource, without ever blocking a namespace.

See docs/design.md#resources, ADR 0014.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import InvalidSpecError, NoSuchReaderGroupError, TailraceError
from tailrace_operator.connections.controllers import ClusterName
from tailrace_operator.kube.manifests import Notice, has_finalizer
from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup import conditions
from tailrace_operator.readergroup.ownership import belongs_to
from tailrace_operator.reconcile.deletion_policy import DELETION_WAITS, FORCE_DELETE, release_notice, retention_reason
from tailrace_operator.reconcile.outcome import Outcome
from tailrace_operator.schema.specs import ReaderGroupSpec

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.connections.controllers import Controllers
    from tailrace_operator.kube.objects import Objects


async def delete_group(objects: Objects, controllers: Controllers, manifest: Manifest) -> Outcome:
    """Delete the group if the policy says so. Remove the finalizer when that is done, or cannot be done."""
    if not has_finalizer(manifest):
        return Outcome()
    try:
        spec = ReaderGroupSpec.parse(manifest)
    except InvalidSpecError as error:
        return _release(manifest, "The reader group", f"the specification is invalid: {error}")
    group = f"{spec.scope}/{spec.group_name}"
    cluster = ClusterName(manifest["metadata"]["namespace"], spec.cluster)
    kept = await retention_reason(objects, controllers, manifest, cluster, spec.deletion_policy)
    if kept is not None:
        return _release(manifest, f"Reader group {group}", kept)
    try:
        async with controllers.use(cluster) as client:
            stored = await client.context.controller.reader_group_config(spec.scope, spec.group_name)
            owner = await belongs_to(objects.list, spec, manifest, stored.group_id)
            if owner != manifest["metadata"]["uid"]:
                kept = f"Reader group {group} is kept: it belongs to another ReaderGroup, uid {owner}."
                return Outcome(notices=(Notice("ReaderGroupRetained", kept),), finalizer=False)
            await client.context.controller.delete_reader_group(spec.scope, spec.group_name, stored.group_id)
    except NoSuchReaderGroupError:
        return Outcome(finalizer=False)
    except TailraceError as error:
        return _retry_later(group, error)
    return Outcome(notices=(Notice("ReaderGroupDeleted", f"Reader group {group} was deleted."),), finalizer=False)


def _release(manifest: Manifest, what: str, why: str) -> Outcome:
    return Outcome(notices=(release_notice(manifest, READER_GROUPS.kind, what, why),), finalizer=False)


def _retry_later(group: str, error: TailraceError) -> Outcome:
    message = (
        f"Reader group {group} could not be deleted yet: {error}. The operator retries. To delete the resource "
        f"without the group, set the annotation {FORCE_DELETE}; the controllers complete a deletion that has begun."
    )
    outcome = conditions.unmeasured(DELETION_WAITS, message, uid=None)
    return dataclasses.replace(outcome, status={}, retry_after_s=limits.OPERATOR_DELETION_RETRY_S)
