"""What streams really hold in Tier 2 (docs/controller.md#bytes-that-streams-hold).

All containers are asked at most once a minute, while descriptions of streams are wanted. The figures say what a stream
costs; nothing is decided by them.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import without_deadline
from tailrace.common.errors import TailraceError
from tailrace.common.task_groups import run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.stream_store import StreamKey

_LOG = structlog.get_logger(__name__)


class HeldBytesSource(Protocol):
    """What containers say; ``tailrace.client.connections.held_bytes.HeldBytesClient`` satisfies it."""

    @property
    def container_count(self) -> int:
        """Return the number of containers."""
        ...

    async def page(self, container_id: int, after: str) -> tuple[Sequence[tuple[str, int]], str | None]:
        """Return streams behind `after` with their bytes, and where the next page begins. Raises UnavailableError."""
        ...


class HeldBytes:
    """Remembers the figures of the last round in which all containers answered."""

    def __init__(self, source: HeldBytesSource | None) -> None:
        self._source = source
        self._found: dict[str, int] | None = None
        self._asked_s = -math.inf
        self._asking: asyncio.Task[None] | None = None
        self._failed = False

    def of(self, key: StreamKey) -> int | None:
        """Return the bytes that a stream held when they were asked for last; None while they are not known.

        Never waits: it begins the next round when the last one is old.
        """
        now_s = asyncio.get_running_loop().time()
        if self._source is not None and self._asking is None and now_s - self._asked_s >= limits.HELD_BYTES_PERIOD_S:
            self._asked_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._round(self._source), name="held bytes")
        if self._found is None:
            return None
        if len(self._found) >= limits.HELD_BYTES_STREAMS_MAX:
            return self._found.get(str(key))
        return self._found.get(str(key), 0)

    async def close(self) -> None:
        """End a round that runs."""
        if self._asking is not None:
            asking, self._asking = self._asking, None
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _round(self, source: HeldBytesSource) -> None:
        without_deadline()  # the call that begins a round is that of one stream
        found: dict[str, int] = {}
        slots = asyncio.Semaphore(limits.HELD_BYTES_CONTAINERS_CONCURRENT_MAX)
        try:
            await run_all(*(_ask(source, number, slots, found) for number in range(source.container_count)))
        except TailraceError as error:
            if not self._failed:
                _LOG.warning("held_bytes_not_known", reason=str(error))
            self._failed = True
        else:
            self._found, self._failed = found, False
        finally:
            self._asking = None


async def _ask(source: HeldBytesSource, container_id: int, slots: asyncio.Semaphore, found: dict[str, int]) -> None:
    async with slots:
        after: str | None = ""
        while after is not None:
            page, after = await source.page(container_id, after)
            for stream, held_bytes in page:
                if stream in found or len(found) < limits.HELD_BYTES_STREAMS_MAX:
                    found[stream] = found.get(stream, 0) + held_bytes
