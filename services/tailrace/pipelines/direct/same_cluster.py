"""Compares what Tier 2 holds with what the servers say (docs/spark-direct.md#the-right-store)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, StartError
from tailrace.common.task_groups import gather_bounded
from tailrace.pipelines.direct.references import load_snapshots
from tailrace.segmentstore.api import CREATION_TIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.connections.segments import SegmentClient
    from tailrace.pipelines.direct.references import SegmentReferences
    from tailrace.pipelines.direct.segment_range import TierTwo

_CREATION: Final = uuid.UUID(bytes=CREATION_TIME)


async def checked_references(
    segments: SegmentClient, tier2: TierTwo, place: str, names: Sequence[str]
) -> dict[str, SegmentReferences]:
    """Return the references of segments (full names), by name, where the servers' segment is that of the snapshot.

    A stream that was deleted and made again has segments of the same names. Those, segments that are newer than the
    snapshot and segments that are gone are not in the result: they are read from the segment stores. ``place`` is what
    errors call Tier 2.

    Raises:
        StartError: Tier 2 is that of another cluster: a snapshot lacks a segment that is older than the snapshot.
        DataError, UnavailableError: see `load_snapshots`. Errors of `SegmentClient`.
    """

    async def created_ms(name: str) -> int | None:
        try:
            return await segments.get_attribute(name, _CREATION)
        except NotFoundError:
            return None

    found, times = await load_snapshots(tier2.store, tier2.cluster_id, tier2.containers, names)
    result: dict[str, SegmentReferences] = {}
    for name, created in zip(names, await gather_bounded(names, created_ms), strict=True):
        references = found.get(name)
        if created is None:
            continue
        if references is not None and references.created_ms == created:
            result[name] = references
        elif name in times and created + limits.DIRECT_CLOCK_SKEW_MAX_MS < times[name]:
            raise StartError(
                f"{place} holds cluster {tier2.cluster_id}, which is not the server's: a later snapshot has no"
                f" segment {name}. Check option tier2"
            )
    return result
