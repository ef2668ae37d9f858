"""Gather events into append blocks, as runs of one routing key.

A block is one append with one event number and one acknowledgement (docs/performance.md#append-blocks). Runs keep the
routing keys, so that the events can be routed again when their segment is replaced.
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
    """Events of one call and one routing key. ``future`` completes when they are durable."""

    __slots__ = ("count", "future", "key", "size")

    def __init__(self, key: float, count: int, size: int, future: asyncio.Future[None]) -> None:
        self.key = key
        self.count = count
        self.size = size
        self.future = future

    def settled(self) -> asyncio.Future[None]:
        """Completes when the events are durable or failed, also after the caller cancelled its future."""
        if self.future.cancelled():
            self.future = self.future.get_loop().create_future()
        return self.future

    def succeed(self) -> None:
        """Complete the run: its events are durable."""
        future = self.settled()
        if not future.done():
            future.set_result(None)

    def fail(self, error: TailraceError) -> None:
        """Fail the run: its events were not written, or the outcome is unknown."""
        future = self.settled()
        if not future.done():
            future.set_exception(error)
            future.exception()  # flush() also raises the error


class Block:
    """An append block. ``last_number`` is 0 until it is sent for the first time."""

    __slots__ = ("events", "last_number", "runs", "size")

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.runs: list[Run] = []
        self.size = 0
        self.last_number = 0

    def has_room_for(self, count: int, size: int) -> bool:
        """Return whether the block has room for that many events and bytes."""
        return (
            self.size + size <= limits.WRITER_BLOCK_MAX_BYTES
            and len(self.events) + count <= limits.WRITER_BLOCK_MAX_EVENTS
            and not self.is_large
        )

    @property
    def is_full(self) -> bool:
        """Return whether the block is full enough to be sent."""
        return (
            self.size >= limits.WRITER_BLOCK_MAX_BYTES * 3 // 4
            or len(self.events) >= limits.WRITER_BLOCK_MAX_EVENTS * 3 // 4
        )

    @property
    def is_large(self) -> bool:
        """Return whether this is one event that does not fit into an append (docs/protocol/wire.md#large-events)."""
        return self.size > limits.EVENT_MAX_BYTES + EVENT_HEADER_BYTES and len(self.events) == 1

    def add(self, run: Run, events: Sequence[bytes]) -> None:
        """Add the events of a run."""
        self.events.extend(events)
        self.runs.append(run)
        self.size += run.size

    def split(self) -> list[tuple[Run, list[bytes]]]:
        """Return the runs with their events, to route them again."""
        result = []
        start = 0
        for run in self.runs:
            result.append((run, self.events[start : start + run.count]))
            start += run.count
        return result


def as_bytes(events: Sequence[bytes]) -> Sequence[bytes]:
    """Return the events as immutable bytes. Raises BadRequestError for other types.

    An event that cannot be packed would fail all events of its block, so it is refused here.
    """
    if {bytes}.issuperset(map(type, events)):
        return events
    for event in events:
        if not isinstance(event, bytes | bytearray | memoryview):
            raise BadRequestError(f"an event is of type {type(event).__name__}, not bytes")
    return [bytes(event) for event in events]


def packed_size(events: Sequence[bytes]) -> int:
    """Return the bytes that the events take in a segment, including headers."""
    return sum(map(len, events)) + EVENT_HEADER_BYTES * len(events)
