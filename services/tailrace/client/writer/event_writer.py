"""Write events to a stream: route them by key and follow scaling.

See docs/protocol/naming.md#routing, docs/protocol/wire.md#appends.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from tailrace.client.retry import Backoff
from tailrace.client.writer.routed_writer import RoutedWriter
from tailrace.client.writer.segment_writer import SegmentWriter
from tailrace.common import limits
from tailrace.common.errors import (
    ClientClosedError,
    IllegalStateError,
    NoSuchSegmentError,
    NotFoundError,
    SegmentSealedError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.ports import new_uuid
from tailrace.common.ranges import KeyRange

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import SegmentRange, StreamName, Successor


class EventWriter(RoutedWriter):
    """Write events to a stream, each exactly once and in order per routing key.

    Start with `await writer.start()` or ``async with``. `RoutedWriter` describes buffering and its bound.
    """

    def __init__(self, context: ClientContext, stream: StreamName, *, writer_id: str | None = None) -> None:
        super().__init__(context, str(stream))
        self.stream = stream
        self.writer_id = writer_id or str(new_uuid(context.entropy))
        self._noted_time = False

    async def start(self) -> Self:
        """Load the stream's segments. Raises NotFoundError; SegmentSealedError when the stream is sealed."""
        segments = await self._context.controller.current_segments(self.stream)
        if not segments:
            raise SegmentSealedError(str(self.stream))
        self._set_routes([(segment.key_range, self._writer_of(segment.identifier)) for segment in segments])
        return self

    async def note_time(self, timestamp_ms: int) -> None:
        """Report to the controller that all events up to this time are written. Raises BadRequestError.

        See docs/protocol/naming.md#watermarks.
        """
        position = {
            writer.identifier: writer.acknowledged_length
            for writer in self._writers.values()
            if writer.acknowledged_length >= 0
        }
        self._noted_time = True
        await self._context.controller.note_timestamp(self.stream, self.writer_id, timestamp_ms, position)

    async def close(self) -> None:
        """Flush and stop. If the writer noted a time, report to the controller that it notes no more.

        Raises the errors of `flush`; the writer stops in any case.
        """
        await super().close()
        if self._noted_time:
            self._noted_time = False
            await say_farewell(self._context, self.stream, self.writer_id)

    # -- routing ------------------------------------------------------------------------------------------------

    def _writer_of(self, identifier: int) -> SegmentWriter:
        writer = self._writers.get(identifier)
        if writer is None:
            writer = self._writers[identifier] = SegmentWriter(
                self._context,
                self.stream.segment(identifier),
                identifier,
                gone=self._replace,
                progress=self._progressed,
            )
        return writer

    async def _replace(self, old: SegmentWriter, reason: TailraceError) -> None:
        """Send the events of a sealed or missing segment to its successors, before any later events.

        New events queue behind the old ones until the successors are known.
        """
        if not isinstance(reason, SegmentSealedError | NoSuchSegmentError):
            self._fail(reason)
            return
        try:
            followers = await self._followers(old, reason)
        except TailraceError as error:
            self._fail(error)
            return
        routes = []
        for key_range, writer in zip(self._ranges, self._owners, strict=True):
            routes += _rerouted(key_range, followers, self._writer_of) if writer is old else [(key_range, writer)]
        self._writers.pop(old.identifier, None)
        self._set_routes(routes)
        for run, events in old.take_back():
            self._owners[bisect_right(self._highs, run.key)].add(run, events)

    async def _followers(self, old: SegmentWriter, reason: TailraceError) -> list[SegmentRange]:
        """Return the segments that own the old segment's keys now.

        A controller that still lists the old segment is scaling or sealing the stream: ask again. A controller that
        does not answer, or only with errors of its own, is asked again while events may wait.
        """
        loop = asyncio.get_running_loop()
        gives_up_at_s = loop.time() + limits.WRITER_GIVE_UP_S
        ends_at_s = loop.time() + limits.SUCCESSORS_DEADLINE_S
        backoff = Backoff(self._context.entropy)
        while True:
            try:
                segments = await self._segments_after(old, reason)
            except ClientClosedError:
                raise
            except (UnavailableError, IllegalStateError) as error:
                if self._error is not None or loop.time() >= gives_up_at_s:
                    raise
                old.notice(error)
                await asyncio.sleep(backoff.next_delay_s())
                ends_at_s = loop.time() + limits.SUCCESSORS_DEADLINE_S
                continue
            if not segments:
                raise SegmentSealedError(str(self.stream))
            if all(segment.identifier != old.identifier for segment in segments):
                return segments
            if loop.time() >= ends_at_s:
                raise reason
            await asyncio.sleep(backoff.next_delay_s())

    async def _segments_after(self, old: SegmentWriter, reason: TailraceError) -> list[SegmentRange]:
        controller = self._context.controller
        found: list[Successor] = []
        if isinstance(reason, SegmentSealedError):
            found = await controller.successors(self.stream, old.identifier)
        return [successor.segment for successor in found] or await controller.current_segments(self.stream)


async def say_farewell(context: ClientContext, stream: StreamName, writer_id: str) -> None:
    """Report to the controller that a writer notes no more times (docs/protocol/naming.md#watermarks).

    The report is optional: all events are durable, and without it the writer's time expires after the stream's
    aggregation timeout. So an unreachable controller or a deleted stream is not an error of the writer.
    """
    with contextlib.suppress(TimeoutError, UnavailableError, IllegalStateError, NotFoundError):
        async with asyncio.timeout(limits.CLIENT_REMOVE_WRITER_DEADLINE_S):
            await context.controller.remove_writer(stream, writer_id)


def _rerouted(
    key_range: KeyRange, followers: Sequence[SegmentRange], writer_of: Callable[[int], SegmentWriter]
) -> list[tuple[KeyRange, SegmentWriter]]:
    """Return the parts of a range that each successor owns."""
    return [
        (KeyRange(max(key_range.low, low), min(key_range.high, high)), writer_of(identifier))
        for identifier, (low, high) in followers
        if low < key_range.high and key_range.low < high
    ]
