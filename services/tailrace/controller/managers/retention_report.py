"""Say how old a stream's data are, and what its subscribers have not read (docs/controller.md#retention)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from tailrace.common.errors import BadRequestError, UnavailableError
from tailrace.common.stream_cut import without_future
from tailrace.controller.managers.retention_places import CutMissingError, Places
from tailrace.controller.retention.decision import Place, count_until
from tailrace.controller.retention.retention_set import oldest_ms, written_before_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.controller.managers.sizes import Measured, SizeReader
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.metadata.model import RecordedCut
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.retention.decision import Cut


class Unread(NamedTuple):
    """What a subscriber has not read: bytes that are kept, and bytes that were deleted before it read them.

    Some of the bytes that are kept were written before `before_ms`, ms since 1970; 0: that is not known, or none are.
    """

    unread_bytes: int
    lost_bytes: int
    before_ms: int


class RetentionReport:
    """Ages and unread bytes of one stream, by its recorded cuts (oldest first), as of one measurement of its sizes."""

    def __init__(
        self,
        store: StreamStore,
        cuts: CutReader,
        sizes: SizeReader,
        key: StreamKey,
        root: StreamRecord,
        recorded: Sequence[RecordedCut],
        measured: Measured,
    ) -> None:
        self._places = Places(store, cuts, sizes, key, root)
        self._places.lengths = measured.lengths
        self._key = key
        self._recorded = recorded
        self._measured = measured
        self._known: dict[int, Place] = {}
        self._head: Cut | None = None

    async def oldest_ms(self, created_ms: int) -> int | None:
        """Return when the oldest byte was written, at the earliest; None: there is none, or it is not known.

        `created_ms` is when the stream was created. Times are ms since 1970.

        Raises:
            UnavailableError: the stream changed meanwhile.
        """
        try:
            count = await self._count_until(Place(self._measured.sizes.head_bytes, await self._positions_of_head()))
        except BadRequestError as error:
            raise self._changed() from error
        return oldest_ms(self._recorded, count, *self._measured.sizes, created_ms)

    async def unread(self, cut: Mapping[int, int]) -> Unread:
        """Return what a subscriber has not read that published a cut. Raises UnavailableError as `oldest_ms`."""
        try:
            head = await self._positions_of_head()
            position = await self._places.place(without_future(cut))
            begin = await self._places.place_of_head(position.cut, head)
            unread_bytes = max(0, self._measured.sizes.tail_bytes - begin.size_bytes)
            count = await self._count_until(begin) if unread_bytes else len(self._recorded)
            before_ms = written_before_ms(self._recorded, count)
        except BadRequestError as error:  # it names a segment that was created after the root was read
            raise self._changed() from error
        return Unread(unread_bytes, begin.size_bytes - position.size_bytes, before_ms or 0)

    async def _positions_of_head(self) -> Cut:
        if self._head is None:
            self._head = await self._places.positions(self._measured.head)
        return self._head

    async def _count_until(self, until: Place) -> int:
        """Return how many recorded cuts lie before a place or at it; leave those out that were removed meanwhile."""
        while True:
            counting = count_until(self._recorded, until, self._places.ranges)
            try:
                return await self._places.answer(counting, self._places.place, self._known)
            except CutMissingError as missing:
                self._recorded = [each for each in self._recorded if each != missing.recorded]
                await asyncio.sleep(0)

    def _changed(self) -> UnavailableError:
        return UnavailableError(f"stream {self._key} changed while it was described")
