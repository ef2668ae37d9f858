"""Bounds what a worker remembers of what Tier 2 lacks (docs/design.md#memory-budgets). Pure.

Each append that Tier 2 lacks has a row, and each attribute that its index lacks has entries in several maps. The bound
of the cache does not bound them: appends may have one byte, and attributes have none. So all containers of a worker
share one room for these records. Without room, operations wait until a flush has made some; all of them flush then.

A part of the room is for internal segments and for changes of segments, so that controllers and reader groups go on
while writers wait for Tier 2 (docs/adr/0053). It is no exact bound: records are counted when operations commit, so many
writers that are admitted at once may take some of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Callable

APPEND_BYTES = 24
"""What an append that Tier 2 lacks takes (`pending_appends`)."""
ATTRIBUTE_BYTES = 350
"""What an attribute takes that its index lacks: its id, two values and a sequence number, in four maps."""


class UntieredRoom:
    """Counts the records, in bytes. Recovery may exceed ``max_bytes``: nothing is staged then until a flush."""

    __slots__ = ("_internal_room", "_pressure_listeners", "_room", "append_bytes", "attribute_bytes", "max_bytes")

    def __init__(self, max_bytes: int = limits.UNTIERED_RECORDS_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.append_bytes = 0
        self.attribute_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._internal_room: asyncio.Future[None] | None = None
        self._pressure_listeners: list[Callable[[], None]] = []

    def on_pressure(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever an operation finds no room, so that each container flushes at once."""
        self._pressure_listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo `on_pressure`."""
        self._pressure_listeners.remove(listener)

    @property
    def used_bytes(self) -> int:
        """Return what all records take."""
        return self.append_bytes + self.attribute_bytes

    @property
    def has_room(self) -> bool:
        """Return whether another operation may be staged."""
        left = self.max_bytes - self.append_bytes - self.attribute_bytes
        return left > self.max_bytes * limits.UNTIERED_RECORDS_INTERNAL_PART

    @property
    def has_internal_room(self) -> bool:
        """Return whether another operation of an internal segment may be staged."""
        return self.append_bytes + self.attribute_bytes < self.max_bytes

    @property
    def excess_attributes(self) -> int:
        """Return how many attributes to flush that could wait longer otherwise: those above a quarter of the room."""
        return max(self.attribute_bytes - self.max_bytes // 4, 0) // ATTRIBUTE_BYTES

    def room(self) -> asyncio.Future[None]:
        """Ask for flushes; return a future that is done when `has_room` may have become true."""
        self._press()
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def internal_room(self) -> asyncio.Future[None]:
        """Ask for flushes; return a future that is done when `has_internal_room` may have become true."""
        self._press()
        if self._internal_room is None or self._internal_room.done():
            self._internal_room = asyncio.get_running_loop().create_future()
        return self._internal_room

    def remove_appends(self, count: int) -> None:
        """Count appends out, and wake who waits for room."""
        self.append_bytes -= count * APPEND_BYTES
        self._wake()

    def remove_attributes(self, count: int) -> None:
        """Count attributes out, and wake who waits for room."""
        self.attribute_bytes -= count * ATTRIBUTE_BYTES
        self._wake()

    def _press(self) -> None:
        for listener in self._pressure_listeners:
            listener()

    def _wake(self) -> None:
        internal = self._internal_room
        if internal is not None and self.has_internal_room and not internal.done():
            internal.set_result(None)
        if self._room is not None and self.has_room and not self._room.done():
            self._room.set_result(None)
