"""Compute how many bytes a stream received and how many were truncated (docs/design.md#controller, ADR 0014).

Both count from the beginning of the stream, so their difference is its size. Every scale persists the sizes of the
segments that it sealed and their sum (`SealedRecord`), so deleted segments are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import NoSuchSegmentError
from tailrace.common.stream_cut import without_future
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.metadata.epochs import epoch_span, wholly_before
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import ScaleIntent
from tailrace.controller.workflows.context import segment_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tailrace.controller.metadata.ports import SegmentInfo
    from tailrace.controller.metadata.records import SealedRecord, StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.workflows.segments import SegmentOperations


class StreamSizes(NamedTuple):
    """Bytes before the head of a stream, and before its tail."""

    head_bytes: int
    tail_bytes: int


class Measured(NamedTuple):
    """Sizes of a stream, its head as a cut, and the bytes of its segments whose size is not recorded yet."""

    sizes: StreamSizes
    head: dict[int, int]
    lengths: dict[int, int]


class SizeReader:
    """Compute sizes from records, and from segment info for growing segments and streams never truncated."""

    def __init__(self, store: StreamStore, segments: SegmentOperations) -> None:
        self._store = store
        self._segments = segments

    async def sizes(self, key: StreamKey, root: StreamRecord) -> StreamSizes:
        """Return the sizes as of this call. Raises UnavailableError when a segment cannot be reached."""
        return (await self.measured(key, root)).sizes

    async def measured(self, key: StreamKey, root: StreamRecord) -> Measured:
        """Return the sizes as of this call with what they are made of; raises as `sizes`."""
        growing = await self._without_recorded_size(key, root)
        first = [] if root.truncation is not None else await self._first(key, root)
        infos = await self._infos(key, {*growing, *first})
        tail = root.sealed_bytes + sum(infos[identifier].length for identifier in growing if identifier in infos)
        if root.truncation is None:  # byte streams truncate their segment without the controller
            cut = {identifier: infos[identifier].start_offset if identifier in infos else 0 for identifier in first}
            head = sum(cut.values())
        else:
            cut = without_future(root.truncation)
            head = await self.before(key, root, root.truncation)
        lengths = {identifier: infos[identifier].length for identifier in growing if identifier in infos}
        return Measured(StreamSizes(min(head, tail), tail), cut, lengths)

    async def _without_recorded_size(self, key: StreamKey, root: StreamRecord) -> list[int]:
        """Return segments that ``sealed_bytes`` does not count: active ones, and those that a workflow is sealing."""
        if root.state in (StreamState.SEALED, StreamState.DELETING):
            return []
        active = [segment.identifier for segment in (await self._store.active_epoch(key, root)).segments]
        intent = root.intent
        if isinstance(intent, ScaleIntent) and intent.old_epoch != root.active_epoch:
            return [*active, *intent.sealed]
        rolling = root.rolling
        if rolling is not None and rolling.new_epoch == root.active_epoch:
            return [*active, *await self._store.segments(key, root, (rolling.old_epoch, rolling.merged_epoch))]
        return active

    async def _first(self, key: StreamKey, root: StreamRecord) -> list[int]:
        return [segment.identifier for segment in (await self._store.epoch(key, root, 0)).segments]

    async def _infos(self, key: StreamKey, identifiers: Iterable[int]) -> dict[int, SegmentInfo]:
        """Return segment infos, without segments that were deleted since the root was read."""

        async def one(identifier: int) -> tuple[int, SegmentInfo] | None:
            try:
                return identifier, await self._segments.port.segment_info(segment_name(key, identifier))
            except NoSuchSegmentError:
                return None

        return dict(found for found in await gather_bounded(sorted(identifiers), one) if found is not None)

    async def before(self, key: StreamKey, root: StreamRecord, cut: Mapping[int, int]) -> int:
        """Return the bytes before a cut, which must be a position in the stream."""
        first_epoch, last_epoch = epoch_span(cut)
        segments = await self._store.segments(key, root, range(first_epoch, last_epoch + 1))
        gone = {segment.identifier for segment in wholly_before(cut, segments)}
        total = sum(without_future(cut).values())
        async for part in self._store.sealed_parts(key, root, first_epoch, last_epoch):
            total += sealed_bytes(part, first_epoch, gone)
        return total


def sealed_bytes(sealed: Iterable[SealedRecord], first_epoch: int, gone: Collection[int]) -> int:
    """Return the bytes that these records count before a cut.

    `first_epoch` is the first epoch that the cut spans; `gone` has all segments of the spanned epochs that lie wholly
    before the cut. All segments sealed before the first of these epochs lie before it.
    """
    return sum(
        record.total_bytes
        if record.epoch == first_epoch
        else sum(size for identifier, size in record.sizes.items() if identifier in gone)
        for record in sealed
    )
