"""Events on their way to a segment: runs of one routing key, gathered into append blocks.

A block is the unit of the protocol: one append, one event number, one acknowledgement (performance §3). Runs keep what
is needed to route the events again when the segment was replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from tailrace.common.errors import TailraceError

EVENT_HEADER_BYTES: Final = 8


class Run:
    """Events of one call, all of one routing key. ``future`` is done when they are durable."""

    __slots__ = ("count", "future", "key", "size")

    def __init__(self, key: float, count: int, size: int, future: asyncio.Future[None]) -> None:
        self.key = key
        self.count = count
        self.size = size
        self.future = future

    def settled(self) -> asyncio.Future[None]:
        """Done when the events are durable or failed, even if whoever wrote them cancelled the wait for it."""
        if self.future.cancelled():
            self.future = self.future.get_loop().create_future()
        return self.future

    def succeed(self) -> None:
        """The events are durable."""
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: TailraceError) -> None:
        """The events were not written, or it is not known whether they were."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # who does not look at it learns of the error from flush()


class Block:
    """An append block. ``last_number`` is 0 until it was sent for the first time."""

    __slots__ = ("events", "last_number", "runs", "size")

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.runs: list[Run] = []
        self.size = 0
        self.last_number = 0

    def has_room_for(self, count: int, size: int) -> bool:
        """Whether so many events of so many bytes in all still belong into this block."""
        return (
            self.size + size <= limits.WRITER_BLOCK_MAX_BYTES
            and len(self.events) + count <= limits.WRITER_BLOCK_MAX_EVENTS
            and not self.is_large
        )

    @property
    def is_full(self) -> bool:
        """Whether waiting for more events would be of little use."""
        return (
            self.size >= limits.WRITER_BLOCK_MAX_BYTES * 3 // 4
            or len(self.events) >= limits.WRITER_BLOCK_MAX_EVENTS * 3 // 4
        )

    @property
    def is_large(self) -> bool:
        """Whether this is one event that does not fit into an append (wire §5, "large events")."""
        return self.size > limits.EVENT_MAX_BYTES + EVENT_HEADER_BYTES and len(self.events) == 1

    def add(self, run: Run, events: Sequence[bytes]) -> None:
        """Take the events of a run."""
        self.events.extend(events)
        self.runs.append(run)
        self.size += run.size

    def split(self) -> list[tuple[Run, list[bytes]]]:
        """The runs with their events, to be routed again."""
        result = []
        start = 0
        for run in self.runs:
            result.append((run, self.events[start : start + run.count]))
            start += run.count
        return result


def as_bytes(events: Sequence[bytes]) -> Sequence[bytes]:
    """The events as bytes that nobody can change any more. Raises BadRequestError for what are no bytes.

    A block that cannot be packed would take down the events of others that share it, so nothing else gets in.
    """
    if {bytes}.issuperset(map(type, events)):
        return events
    for event in events:
        if not isinstance(event, bytes | bytearray | memoryview):
            raise BadRequestError(f"an event is of type {type(event).__name__}, not bytes")
    return [bytes(event) for event in events]


def packed_size(events: Sequence[bytes]) -> int:
    """Bytes that the events take in a segment, headers included."""
    return sum(map(len, events)) + EVENT_HEADER_BYTES * len(events)
