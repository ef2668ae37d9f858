"""Read many records in parts, each of which has room in a reply and in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tailrace.common import limits
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class Sized(Protocol):
    """What was read of some records."""

    @property
    def size_bytes(self) -> int:
        """Length of the values that were read."""
        ...


T = TypeVar("T")
P = TypeVar("P", bound=Sized)


class Parts(Generic[T, P]):
    """What `read` returns for some items, part by part: an asynchronous iterator.

    A part has ``limits.RECORDS_PER_READ_MAX`` items at most. Once their length is known, it has about
    ``limits.READ_PART_BYTES``; one that a reply has no room for is read again, in smaller parts.

    It raises BadRequestError of `read` for a single item, and its other errors. It is no generator: one that is left
    early would be closed by a task of its own.
    """

    def __init__(self, items: Sequence[T], read: Callable[[Sequence[T]], Awaitable[P]]) -> None:
        self._items = items
        self._read = read
        self._most = limits.RECORDS_PER_READ_MAX
        self.done = 0
        """How many items the parts are for that were returned."""

    def __aiter__(self) -> Parts[T, P]:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> P:
        """Return the next part."""
        while self.done < len(self._items):
            part = self._items[self.done : self.done + self._most]
            try:
                found = await self._read(part)
            except BadRequestError:
                if len(part) == 1:
                    raise
                self._most = min(len(part) - 1, _fitting(len(part), limits.FRAME_MAX_BYTES))
                continue
            self.done += len(part)
            self._most = _fitting(len(part), found.size_bytes)
            return found
        raise StopAsyncIteration


def _fitting(count: int, size_bytes: int) -> int:
    """Return how many records the next part has, when `count` of them had so many bytes."""
    if not size_bytes:
        return limits.RECORDS_PER_READ_MAX
    return max(1, min(limits.RECORDS_PER_READ_MAX, count * limits.READ_PART_BYTES // size_bytes))
