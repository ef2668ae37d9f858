"""Extended attributes of one segment that its attribute index does not hold yet (design §6). Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Iterable


class DirtyBatch(NamedTuple):
    """Attributes to flush, each with the operation that updated it last.

    ``flushed_through``: once the batch is in the index, so is every update up to that operation.
    """

    items: list[tuple[bytes, int]]
    flushed_through: int


class DirtyAttributes:
    """Attribute → number of the operation that updated it last, oldest update first, and the same in byte order."""

    __slots__ = ("_new", "_ordered", "_sequences")

    def __init__(self) -> None:
        self._sequences: dict[bytes, int] = {}
        self._ordered: SortedList[bytes] = SortedList()
        self._new: list[bytes] = []  # to be put in order all at once, when somebody asks for the order

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sequences

    def put(self, key: bytes, sequence: int) -> None:
        """The attribute was updated; numbers never go back."""
        sequences = self._sequences
        if key in sequences:
            del sequences[key]  # and to the end, so that the order is that of the updates
        else:
            self._new.append(key)
        sequences[key] = sequence

    def oldest(self, count: int) -> DirtyBatch:
        """At most `count` attributes, those first whose last update is the oldest."""
        found = list(islice(self._sequences.items(), count + 1))
        if len(found) <= count:
            return DirtyBatch(found, found[-1][1] if found else 0)
        return DirtyBatch(found[:count], found[count][1] - 1)

    def settle(self, flushed_through: int) -> None:
        """The index holds every update up to that operation."""
        done: list[bytes] = []
        for key, sequence in self._sequences.items():
            if sequence > flushed_through:
                break
            done.append(key)
        self._remove(done)

    def settle_items(self, items: Iterable[tuple[bytes, int]]) -> None:
        """The index holds these updates, and later ones of the same attributes not."""
        sequences = self._sequences
        self._remove([key for key, sequence in items if sequences.get(key) == sequence])

    def _in_order(self) -> SortedList[bytes]:
        if self._new:
            self._ordered.update(self._new)
            self._new.clear()
        return self._ordered

    def _remove(self, keys: list[bytes]) -> None:
        if not keys:
            return
        ordered = self._in_order()
        for key in keys:
            del self._sequences[key]
            ordered.remove(key)

    def between(self, from_key: bytes, to_key: bytes, limit: int) -> list[bytes]:
        """The first `limit` attributes in [from_key, to_key], in byte order."""
        return list(islice(self._in_order().irange(from_key, to_key), limit))
