"""Positions in streams by what controller and segment stores know (docs/spark.md#order)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager
from tailrace.client.reader.batch import SegmentReader, SegmentSlice, offset_of_cut
from tailrace.client.reader.segment_input import UNLIMITED_OFFSET
from tailrace.client.stream_manager import StreamManager
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common.errors import (
    BadRequestError,
    DataLossError,
    IllegalStateError,
    NoSuchSegmentError,
    NoSuchStreamError,
    SegmentGoneError,
    SegmentTruncatedError,
)
from tailrace.common.stream_cut import StreamCut, pairs_of_positions, without_future
from tailrace.common.stream_policies import StreamDataRetention
from tailrace.common.task_groups import gather_bounded
from tailrace.pipelines.source.options import HEAD, TAIL, Moment
from tailrace.pipelines.source.plan import follow, share
from tailrace.pipelines.source.segment_ends import info_up_to

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping

    from tailrace.client.context import ClientContext
    from tailrace.client.model import Cut, StreamName
    from tailrace.client.types import SegmentInfo
    from tailrace.pipelines.source.offsets import Positions

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ReadLimits:
    """Bounds of a batch; None for no bound."""

    max_bytes: int | None = None
    max_events: int | None = None


class Extent(NamedTuple):
    """Bytes ``start`` to ``end`` of a segment, of which those before ``kept_from`` were truncated.

    ``end`` is UNLIMITED_OFFSET where no controller knows how much there was.
    """

    identifier: int
    start: int
    kept_from: int
    end: int


@dataclass
class Navigator:
    """Finds positions in streams. With ``fail_on_data_loss`` unread data that were truncated are an error."""

    context: ClientContext
    fail_on_data_loss: bool
    _reported: set[str] = field(default_factory=set)

    async def start(self, stream: StreamName, where: str | StreamCut | Moment) -> dict[int, int]:
        """Return the head, the tail, the position of a cut, or one with all that was written since a time behind it.

        Raises:
            NoSuchStreamError. BadRequestError: the cut is no position of the stream.
        """
        await self.check_exists(stream)
        if where == HEAD:
            return await self.context.controller.head_segments(stream)
        if where == TAIL:
            return await self.tail(stream)
        if isinstance(where, Moment):
            return await self.cut_before(stream, where) or await self.context.controller.head_segments(stream)
        assert not isinstance(where, str)
        await self.check_cut(stream, where)
        return without_future(where.positions)

    async def cut_before(self, stream: StreamName, moment: Moment) -> dict[int, int] | None:
        """Return the newest recorded cut of a time or before it; None: there is none, or the head is after it."""
        cuts = await self.context.controller.stream_cuts(stream, moment.time_ms, moment.time_ms)
        found = [dict(cut.positions) for cut in cuts if cut.recorded_ms <= moment.time_ms]
        if not found or not await self.context.controller.is_cut_valid(stream, found[-1]):
            return None
        head = await self.context.controller.head_segments(stream)
        return None if await self.is_beyond(stream, head, found[-1]) else found[-1]

    async def cut_after(self, stream: StreamName, moment: Moment) -> dict[int, int] | None:
        """Return the oldest recorded cut of a time or after it; None: there is none."""
        cuts = await self.context.controller.stream_cuts(stream, moment.time_ms, moment.time_ms)
        return next((dict(cut.positions) for cut in cuts if cut.recorded_ms >= moment.time_ms), None)

    async def check_exists(self, stream: StreamName) -> None:
        """Raise NoSuchStreamError when the stream does not exist."""
        if not await self.context.controller.stream_exists(stream):
            raise NoSuchStreamError(f"stream {stream} does not exist")

    async def check_cut(self, stream: StreamName, cut: StreamCut) -> None:
        """Raise BadRequestError when a cut is no position of the stream."""
        if not await self.context.controller.is_cut_valid(stream, cut.positions):
            raise BadRequestError(f"the cut is no position of stream {stream}: {cut.to_text()}")

    async def is_beyond(self, stream: StreamName, position: Mapping[int, int], end: Mapping[int, int]) -> bool:
        """Return whether a position is after another one, for some keys."""
        ranges = (await self.context.controller.stream_history(stream)).key_ranges()
        return any(mine > theirs for mine, theirs in pairs_of_positions(position, end, ranges))

    async def tail(self, stream: StreamName) -> dict[int, int]:
        """Return the position behind all data."""
        return dict((await StreamManager(self.context).tail(stream)).positions)

    async def between(self, stream: StreamName, start: Cut | None, end: Cut | None) -> list[Extent]:
        """Return what lies between two cuts, also what was truncated; None is the head, and the present tail.

        Raises:
            NotFoundError. BadRequestError: the start is after the end.
        """
        identifiers = await self.context.controller.segments_between(stream, start, end)
        infos, sizes = await self._segments(stream, identifiers)
        extents = []
        for each, info in infos.items():
            size = sizes[each] if info is None else info.length
            length = UNLIMITED_OFFSET if size is None else size
            first = offset_of_cut(start, each, 0)
            last = min(length, offset_of_cut(end, each, length))
            if first < last:
                extents.append(Extent(each, first, min(last, length if info is None else info.start_offset), last))
        return extents

    async def slices(
        self, stream: StreamName, start: Cut | None, end: Cut | None, *, may_begin_later: bool
    ) -> list[SegmentSlice]:
        """Return the slices between two cuts; None is the head, and the present tail.

        Raises:
            NotFoundError, BadRequestError: see `between`. DataLossError: the start is truncated, unless the slices may
                begin behind it.
        """
        slices = []
        for each in await self.between(stream, start, end):
            name = stream.segment(each.identifier)
            if start is not None and each.start < each.kept_from and not may_begin_later:
                cut = StreamCut(stream.scope, stream.stream, start).to_text()
                to = "its end" if each.kept_from == UNLIMITED_OFFSET else str(each.kept_from)
                lost = f"bytes {each.start} to {to} were truncated, which are behind the start {cut}"
                lost += "; with failOnDataLoss=false the table begins behind them"
                self._lose(name, each.start, each.kept_from, lost)
            first = max(each.start, each.kept_from)
            if first < each.end:
                slices.append(SegmentSlice(name, first, each.end))
        return slices

    async def advance(self, positions: Positions, bounds: ReadLimits, ends: Positions | None) -> Positions:
        """Return the position after the next batch from `positions` on, and not beyond `ends`.

        Segments that were read to their end are followed by their successors, from their beginning; a batch ends with
        the segments that it has then.

        Raises:
            DataLossError: data that were not read are truncated, or a position is beyond the end of its segment.
                NoSuchStreamError, IllegalStateError: the stream is gone, or another one of the name.
        """
        begins: Positions = {}
        lengths: Positions = {}
        for stream, cut in positions.items():
            begins[stream], lengths[stream] = await self._next(stream, cut, (ends or {}).get(stream, {}))
        return await self._bounded(begins, lengths, bounds)

    async def _next(
        self, stream: StreamName, cut: Mapping[int, int], ends: Mapping[int, int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return where the next batch begins in a stream, and how far there are data."""
        begins = dict(cut)
        while True:
            infos = await self._infos(stream, begins)
            complete = {
                each
                for each, info in infos.items()
                if each not in ends and (info is None or (info.sealed and begins[each] >= info.length))
            }
            following = await self._leave(stream, begins, complete)
            if following.keys() == begins.keys():
                break
            begins = following
        lengths = dict(begins)
        for each, info in infos.items():
            if info is not None:
                if begins[each] < info.start_offset:
                    self._lose_unread(stream, each, begins[each], info.start_offset)
                    begins[each] = info.start_offset
                begins[each] = min(begins[each], info.length)
                lengths[each] = max(begins[each], min(info.length, ends.get(each, info.length)))
        return begins, lengths

    async def _leave(self, stream: StreamName, cut: Mapping[int, int], complete: set[int]) -> dict[int, int]:
        """Return a position with the successors of complete segments in their place."""
        names = sorted(complete)
        successors = await gather_bounded(names, lambda each: self.context.controller.successors(stream, each))
        leaving, following = follow(dict(zip(names, successors, strict=True)))
        kept = {each: offset for each, offset in cut.items() if each not in leaving}
        return kept | dict.fromkeys(following, 0)

    async def _infos(self, stream: StreamName, cut: Mapping[int, int]) -> dict[int, SegmentInfo | None]:
        """Return the properties of the segments; None for those that a truncation deleted."""
        found, sizes = await self._segments(stream, cut, cut)
        for each, info in found.items():
            size = sizes[each] if info is None else info.length
            if size is not None and cut[each] > size:
                self._lose_end(stream.segment(each), cut[each], size)
            elif info is None and (size is None or cut[each] < size):
                self._lose_unread(stream, each, cut[each], size)
        return found

    async def _segments(
        self, stream: StreamName, identifiers: Collection[int], reached: Mapping[int, int] | None = None
    ) -> tuple[dict[int, SegmentInfo | None], dict[int, int | None]]:
        """Return the properties of the segments; None for those that were deleted, and the sizes that these had.

        The size of a segment that a client deleted while it was active is not known. One that is shorter than what was
        ``reached`` in it is looked at again.
        """

        async def info(identifier: int) -> SegmentInfo | None:
            position = (reached or {}).get(identifier, 0)
            try:
                return await info_up_to(self.context.segments, stream.segment(identifier), position)
            except NoSuchSegmentError:
                return None

        found = dict(zip(identifiers, await gather_bounded(identifiers, info), strict=True))
        missing = [each for each, one in found.items() if one is None]
        sizes: dict[int, int | None] = {}
        if missing:
            await self.check_exists(stream)
            history = await self.context.controller.stream_history(stream)
            if history.is_going:
                raise NoSuchStreamError(f"stream {stream} is being deleted")
            known = {each for epoch in history.epochs for each in epoch.segments}
            for each in missing:
                if each not in known:
                    raise IllegalStateError(
                        f"stream {stream} has no segment {each}: it was deleted and created again since the checkpoint"
                    )
                sizes[each] = history.sealed_sizes.get(each)
        return found, sizes

    def _lose_unread(self, stream: StreamName, identifier: int, start: int, end: int | None) -> None:
        """Report data that are gone before they were read, up to `end`, or all that were there. Raises as `_lose`."""
        lost = f"bytes {start} to {end} were truncated" if end is not None else f"it was deleted, read up to {start},"
        lost += " before the query read them; with failOnDataLoss=false it goes on behind them"
        self._lose(stream.segment(identifier), start, end, lost)

    def _lose_end(self, name: str, position: int, end: int) -> None:
        """Report a position beyond the end of its segment. Raises DataLossError if that is to be an error."""
        if self.fail_on_data_loss:
            raise DataLossError(
                f"{name}: the segment ends at {end}, the checkpoint is beyond it, at {position}: a restore lost what "
                "was between them; with failOnDataLoss=false the query goes on from the end"
            )
        if name not in self._reported:
            self._reported.add(name)
            _LOG.warning("checkpoint_beyond_end", segment=name, position=position, end=end)

    def _lose(self, name: str, start: int, end: int | None, lost: str) -> None:
        """Report data of a segment that are gone. Raises DataLossError if that is to be an error."""
        if self.fail_on_data_loss:
            raise DataLossError(f"{name}: {lost}")
        if name not in self._reported:
            self._reported.add(name)
            _LOG.warning("unread_data_truncated", segment=name, start=start, end=end)

    async def _bounded(self, begins: Positions, lengths: Positions, bounds: ReadLimits) -> Positions:
        most = bounds.max_bytes if bounds.max_bytes is not None else bounds.max_events
        if most is None:
            return lengths
        places = [(stream, each) for stream, cut in begins.items() for each in cut]
        unread = [lengths[stream][each] - begins[stream][each] for stream, each in places]
        parts = share(unread, most)
        ends: Positions = {stream: {} for stream in begins}
        for (stream, each), size, part in zip(places, unread, parts, strict=True):
            begin, end = begins[stream][each], lengths[stream][each]
            if size > 0 and (bounds.max_bytes is None or part < size):
                end = await self._boundary(stream, each, begin, end, part, by_bytes=bounds.max_bytes is not None)
            ends[stream][each] = end
        return ends

    async def _boundary(
        self, stream: StreamName, identifier: int, begin: int, end: int, most: int, *, by_bytes: bool
    ) -> int:
        """Return where the last event ends that a bounded batch reads of a segment: at least one event.

        Where events end can only be found by reading.
        """
        offset, read_bytes, events = begin, 0, 0
        async with contextlib.aclosing(self._events(stream, identifier, begin, end)) as found:
            async for first, following in found:
                read_bytes += following - first
                over = read_bytes > most if by_bytes else events >= most
                if over and events:
                    return offset
                offset, events = following, events + 1
                if over:
                    return offset
        return max(offset, end)

    async def _events(
        self, stream: StreamName, identifier: int, begin: int, end: int
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Yield where each event begins and ends. Raises DataLossError: events were truncated before they were read."""
        offset = begin
        while offset < end:
            try:
                async with SegmentReader(self.context, stream.segment(identifier), offset, end) as reader:
                    while found := await reader.read():
                        for event in found:
                            first, offset = offset, offset + EVENT_HEADER_BYTES + len(event)
                            yield first, offset
                return
            except SegmentTruncatedError as error:
                is_gone = isinstance(error, SegmentGoneError)
                self._lose_unread(stream, identifier, offset, None if is_gone else error.start_offset)
                offset = error.start_offset

    async def group(self, name: str, streams: tuple[StreamName, ...]) -> ReaderGroup:
        """Return the group that publishes the position.

        Raises:
            NoSuchReaderGroupError. BadRequestError: it does not read the streams, or publishes positions by itself.
        """
        scope, _, group = name.partition("/")
        config = await self.context.controller.reader_group_config(scope, group)
        missing = [str(stream) for stream in streams if str(stream) not in config.starting]
        if missing:
            raise BadRequestError(f"reader group {name} does not read {missing[0]}")
        if config.retention != StreamDataRetention.MANUAL:
            raise BadRequestError(
                f"reader group {name} must publish positions of a program: create it with StreamDataRetention.MANUAL"
            )
        return await ReaderGroupManager(self.context, scope).open(group)
