"""Find the places of cuts in a stream, for decisions of its retention and for what is said of it.

See docs/controller.md#retention. A cut is compared where it lies in the data: a position behind the end of its segment
counts as that end, and the ends of sealed segments as the beginning of their successors.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, TypeVar

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.controller.metadata.epochs import epoch_span
from tailrace.controller.retention.decision import Place
from tailrace.controller.retention.forward import forward
from tailrace.controller.retention.lower_bound import latest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from tailrace.common.ranges import KeyRange
    from tailrace.controller.managers.sizes import SizeReader
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.metadata.model import Epoch, RecordedCut
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.retention.decision import Cut, Reading

T = TypeVar("T")


class CutMissingError(Exception):
    """A cut that the retention set lists is not there: another controller is removing it."""

    def __init__(self, recorded: RecordedCut) -> None:
        super().__init__(recorded.number)
        self.recorded = recorded


class Places:
    """Where cuts of one stream lie, as its root record says."""

    def __init__(self, store: StreamStore, cuts: CutReader, sizes: SizeReader, key: StreamKey, root: StreamRecord):
        self._store = store
        self._cuts = cuts
        self._sizes = sizes
        self._key = key
        self._root = root
        self.ranges: dict[int, KeyRange] = {}
        """The key range of every segment in the cuts that were looked at."""
        self.lengths: Mapping[int, int] = {}
        """Bytes in segments that are not sealed, where they are known."""

    async def note_ranges(self, cut: Cut) -> None:
        """Note the key ranges of a cut's segments.

        Raises:
            BadRequestError: the stream does not have such a segment.
        """
        known = await self._cuts.segments(self._key, self._root, cut)
        for identifier in cut:
            if identifier not in known:
                raise BadRequestError(f"cut names segment {identifier}, which the stream does not have")
        self.ranges.update((identifier, known[identifier].key_range) for identifier in cut)

    async def positions(self, cut: Cut) -> dict[int, int]:
        """Return the last cut with the same data before it, and note the key ranges of its segments.

        Raises:
            BadRequestError: the stream does not have such a position.
        """
        key, root = self._key, self._root
        await self.note_ranges(cut)
        first = epoch_span(cut)[0]
        moved, whole = dict(cut), set[int]()
        last: list[Epoch] = []
        async for part in self._store.epoch_parts(key, root, range(first, root.active_epoch + 1)):
            for some in _parts(itertools.chain(last, part)):
                if last:
                    await asyncio.sleep(0)
                sizes = await self._sealed_within(some)
                moved = forward(
                    {each: min(offset, sizes.get(each, offset)) for each, offset in moved.items()}, some, sizes
                )
                whole.update(each for each in moved if each in sizes)
                last = some[-1:]
        for each, offset in moved.items():
            if each not in whole:
                moved[each] = min(offset, self.lengths.get(each, offset))
        await self.note_ranges(moved)
        return moved

    async def _sealed_within(self, epochs: Sequence[Epoch]) -> dict[int, int]:
        """Return the final sizes of the segments that each of the epochs but the first replaced."""
        sealed = await self._store.sealed(self._key, self._root, epochs[0].epoch + 1, epochs[-1].epoch)
        return {each: size for record in sealed for each, size in record.sizes.items()}

    async def place(self, cut: Cut) -> Place:
        """Return where a cut lies. Raises BadRequestError as `positions`."""
        moved = await self.positions(cut)
        return Place(await self._sizes.before(self._key, self._root, moved), moved)

    async def place_of_head(self, cut: Cut, head: Cut) -> Place:
        """Return where a truncation at the cut leaves the head; the cut may lie behind it in some segments.

        A subscriber that lags behind the head in some segments holds nothing back there.
        """
        moved = await self.positions(cut)
        return await self.place(latest([moved, head], self.ranges))

    async def answer(
        self,
        reading: Reading[T],
        place: Callable[[Cut], Awaitable[Place]],
        known: dict[int, Place] | None = None,
    ) -> T:
        """Give a decision the recorded cuts that it asks for; return its result.

        `known` has places of earlier decisions by number, and gets those of this one.

        Raises:
            CutMissingError.
        """
        places: dict[int, Place] = {} if known is None else known
        try:
            wanted = next(reading)
            while True:
                if wanted.number not in places:
                    found = await self._store.retention_cut(self._key, self._root.incarnation, wanted.number)
                    if found is None:
                        raise CutMissingError(wanted)
                    if len(places) >= limits.RETENTION_PLACES_KNOWN_MAX:
                        places.clear()
                    places[wanted.number] = await place(found.cut)
                wanted = reading.send(places[wanted.number])
                await asyncio.sleep(0)
        except StopIteration as end:
            result: T = end.value
            return result


def _parts(epochs: Iterable[Epoch]) -> Iterator[list[Epoch]]:
    """Yield epochs in parts of some segments, each beginning with the last epoch of the one before."""
    some: list[Epoch] = []
    segments, is_first = 0, True
    for epoch in epochs:
        some.append(epoch)
        segments += len(epoch.segments)
        if segments >= limits.EPOCH_SEGMENTS_AT_ONCE and len(some) > 1:
            yield some
            some, segments, is_first = [epoch], 0, False
    if len(some) > 1 or is_first:
        yield some
