"""Compares what an object store holds with what the server says (docs/spark-direct.md#the-right-store)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import NotFoundError, PermissionDeniedError, StartError, UnauthenticatedError
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.metadata_store import SCOPES_TABLE
from tailrace.pipelines.direct.references import load_references
from tailrace.segmentstore.api import CREATION_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.connections.segments import SegmentClient
    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.references import SegmentReferences
    from tailrace.pipelines.direct.store_location import StoreLocation
    from tailrace.storage.port import ObjectStore

_CREATION: Final = uuid.UUID(bytes=CREATION_TIME)


async def check_same_cluster(
    segments: SegmentClient, store: ObjectStore, location: StoreLocation, identity: ClusterIdentity
) -> bool:
    """Compare when the table of scopes was created, which each cluster makes once, in its first second.

    Returns False when they could not be compared: no snapshot has the table yet, or the client may not see it.

    Raises:
        StartError: the store belongs to another cluster than the server. UnavailableError. DataError.
    """
    cluster_id = uuid.UUID(identity.cluster_id)
    found = (await load_references(store, cluster_id, identity.containers, [SCOPES_TABLE])).get(SCOPES_TABLE)
    if found is None:
        return False
    try:
        created_ms = await segments.get_attribute(SCOPES_TABLE, _CREATION)
    except (NotFoundError, PermissionDeniedError, UnauthenticatedError):
        return False
    if created_ms != found.created_ms:
        raise StartError(
            f"Tier 2 {location.url} holds cluster {identity.cluster_id}, which is not the server's. Check option tier2"
        )
    return True


async def same_segments(
    segments: SegmentClient, found: Mapping[str, SegmentReferences]
) -> dict[str, SegmentReferences]:
    """Return the references of segments that the server has now, created at the same time.

    A stream that was deleted and made again has segments of the same names. A snapshot that is older than that has the
    old ones, whose bytes must not be read for those of the new.
    """

    async def created_ms(name: str) -> int | None:
        try:
            return await segments.get_attribute(name, _CREATION)
        except NotFoundError:
            return None

    times = await gather_bounded(list(found), created_ms)
    return {name: found[name] for name, time_ms in zip(found, times, strict=True) if time_ms == found[name].created_ms}
