"""Containers that are about to open at a worker, and the requests that wait for them (docs/design.md#ownership).

Clients read the new owner from the map before the container is open there. A client that gets WrongHost retries after
a pause that grows tenfold each time. The Java client's pause reaches seconds, long after the container has opened.
"""

from __future__ import annotations

import asyncio

from tailrace.common import limits


class PendingContainers:
    """Lets requests `wait` for a container between its `begin` and its `end`."""

    def __init__(self) -> None:
        self._ended: dict[int, asyncio.Event] = {}

    def begin(self, container_id: int) -> None:
        """Record that the container opens here."""
        self._ended.setdefault(container_id, asyncio.Event())

    def end(self, container_id: int) -> None:
        """Wake the requests: the container is open, or does not open here any more. They look which it is."""
        ended = self._ended.pop(container_id, None)
        if ended is not None:
            ended.set()

    @property
    def expects_any(self) -> bool:
        """Return whether any container is pending."""
        return bool(self._ended)

    def expects(self, container_id: int) -> bool:
        """Return whether the container is pending."""
        return container_id in self._ended

    async def wait(self, container_id: int) -> None:
        """Wait until the container is not pending, at most ``limits.PENDING_CONTAINER_TIMEOUT_S``."""
        ended = self._ended.get(container_id)
        if ended is None:
            return
        try:
            async with asyncio.timeout(limits.PENDING_CONTAINER_TIMEOUT_S):
                await ended.wait()
        except TimeoutError:
            return
