"""Containers that are on their way to a worker, and the requests that wait for them (design §9).

Clients learn from the map where a container is to be before it is open there. Who is sent away then comes back after a
pause that grows tenfold each time, with the Java client to seconds: it would come long after the container.
"""

from __future__ import annotations

import asyncio

from tailrace.common import limits


class PendingContainers:
    """From `begin` to `end` of a container requests may `wait` for it."""

    def __init__(self) -> None:
        self._ended: dict[int, asyncio.Event] = {}

    def begin(self, container_id: int) -> None:
        """The container is to be opened here."""
        self._ended.setdefault(container_id, asyncio.Event())

    def end(self, container_id: int) -> None:
        """The container was opened, or is not to be opened any more; whoever waits looks which."""
        ended = self._ended.pop(container_id, None)
        if ended is not None:
            ended.set()

    @property
    def expects_any(self) -> bool:
        """Whether any container is on its way."""
        return bool(self._ended)

    def expects(self, container_id: int) -> bool:
        """Whether the container is on its way."""
        return container_id in self._ended

    async def wait(self, container_id: int) -> None:
        """Return when the container is not on its way, and after ``limits.PENDING_CONTAINER_TIMEOUT_S`` in any case."""
        ended = self._ended.get(container_id)
        if ended is None:
            return
        try:
            async with asyncio.timeout(limits.PENDING_CONTAINER_TIMEOUT_S):
                await ended.wait()
        except TimeoutError:
            return
