"""Write the watermarks of streams to their mark streams (docs/controller.md#watermarks).

The decision is in `tailrace.controller.watermarks`; here are its records. The mark stream itself says which watermark
is the newest: each one is appended conditionally after the one that the decision knew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from tailrace.common import limits
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.watermarks.decision import decide, has_advanced, next_watermark, position_epoch
from tailrace.controller.workflows.context import segment_name
from tailrace.controller.workflows.create import mark_of
from tailrace.controller.workflows.writer_marks import forget, read_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.common.watermarks import Watermark
    from tailrace.controller.metadata.records import StreamRecord, WriterMark
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)
_WITHOUT_SEGMENTS = frozenset({StreamState.CREATING, StreamState.DELETING, StreamState.DELETED})


class MarkSegmentPort(Protocol):
    """The segment of a mark stream; ``tailrace.client.group.watermarks.MarkSegment`` satisfies it."""

    async def newest(self) -> Watermark | None:
        """Return the newest watermark; None for none. `append` adds after it. Raises NoSuchSegmentError."""
        ...

    async def append(self, watermark: Watermark) -> bool:
        """Append after the newest one that this object knows; return whether that was the newest still."""
        ...


@dataclass(slots=True)
class _Marked:
    """A stream's mark segment, and its newest watermark."""

    incarnation: int
    segment: MarkSegmentPort
    newest: Watermark | None

    @property
    def positions(self) -> int:
        """Return how much it takes of what an instance may remember."""
        return 1 if self.newest is None else 1 + len(self.newest.positions)


class _Remembered:
    """The streams that were looked at last, as many as their watermarks have room."""

    def __init__(self) -> None:
        self._streams: OrderedDict[StreamKey, _Marked] = OrderedDict()
        self._positions = 0

    def get(self, key: StreamKey) -> _Marked | None:
        """Return a stream and remember it longer."""
        found = self._streams.get(key)
        if found is not None:
            self._streams.move_to_end(key)
        return found

    def put(self, key: StreamKey, marked: _Marked) -> None:
        """Remember a stream, and forget those that were looked at least recently if there are too many."""
        self.drop(key)
        self._streams[key] = marked
        self._positions += marked.positions
        while self._positions > limits.WATERMARK_POSITIONS_KEPT_MAX and len(self._streams) > 1:
            self.drop(next(iter(self._streams)))

    def drop(self, key: StreamKey) -> None:
        """Forget a stream."""
        found = self._streams.pop(key, None)
        if found is not None:
            self._positions -= found.positions


class WatermarkManager:
    """Write watermarks. ``open_segment`` opens the segment of a mark stream by its full name."""

    def __init__(self, context: WorkflowContext, open_segment: Callable[[str], MarkSegmentPort]) -> None:
        self._context = context
        self._store = context.store
        self._open_segment = open_segment
        self._remembered = _Remembered()

    async def apply(self, key: StreamKey) -> Watermark | None:
        """Forget writers that no longer count, and write the next watermark if there is one; return it.

        Raises:
            UnavailableError, CorruptionError.
        """
        root = await self._store.load(key)
        if root is None or root.state in _WITHOUT_SEGMENTS or not root.writers:
            self._remembered.drop(key)
            return None
        marked = await self._open(key, root)
        if marked is None:
            return None
        found = await read_marks(self._context, key, root, lambda mark: has_advanced(mark, marked.newest))
        timeout_ms = root.config.timestamp_aggregation_timeout_ms
        decision = decide(found.marks, marked.newest, timeout_ms, self._context.clock.now_ms())
        unmarked = (writer for writer in root.writers if writer not in found.marks)  # a removal ended in between
        await forget(self._context, key, root, found, decision.gone.union(unmarked))
        if not decision.counted:
            return None
        first, *others = decision.counted  # one of them stands for the positions of all
        counted = (msgspec.structs.replace(first, position=found.reached), *others)
        return await self._write(key, root, marked, counted)

    async def _open(self, key: StreamKey, root: StreamRecord) -> _Marked | None:
        """Return the stream's mark segment; None when it has none."""
        known = self._remembered.get(key)
        if known is not None and known.incarnation == root.incarnation:
            return known
        mark_key = mark_of(key)
        mark_root = None if mark_key is None else await self._store.load(mark_key)
        if mark_key is None or mark_root is None or mark_root.state in _WITHOUT_SEGMENTS:
            return None
        (segment,) = (await self._store.active_epoch(mark_key, mark_root)).segments
        opened = self._open_segment(segment_name(mark_key, segment.identifier))
        found = _Marked(root.incarnation, opened, await opened.newest())
        self._remembered.put(key, found)
        return found

    async def _write(
        self, key: StreamKey, root: StreamRecord, marked: _Marked, counted: Sequence[WriterMark]
    ) -> Watermark | None:
        number = position_epoch(counted, marked.newest)
        epoch = await self._store.epoch(key, root, max(number, 0))
        watermark = next_watermark(counted, marked.newest, epoch.segments)
        # Whatever interrupts this, the mark stream is read again before the next watermark.
        self._remembered.drop(key)
        if not await marked.segment.append(watermark):
            _LOG.info("watermark_of_another_controller", stream=str(key))
            return None
        marked.newest = watermark
        self._remembered.put(key, marked)
        return watermark
