"""Find the resource that owns a reader group (ADR 0014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.errors import InvalidSpecError
from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup.plan import oldest_resource
from tailrace_operator.schema.specs import ReaderGroupSpec

if TYPE_CHECKING:
    import uuid

    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.kube.objects import Objects


async def belongs_to(objects: Objects, spec: ReaderGroupSpec, manifest: Manifest, group_id: uuid.UUID) -> str:
    """Return the uid of the resource that owns the group: its creator, else the oldest resource that names it.

    Raises:
        UnavailableError: the API server does not answer.
    """
    own: str = manifest["metadata"]["uid"]
    if own == str(group_id):
        return own
    rivals = [manifest]
    for other in await objects.list(READER_GROUPS, manifest["metadata"]["namespace"]):
        if other["metadata"]["uid"] != own and _names(other, spec):
            if other["metadata"]["uid"] == str(group_id):
                return str(group_id)
            rivals.append(other)
    return oldest_resource(rivals)


def _names(manifest: Manifest, spec: ReaderGroupSpec) -> bool:
    try:
        other = ReaderGroupSpec.parse(manifest)
    except InvalidSpecError:
        return False
    return (other.cluster, other.scope, other.group_name) == (spec.cluster, spec.scope, spec.group_name)
