"""Locks by key: callers that change the same record run one after another, in the order in which they arrive.

Conditions on versions keep concurrent changes correct across controllers. Within one controller the locks avoid
repeated conflicts: a change then only conflicts with changes of other controllers.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable


class KeyedLocks:
    """Hold one lock for each key in use. The number of locks is bounded by the number of running calls."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: dict[Hashable, int] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock. Not reentrant."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                del self._locks[key]
