"""Bytes that the streams of a container really hold in Tier 2 (docs/design.md#reclamation)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common.errors import InvalidNameError
from tailrace.common.names import parse_segment_name
from tailrace.segmentstore.api import StreamBytes
from tailrace.storage.chunks import section_length

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.segmentstore.metadata.state import ContainerState

_SEGMENTS_AT_ONCE = 100  # between two turns of the event loop: a container may have 100,000 references


async def held_bytes(state: ContainerState, shared_bytes: Mapping[str, int]) -> dict[str, StreamBytes]:
    """Return what each stream retains and holds, by ``scope/stream``.

    An object is held whole while one reference names it. Its length, dead bytes included, counts for those that do, in
    proportion to their lengths. ``shared_bytes``: lengths of objects with several sections, as far as they are known.
    What changes meanwhile may be counted as before or as after the change.
    """
    referenced: dict[str, int] = {}
    segments = list(state.segments.values())
    for number, segment in enumerate(segments):
        if number % _SEGMENTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        for ref in segment.chunks:
            length = section_length(segment.name, ref.length)
            referenced[ref.object_key] = referenced.get(ref.object_key, 0) + length
    found: dict[str, StreamBytes] = {}
    for number, segment in enumerate(segments):
        if number % _SEGMENTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        own = found.setdefault(stream_of(segment.name), StreamBytes())
        own.segments += 1
        own.retained_bytes += segment.length - segment.start_offset
        for ref in segment.chunks:
            length = section_length(segment.name, ref.length)
            whole = referenced.get(ref.object_key, length)
            stored = max(shared_bytes.get(ref.object_key, whole), whole)
            own.held_bytes += round(stored * length / whole)
    return found


def stream_of(segment: str) -> str:
    """Return the stream of a segment, ``scope/stream``; the name itself for one of another form."""
    try:
        name = parse_segment_name(segment)
    except InvalidNameError:
        return segment
    return f"{name.scope}/{name.stream}" if name.scope else name.stream
