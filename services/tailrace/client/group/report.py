"""Report on a reader group: who reads what, how far, and how much is left (docs/cli.md#reader-groups).

See docs/protocol/reader-group-state.md#reporting.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.model import StreamName
from tailrace.common import names
from tailrace.common.errors import BadRequestError, NoSuchSegmentError, NotFoundError
from tailrace.common.stream_cut import StreamCut
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tailrace.client.context import ClientContext
    from tailrace.client.group.state.state import GroupState
    from tailrace.client.types import SegmentInfo


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """A reader that is online: offsets by segment, and what it has not read of them.

    ``dead_after_s``: the silence after which others take over; None for a reader that announced none.
    """

    reader: str
    segments: Mapping[str, int]
    unread_bytes: int
    dead_after_s: float | None


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream of a group. ``position`` is None when the group has read all that it is to read of the stream."""

    stream: StreamName
    position: StreamCut | None
    unread_bytes: int
    checkpoint: StreamCut | None
    published: StreamCut | None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group as its state and its streams are now. ``free``: offsets of segments that no reader has."""

    readers: list[ReaderReport]
    free: Mapping[str, int]
    waiting: list[str]
    """Segments whose predecessors are not read completely."""
    streams: list[StreamReport]

    @property
    def unread_bytes(self) -> int:
        """Return the bytes that the group has not read, of all its streams."""
        return sum(stream.unread_bytes for stream in self.streams)


def positions_of(state: GroupState) -> dict[str, int]:
    """Return the last known offset of each segment that a group reads or is to read; −1 is the end of a sealed one."""
    offsets = state.coarse_positions()
    for segment, offset in state.last_read.items():
        if offsets.get(segment, 0) >= 0:
            offsets[segment] = max(offset, offsets.get(segment, 0)) if offset >= 0 else offset
    return offsets


async def segments_after(
    context: ClientContext, stream: StreamName, cut: Mapping[int, int], ends: Mapping[str, int]
) -> list[int]:
    """Return the segments from a cut to the end cut in `ends`, or to the tail; none of a deleted stream."""
    end = {}
    for segment, offset in ends.items():
        name = names.parse_segment_name(segment)
        if (name.scope, name.stream) == stream:
            end[name.identifier] = offset
    try:
        return await context.controller.segments_between(stream, cut, end or None)
    except NotFoundError:
        return []
    except BadRequestError:
        return list(cut)  # the positions are past the end cut, or of a stream that was created again


async def published_cut(context: ClientContext, stream: StreamName, group: str) -> StreamCut | None:
    """Return the cut that a group, named ``scope/group``, published for retention; None when there is none."""
    try:
        cut = await context.controller.subscriber_cut(stream, group)
    except NotFoundError:  # the stream, or the subscription
        return None
    return StreamCut(stream.scope, stream.stream, cut) if cut else None


async def report(context: ClientContext, group: str, state: GroupState) -> GroupReport:
    """Return the report of a group, named ``scope/group``.

    Raises UnavailableError when a segment store or the controller does not answer.
    """
    offsets = positions_of(state)
    cuts = await complete_cuts(context, offsets)
    checkpoints = await complete_cuts(context, state.last_checkpoint or {})
    streams = []
    for scoped in state.config.starting:
        stream = StreamName.parse(scoped)
        cut = cuts.get(scoped)
        unread = 0 if cut is None else await _unread_after(context, stream, cut.positions, state.end_segments)
        published = await published_cut(context, stream, group)
        streams.append(StreamReport(stream, cut, unread, checkpoints.get(scoped), published))
    return GroupReport(
        readers=await reader_reports(context, state),
        free={segment: offsets[segment] for segment in state.unassigned},
        waiting=sorted(state.future),
        streams=streams,
    )


async def reader_reports(context: ClientContext, state: GroupState) -> list[ReaderReport]:
    """Return the readers that are online, in the order in which they joined."""
    offsets = positions_of(state)
    segments = [segment for owned in state.assigned.values() for segment in owned]
    unread = dict.fromkeys(segments, 0)
    for segment, info in zip(segments, await gather_bounded(segments, info_of(context)), strict=True):
        if info is not None and offsets[segment] >= 0:
            end = min(info.length, state.end_segments.get(segment, info.length))
            unread[segment] = max(0, end - max(offsets[segment], info.start_offset))
    reports = []
    for reader, owned in state.assigned.items():
        heartbeat = state.heartbeats.get(reader)
        dead_after_s = None if heartbeat is None else heartbeat.dead_after_ms / 1000
        positions = {segment: offsets[segment] for segment in sorted(owned)}
        reports.append(ReaderReport(reader, positions, sum(unread[segment] for segment in owned), dead_after_s))
    return reports


async def _unread_after(
    context: ClientContext, stream: StreamName, cut: Mapping[int, int], ends: Mapping[str, int]
) -> int:
    identifiers = await segments_after(context, stream, cut, ends)
    segments = [stream.segment(identifier) for identifier in identifiers]
    total = 0
    for identifier, segment, info in zip(
        identifiers, segments, await gather_bounded(segments, info_of(context)), strict=True
    ):
        if info is not None:
            end = min(info.length, ends.get(segment, info.length))
            total += max(0, end - max(cut.get(identifier, 0), info.start_offset))
    return total


def info_of(context: ClientContext) -> Callable[[str], Awaitable[SegmentInfo | None]]:
    """Return what asks for a segment's properties."""

    async def info(segment: str) -> SegmentInfo | None:
        """Return the properties; None for a segment that was deleted."""
        with contextlib.suppress(NoSuchSegmentError):
            return await context.segments.segment_info(segment)
        return None

    return info
