"""Deletes transient segments that no client uses any more (docs/protocol/wire.md#large-events).

The connection that made one deletes it when it closes. It cannot when its process is killed, or when the container is
not open then or moves. So each owner deletes those that had no append for `TRANSIENT_IDLE_MAX_S` while it looked on.
A writer that is that slow finds no segment and writes its large event again: nothing of it counts before the merge.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import NoSuchSegmentError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.segmentstore.metadata.state import ContainerState

_log = structlog.get_logger()


class TransientSweep:
    """Sweeps the transient segments of one container. ``delete`` deletes a segment."""

    def __init__(self, state: ContainerState, delete: Callable[[str], Awaitable[None]]) -> None:
        self._state = state
        self._delete = delete
        self._seen: dict[int, tuple[int, float]] = {}
        """The length of each transient segment, and since when it has it."""

    def __len__(self) -> int:
        return len(self._seen)

    async def run(self) -> None:
        """Sweep at intervals until cancelled. What cannot be deleted now is tried again at the next look."""
        while True:
            for name in self.idle(asyncio.get_running_loop().time()):
                try:
                    await self._delete(name)
                except NoSuchSegmentError:
                    continue  # merged or deleted meanwhile
                except UnavailableError as error:
                    container = self._state.container_id
                    _log.info("transient_segment_not_deleted", container=container, segment=name, reason=str(error))
                    break
            await asyncio.sleep(limits.TRANSIENT_SWEEP_PERIOD_S)

    def idle(self, now_s: float) -> list[str]:
        """Look at all transient segments; return those whose lengths have been the same for long enough."""
        seen: dict[int, tuple[int, float]] = {}
        idle = []
        for identifier, segment in self._state.segments.items():
            if not segment.kind.is_transient:
                continue
            length, since_s = self._seen.get(identifier, (-1, now_s))
            if length != segment.staged_length:
                length, since_s = segment.staged_length, now_s
            seen[identifier] = length, since_s
            if now_s - since_s >= limits.TRANSIENT_IDLE_MAX_S:
                idle.append(segment.name)
        self._seen = seen
        return idle
