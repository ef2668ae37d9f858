"""Who asks one worker of a simulated cluster, whether it owns anything or not, and holds it to its answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from sim.violations import require
from sim.workloads.fleetclients import Clients
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.types import NO_VERSION, NOT_EXISTS, Endpoint, TableKey
from tailrace.common.errors import TailraceError
from tailrace.wire import commands as c

ANSWER_MAX_S = 8.0
WAITING_S = 10.0
NEWS_MAX_S = 8.0
"""So long may a reader wait at the tail of an owner that has a successor and can reach everything."""


class Observer:
    """Asks without routing: each answer may be that of an owner that is none any more.

    ``well_since_s`` is the time since which nothing was wrong with the worker and around it.
    """

    def __init__(
        self, clients: Clients, endpoint: Endpoint, rng: random.Random, well_since_s: Callable[[], float]
    ) -> None:
        self._clients = clients
        self._endpoint = endpoint
        self._name = endpoint.host
        self._random = rng
        self._well_since_s = well_since_s
        self._pool = ConnectionPool()
        self.answers = 0

    async def ask(self) -> None:
        """Ask for ever."""
        await self._go_on([self._ask_length, self._ask_tail, self._ask_table])

    async def wait(self) -> None:
        """Wait at tails for ever."""
        await self._go_on([self._wait_at_tail])

    async def _go_on(self, questions: list[Callable[[str], Awaitable[None]]]) -> None:
        clients = self._clients
        names = [clients.stream.segment(item.identifier) for item in clients.segments]
        while True:
            await asyncio.sleep(self._random.random() * 0.3)
            try:
                await self._random.choice(questions)(self._random.choice(names))
                self.answers += 1
            except (TailraceError, TimeoutError):
                continue

    async def _request(self, command: c.Command, lane: str, deadline_s: float = ANSWER_MAX_S) -> c.Command:
        connection = await self._pool.get(self._endpoint, lane)
        return await connection.request(command, deadline_s)

    async def _ask_length(self, segment: str) -> None:
        asked_at_s = _now_s()
        answer = await self._request(c.GetStreamSegmentInfo(0, segment, ""), "control")
        if isinstance(answer, c.StreamSegmentInfo):
            length = answer.write_offset if answer.exists else 0
        elif isinstance(answer, c.NoSuchSegment):
            length = 0
        else:
            return
        self._clients.growth.check_seen(segment, asked_at_s, length, self._name)

    async def _ask_tail(self, segment: str) -> None:
        """Read where something was acknowledged a while ago; what is behind that is there, too."""
        asked_at_s = _now_s()
        offset = max(0, self._clients.growth.at(segment, asked_at_s - 5) - 1)
        answer = await self._request(c.ReadSegment(segment, offset, 1 << 20, ""), "read")
        if isinstance(answer, c.NoSuchSegment):
            self._clients.growth.check_seen(segment, asked_at_s, 0, self._name)
        elif isinstance(answer, c.SegmentRead) and answer.at_tail:
            self._clients.growth.check_seen(segment, asked_at_s, offset + len(answer.data), self._name)

    async def _wait_at_tail(self, segment: str) -> None:
        """A reader at the tail of an owner that has a successor must be notified, so that it asks elsewhere."""
        growth = self._clients.growth
        offset = growth.at(segment, _now_s())
        try:
            async with asyncio.timeout(WAITING_S):
                await self._request(c.ReadSegment(segment, offset, 100, ""), "waiting", 2 * WAITING_S)
        except TimeoutError:
            now_s = _now_s()
            if now_s - self._well_since_s() > WAITING_S:
                there = growth.at(segment, now_s - NEWS_MAX_S)
                require(there <= offset, f"{self._name} lets a reader at {offset} of {segment} wait, {there} are there")

    async def _ask_table(self, _: str) -> None:
        clients = self._clients
        key = self._random.choice(list(clients.tables))
        asked_at_s = _now_s()
        command = c.ReadTable(0, clients.table_segment, "", [TableKey(key.encode(), NO_VERSION)])
        answer = await self._request(command, "control")
        if isinstance(answer, c.NoSuchSegment):
            count = 0
        elif isinstance(answer, c.TableRead):
            found = answer.entries[0]
            count = 0 if found.version == NOT_EXISTS else int(found.value.split(b":")[0])
        else:
            return
        clients.growth.check_seen(f"key {key}", asked_at_s, count, self._name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
