"""Find readers of a group that died: heartbeats, and their silence on the observer's own clock.

See docs/adr/0025-readers-take-over-from-dead-ones.md, docs/protocol/reader-group-state.md#heartbeats.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tailrace.client.group.state import records as r
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ClientClosedError, NotFoundError, TailraceError
from tailrace.common.logs import LibraryLog

if TYPE_CHECKING:
    from tailrace.client.group.state.state import GroupState
    from tailrace.common.ports import Entropy


_LOG = LibraryLog(__name__)


class Watch:
    """How long each reader with heartbeats has been silent, as one observer sees it. Pure."""

    def __init__(self, dead_after_s: float) -> None:
        self._dead_after_s = dead_after_s
        self._seen: dict[str, tuple[r.Heartbeat, float]] = {}
        self._looked_s: float | None = None

    def look(self, state: GroupState, now_s: float) -> dict[str, r.Heartbeat]:
        """Return the dead readers with their last heartbeats, from a state fetched at `now_s`.

        A reader without heartbeats is never dead. Silence counts only while this observer itself looks at the state:
        after an outage, or a pause of the observer, it begins again.
        """
        paused = self._looked_s is None or now_s - self._looked_s > self._dead_after_s / 2
        self._looked_s = now_s
        seen: dict[str, tuple[r.Heartbeat, float]] = {}
        for reader, heartbeat in state.heartbeats.items():
            known = self._seen.get(reader)
            if paused or known is None or known[0] != heartbeat:
                known = (heartbeat, now_s)
            seen[reader] = known
        self._seen = seen
        return {
            reader: heartbeat
            for reader, (heartbeat, since_s) in seen.items()
            if now_s - since_s >= max(self._dead_after_s, heartbeat.dead_after_ms / 1000)
        }


class HeartbeatWriter:
    """Writes one reader's heartbeats, also while the application does not read."""

    def __init__(self, entropy: Entropy, reader: str, dead_after_s: float) -> None:
        if not limits.READER_DEAD_AFTER_MIN_S <= dead_after_s <= limits.READER_DEAD_AFTER_MAX_S:
            raise BadRequestError(
                f"dead_after_s is {dead_after_s:g}, allowed are {limits.READER_DEAD_AFTER_MIN_S:g} to "
                f"{limits.READER_DEAD_AFTER_MAX_S:g}, or None"
            )
        self.interval_s = dead_after_s / limits.READER_HEARTBEATS_PER_DEAD_AFTER
        session = int.from_bytes(entropy.token(8)) >> 1
        self._last = r.Heartbeat(session, 0, round(dead_after_s * 1000))
        self._reader = reader
        self._task: asyncio.Task[None] | None = None

    @property
    def session(self) -> int:
        """Return the number that distinguishes this start of the reader from others of its name."""
        return self._last.session

    def beat(self, distance: int) -> r.UpdateDistanceToTail:
        """Return the next heartbeat."""
        self._last = dataclasses.replace(self._last, sequence=self._last.sequence + 1)
        return r.UpdateDistanceToTail(self._reader, distance, None, self._last)

    def start(self, write: Callable[[], Awaitable[None]]) -> None:
        """Call `write` at each interval until `stop`."""
        self._task = asyncio.create_task(self._run(write), name=f"heartbeats of reader {self._reader}")

    async def _run(self, write: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await write()
            except (ClientClosedError, NotFoundError):
                return  # the client is closed or the group deleted
            except TailraceError:
                continue  # the reader's read calls meet and report the same trouble
            except Exception as error:  # no caller waits for this task: without a beat others take the segments
                reason = f"{type(error).__name__}: {error}"
                _LOG.warning("heartbeat_not_written", reader=self._reader, reason=reason, exc_info=True)

    async def stop(self) -> None:
        """Stop; a second call does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
