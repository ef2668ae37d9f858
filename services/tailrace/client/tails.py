"""Find where a stream ends (docs/protocol/naming.md#stream-cuts)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.stream_cut import StreamCut
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName


async def tail_cut(context: ClientContext, stream: StreamName) -> StreamCut:
    """Return a cut after everything acknowledged before this call.

    Raises:
        NoSuchStreamError.
    """
    segments = await context.controller.current_segments(stream)
    identifiers = [segment.identifier for segment in segments] or await _last_segments(context, stream)
    infos = await gather_bounded(map(stream.segment, identifiers), context.segments.segment_info)
    lengths = {identifier: info.length for identifier, info in zip(identifiers, infos, strict=True)}
    return StreamCut(stream.scope, stream.stream, lengths)


async def _last_segments(context: ClientContext, stream: StreamName) -> list[int]:
    """Return the segments of a sealed stream that have no successors."""
    found = await context.controller.segments_between(stream, None, None)
    return [identifier for identifier in found if not await context.controller.successors(stream, identifier)]
