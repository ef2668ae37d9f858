"""Extended attributes of one segment that its attribute index does not hold yet (docs/design.md#attributes). Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedList

from tailrace.segmentstore.metadata.untiered_room import ATTRIBUTE_BYTES, UntieredRoom

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class DirtyBatch(NamedTuple):
    """Attributes to flush, each with the operation that updated it last.

    ``flushed_through``: once the index holds the batch, it holds every update up to that operation.
    """

    items: list[tuple[bytes, int]]
    flushed_through: int


_NO_KEYS: list[bytes] = []  # of every segment that waits for none; never changed


class DirtyAttributes:
    """Maps attributes to the operation that updated them last; ordered by update, and by id on request."""

    __slots__ = (
        "_counted",
        "_new",
        "_ordered",
        "_position",
        "_room",
        "_round_left",
        "_round_through",
        "_sequences",
    )

    def __init__(self, room: UntieredRoom | None = None) -> None:
        self._room = room or UntieredRoom()
        self._counted = True
        self._sequences: dict[bytes, int] = {}
        self._ordered: SortedList[bytes] | None = None  # made when the order is needed: most segments have few
        self._new = _NO_KEYS  # sorted in one batch when the order is needed
        self._position = b""  # the last flush of neighbours ended here
        self._round_through = 0  # the newest update when the present round began
        self._round_left = 0  # flushes that this round may still take in byte order

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sequences

    def keys(self) -> list[bytes]:
        """Return the attributes, least recently updated first."""
        return list(self._sequences)

    def put(self, key: bytes, sequence: int) -> None:
        """Record an update; sequence numbers never decrease."""
        sequences = self._sequences
        if key in sequences:
            del sequences[key]  # insert it at the end: the order is that of the updates
        else:
            if self._new:
                self._new.append(key)
            else:
                self._new = [key]
            if self._counted:
                self._room.attribute_bytes += ATTRIBUTE_BYTES
        sequences[key] = sequence

    def put_all(self, updates: dict[bytes, int]) -> None:
        """Record updates in the order of their sequence numbers. See `put`."""
        sequences = self._sequences
        new = [key for key in updates if key not in sequences]
        if len(new) < len(updates):
            for key in updates:
                sequences.pop(key, None)  # insert it at the end
        sequences.update(updates)
        if self._new:
            self._new += new
        else:
            self._new = new
        if self._counted:
            self._room.attribute_bytes += len(new) * ATTRIBUTE_BYTES

    def oldest(self, count: int) -> DirtyBatch:
        """Return at most `count` attributes, least recently updated first."""
        found = list(islice(self._sequences.items(), count + 1))
        if len(found) <= count:
            return DirtyBatch(found, found[-1][1] if found else 0)
        return DirtyBatch(found[:count], found[count][1] - 1)

    def neighbours(self, count: int, flushes_max: int) -> tuple[list[bytes], list[bytes]]:
        """Return at most `count` attributes, neighbours in byte order, so that they share pages of the index.

        They follow those of the last flush (`flushed_to`); the second list has the first ones of all, which come after
        the last. A round is over when every update that waited at its start has been flushed. One that takes more than
        `flushes_max` flushes, because ever more attributes appear ahead, continues at those that have waited longest.
        """
        sequences = self._sequences
        if not sequences:
            return [], []
        ordered = self._in_order()
        oldest, sequence = next(iter(sequences.items()))
        if sequence > self._round_through:
            self._round_through = next(reversed(sequences.values()))
            self._round_left = flushes_max
        if self._round_left:
            start = ordered.bisect_right(self._position)
        else:
            start = ordered.bisect_left(oldest)
        ahead = list(ordered.islice(start, min(start + count, len(ordered))))
        return ahead, list(ordered.islice(0, min(start, count - len(ahead))))

    def flushed_to(self, key: bytes) -> None:
        """Continue behind that attribute: those up to it that `neighbours` returned are being flushed."""
        self._position = key
        self._round_left = max(self._round_left - 1, 0)

    def batch(self, keys: Sequence[bytes]) -> DirtyBatch:
        """Return those of the attributes, as they are now."""
        sequences = self._sequences
        items = [(key, sequences[key]) for key in keys if key in sequences]
        chosen = {key for key, _ in items}
        waiting = next((sequence for key, sequence in sequences.items() if key not in chosen), None)
        if waiting is not None:
            return DirtyBatch(items, waiting - 1)
        return DirtyBatch(items, max((sequence for _, sequence in items), default=0))

    def settle(self, flushed_through: int) -> None:
        """Remove the updates up to that operation: the index holds them."""
        done: list[bytes] = []
        for key, sequence in self._sequences.items():
            if sequence > flushed_through:
                break
            done.append(key)
        self._remove(done)

    def settle_items(self, items: Iterable[tuple[bytes, int]]) -> None:
        """Remove these updates, which the index holds; keep attributes that were updated again."""
        sequences = self._sequences
        self._remove([key for key, sequence in items if sequences.get(key) == sequence])

    def _in_order(self) -> SortedList[bytes]:
        if self._ordered is None:
            self._ordered = SortedList()
        if self._new:
            self._ordered.update(self._new)
            self._new = _NO_KEYS
        return self._ordered

    def _remove(self, keys: list[bytes]) -> None:
        if not keys:
            return
        if len(keys) == len(self._sequences):
            self._sequences.clear()
            self._new = _NO_KEYS
            self._ordered = None
        else:
            ordered = self._in_order()
            for key in keys:
                del self._sequences[key]
                ordered.remove(key)
        if self._counted:
            self._room.remove_attributes(len(keys))

    def leave_room(self) -> None:
        """Count in the room no more: no flush of this segment will make any."""
        if self._counted:
            self._counted = False
            self._room.remove_attributes(len(self._sequences))

    def enter_room(self) -> None:
        """Count in the room again."""
        if not self._counted:
            self._counted = True
            self._room.attribute_bytes += len(self._sequences) * ATTRIBUTE_BYTES

    def between(self, from_key: bytes, to_key: bytes, limit: int) -> list[bytes]:
        """Return the first `limit` attributes in [from_key, to_key], in byte order."""
        return list(islice(self._in_order().irange(from_key, to_key), limit))
