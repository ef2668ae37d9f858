"""Return the history of a stream's scales (docs/protocol/rest.md#endpoints)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.rest import models

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Core
    from tailrace.controller.metadata.model import Epoch


async def scaling_events(
    core: Core, scope: str, stream: str, since_ms: int, until_ms: int
) -> list[models.ScaleMetadata]:
    """Return at most one page of scales between two times, after the last scale before `since_ms`.

    Raises:
        NoSuchStreamError.
    """
    key = StreamKey(scope, stream)
    root = await core.streams.load(key)
    found: list[Epoch] = []
    last = root.active_epoch
    while last >= 0 and len(found) < limits.REST_PAGE_ENTRIES_MAX:
        first = max(0, last - limits.EPOCHS_PER_READ_MAX + 1)
        for epoch in reversed(await core.context.store.epochs(key, root, first, last)):
            if epoch.created_ms <= until_ms:
                found.append(epoch)
            if epoch.created_ms < since_ms:
                return [_metadata(item) for item in reversed(found)]
        last = first - 1
    return [_metadata(item) for item in reversed(found)]


def _metadata(epoch: Epoch) -> models.ScaleMetadata:
    return models.ScaleMetadata(
        timestamp=epoch.created_ms,
        segmentList=[
            models.SegmentModel(
                number=segment.number, startTime=epoch.created_ms, keyStart=segment.low, keyEnd=segment.high
            )
            for segment in epoch.segments
        ],
        splits=epoch.splits,
        merges=epoch.merges,
    )
