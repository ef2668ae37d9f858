"""Whether segments have what was read or planned of them: not after a restore that lost the end of a log.

See docs/spark.md#errors, docs/operations/backup-and-restore.md#restore-a-lost-folder.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.client.connections.segments import SegmentClient
    from tailrace.client.types import SegmentInfo


async def info_up_to(segments: SegmentClient, name: str, position: int) -> SegmentInfo:
    """Return the properties of a segment, which may be shorter than a position.

    It is looked at again, after a pause, before it counts as shorter: an owner that was replaced may answer with a
    length of 2 s ago (docs/design.md#stale-owners).

    Raises:
        NoSuchSegmentError.
    """
    for pause_s in limits.SPARK_END_PAUSES_S:
        info = await segments.segment_info(name)
        if info.length >= position:
            return info
        await asyncio.sleep(pause_s)
    return await segments.segment_info(name)
