"""Find the resource that owns a reader group (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup.plan import oldest_resource
from tailrace_operator.schema.specs import names_group

if TYPE_CHECKING:
    import uuid

    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.kube.objects import ListObjects
    from tailrace_operator.schema.specs import ReaderGroupSpec


async def belongs_to(list_objects: ListObjects, spec: ReaderGroupSpec, manifest: Manifest, group_id: uuid.UUID) -> str:
    """Return the uid of the resource that owns the group: its creator, else the oldest resource that names it.

    `list_objects`: from the API server where an effect depends on it.

    Raises:
        UnavailableError: the API server does not answer.
    """
    own: str = manifest["metadata"]["uid"]
    if own == str(group_id):
        return own
    rivals = [manifest]
    for other in await list_objects(READER_GROUPS, manifest["metadata"]["namespace"]):
        if other["metadata"]["uid"] != own and names_group(other, spec.cluster, spec.scope, spec.group_name):
            if other["metadata"]["uid"] == str(group_id):
                return str(group_id)
            rivals.append(other)
    return oldest_resource(rivals)
