"""Taking turns: callers that change the same thing go one after another, in the order in which they came.

Conditions on versions keep concurrent changes correct, wherever they come from. But of many that meet in one instance
each would be refused again and again: taking turns there, each is refused by what other instances do at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable


class Turns:
    """Holds a lock for every key that somebody uses or waits for; there are as many as calls at most."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: dict[Hashable, int] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        """The caller's turn; not to be asked for again within it."""
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
