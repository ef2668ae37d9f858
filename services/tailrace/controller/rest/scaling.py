"""Return the history of a stream's scales (docs/protocol/rest.md#endpoints)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.rest import models

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Core
    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import StreamRecord


async def scaling_events(core: Core, scope: str, stream: str, since_ms: int, until_ms: int) -> bytes:
    """Return scales between two times as JSON, after the last scale before `since_ms`.

    They are the newest ones whose epochs have `limits.HISTORY_SEGMENTS_PER_REPLY_MAX` segments together, and those of
    the same time as the first of them: the ones before it are asked for with an earlier `until_ms`.

    Raises:
        NoSuchStreamError.
    """
    key = StreamKey(scope, stream)
    found = await _newest(core, key, await core.streams.load(key), since_ms, until_ms)
    events = [await _encoded(epoch) for epoch in reversed(found)]
    return b"[" + b",".join(events) + b"]"


async def _newest(core: Core, key: StreamKey, root: StreamRecord, since_ms: int, until_ms: int) -> list[Epoch]:
    """Return the epochs of an answer, the newest one first."""
    found: list[Epoch] = []
    segments = looked_at = 0
    async for part in core.context.store.epoch_parts(key, root, range(root.active_epoch, -1, -1)):
        for epoch in part:
            if epoch.created_ms <= until_ms:
                is_full = (
                    segments >= limits.HISTORY_SEGMENTS_PER_REPLY_MAX or len(found) >= limits.REST_PAGE_ENTRIES_MAX
                )
                if is_full and epoch.created_ms != found[-1].created_ms:
                    return found
                found.append(epoch)
                segments += len(epoch.segments)
            if epoch.created_ms < since_ms:
                return found
            looked_at += len(epoch.segments)
            if looked_at >= limits.EPOCH_SEGMENTS_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
    return found


async def _encoded(epoch: Epoch) -> bytes:
    """Return an epoch as JSON. Others get turns of the event loop: 1,000 segments take some 15 ms."""
    segments: list[models.SegmentModel] = []
    for start in range(0, len(epoch.segments), limits.REST_SEGMENTS_AT_ONCE):
        segments += [
            models.SegmentModel(
                number=segment.number, startTime=epoch.created_ms, keyStart=segment.low, keyEnd=segment.high
            )
            for segment in epoch.segments[start : start + limits.REST_SEGMENTS_AT_ONCE]
        ]
        await asyncio.sleep(0)
    event = models.ScaleMetadata(
        timestamp=epoch.created_ms, segmentList=segments, splits=epoch.splits, merges=epoch.merges
    )
    return event.model_dump_json().encode()
