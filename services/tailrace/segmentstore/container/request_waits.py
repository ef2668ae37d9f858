"""What waits in a container until it may be staged: each request has a future of its own.

Several requests wait for the same room in the log or for the same attributes, and the room for records is of all
containers of a worker. So a request that is given up cancels its own future only. A container that stops or leaves
wakes its requests: they are tried again at once, and refused, and their clients look for the next owner.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Own: TypeAlias = "asyncio.Future[None]"
Shared: TypeAlias = "asyncio.Future[None]"

_SWEEP_MIN: Final = 64
"""So many futures are kept before those that are done are looked for: a callback of each would cost more."""


class RequestWaits:
    """The requests of one container that wait; their number is bounded by that of connections and their requests."""

    def __init__(self) -> None:
        self._alone = _Waiting()
        self._behind: dict[Shared, _Waiting] = {}

    def join(self, own: Own) -> Own:
        """Let `end` complete a future that only one request waits for."""
        self._alone.add(own)
        return own

    def behind(self, shared: Shared) -> Own:
        """Return a future for one request that is done when `shared` is; cancel it to give the request up."""
        waiting = self._behind.get(shared)
        if waiting is None:
            waiting = self._behind[shared] = _Waiting()
            shared.add_done_callback(self._done)
        own: Own = asyncio.get_running_loop().create_future()
        waiting.add(own)
        return own

    def end(self) -> None:
        """Wake all of them, and forget what they wait for."""
        for shared in self._behind:
            shared.remove_done_callback(self._done)
        for waiting in (self._alone, *self._behind.values()):
            _wake(waiting.futures)
            waiting.futures = []
        self._behind.clear()

    def _done(self, shared: Shared) -> None:
        waiting = self._behind.pop(shared, None)
        if waiting is not None:  # else `end` came after `shared` was done
            _wake(waiting.futures)


class _Waiting:
    """Futures of requests; those that are done are at most half of them, or a few."""

    def __init__(self) -> None:
        self.futures: list[Own] = []
        self._sweep_at = _SWEEP_MIN

    def add(self, own: Own) -> None:
        self.futures.append(own)
        if len(self.futures) >= self._sweep_at:
            self.futures = [each for each in self.futures if not each.done()]
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self.futures))


def _wake(waiting: Iterable[Own]) -> None:
    for own in waiting:
        if not own.done():
            own.set_result(None)
