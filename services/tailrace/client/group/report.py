"""Report on a reader group: who reads what, how far, and how much is left (docs/cli.md#reader-groups).

See docs/protocol/reader-group-state.md#reporting.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.client.group import rust
from tailrace.client.group.lag import NOTHING_UNREAD, Lag, lag_of, longest
from tailrace.client.group.reader_group import ReaderGroupManager
from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.group.view import GroupView, view_of
from tailrace.client.model import StreamName
from tailrace.common import names
from tailrace.common.errors import BadRequestError, NoSuchReaderGroupError, NoSuchSegmentError, NotFoundError
from tailrace.common.stream_cut import StreamCut
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tailrace.client.context import ClientContext
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
    lag: Lag
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

    @property
    def lag(self) -> Lag:
        """Return how long the oldest event that the group has not read has waited."""
        return longest(stream.lag for stream in self.streams)


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


async def find_view(context: ClientContext, scope: str, group: str) -> GroupView:
    """Return the view of a group of any flavour: ours and Java's, or, where there is none of that name, Rust's.

    Raises NoSuchReaderGroupError. CorruptionError: the state cannot be read. UnavailableError.
    """
    try:
        return view_of(await (await ReaderGroupManager(context, scope).open(group)).state())
    except NoSuchReaderGroupError as error:
        try:
            return await rust.read_view(context, scope, group)
        except NoSuchReaderGroupError:
            raise error from None


async def report(context: ClientContext, group: str, view: GroupView) -> GroupReport:
    """Return the report of a group, named ``scope/group``.

    Raises UnavailableError when a segment store or the controller does not answer.
    """
    cuts = await complete_cuts(context, view.offsets)
    checkpoints = await complete_cuts(context, view.last_checkpoint)
    streams = []
    for scoped in view.streams:
        stream = StreamName.parse(scoped)
        cut = cuts.get(scoped)
        unread = {} if cut is None else await _unread_after(context, stream, cut.positions, view.ends)
        unread_bytes = sum(end - begin for begin, end in unread.values())
        lag = await _lag(context, stream, {each: begin for each, (begin, _) in unread.items()})
        published = await published_cut(context, stream, group)
        streams.append(StreamReport(stream, cut, unread_bytes, lag, checkpoints.get(scoped), published))
    return GroupReport(
        readers=await reader_reports(context, view),
        free={segment: view.offsets[segment] for segment in view.free},
        waiting=list(view.waiting),
        streams=streams,
    )


async def reader_reports(context: ClientContext, view: GroupView) -> list[ReaderReport]:
    """Return the readers that are online, in the order in which they joined."""
    offsets = view.offsets
    segments = [segment for owned in view.assigned.values() for segment in owned]
    unread = dict.fromkeys(segments, 0)
    for segment, info in zip(segments, await gather_bounded(segments, info_of(context)), strict=True):
        if info is not None and offsets[segment] >= 0:
            end = min(info.length, view.ends.get(segment, info.length))
            unread[segment] = max(0, end - max(offsets[segment], info.start_offset))
    reports = []
    for reader, owned in view.assigned.items():
        positions = {segment: offsets[segment] for segment in sorted(owned)}
        missing = sum(unread[segment] for segment in owned)
        reports.append(ReaderReport(reader, positions, missing, view.dead_after_s.get(reader)))
    return reports


async def _lag(context: ClientContext, stream: StreamName, unread: Mapping[int, int]) -> Lag:
    if not unread:
        return NOTHING_UNREAD
    try:
        cuts = await context.controller.stream_cuts(stream)
    except NotFoundError:  # the stream was deleted, or the controller is older than the call
        return Lag(None, None)
    return lag_of(unread, cuts, context.clock.now_ms())


async def _unread_after(
    context: ClientContext, stream: StreamName, cut: Mapping[int, int], ends: Mapping[str, int]
) -> dict[int, tuple[int, int]]:
    """Return, by segment with unread bytes, where they begin and end."""
    identifiers = await segments_after(context, stream, cut, ends)
    segments = [stream.segment(identifier) for identifier in identifiers]
    unread = {}
    for identifier, segment, info in zip(
        identifiers, segments, await gather_bounded(segments, info_of(context)), strict=True
    ):
        if info is not None:
            begin = max(cut.get(identifier, 0), info.start_offset)
            end = min(info.length, ends.get(segment, info.length))
            if begin < end:
                unread[identifier] = begin, end
    return unread


def info_of(context: ClientContext) -> Callable[[str], Awaitable[SegmentInfo | None]]:
    """Return what asks for a segment's properties."""

    async def info(segment: str) -> SegmentInfo | None:
        """Return the properties; None for a segment that was deleted."""
        with contextlib.suppress(NoSuchSegmentError):
            return await context.segments.segment_info(segment)
        return None

    return info
