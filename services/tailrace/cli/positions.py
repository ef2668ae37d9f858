"""Stream cuts at the ends of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.common.streamcut import StreamCut

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext


async def head_cut(client: ClientContext, stream: StreamName) -> StreamCut:
    """Where the stream's data begins."""
    return StreamCut(stream.scope, stream.stream, await client.controller.head_segments(stream))


async def tail_cut(client: ClientContext, stream: StreamName) -> StreamCut:
    """Where the stream's data ends now; of a sealed stream the ends of its last segments."""
    segments = [segment.identifier for segment in await client.controller.current_segments(stream)]
    if not segments:
        segments = await _last_segments(client, stream)
    positions = {}
    for identifier in segments:
        positions[identifier] = (await client.segments.segment_info(stream.segment(identifier))).length
    return StreamCut(stream.scope, stream.stream, positions)


async def _last_segments(client: ClientContext, stream: StreamName) -> list[int]:
    """Segments of a sealed stream that nothing follows."""
    identifiers = await client.controller.segments_between(stream, None, None)
    return [identifier for identifier in identifiers if not await client.controller.successors(stream, identifier)]


def check_cut_of(cut: StreamCut, stream: StreamName) -> None:
    """Raise BadRequestError unless the cut belongs to the stream."""
    if cut.scoped_name != str(stream):
        raise BadRequestError(f"the stream cut belongs to {cut.scoped_name}, not to {stream}")
