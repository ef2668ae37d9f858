"""Memory of a whole segment store stays within its budgets, and all of it comes back.

See docs/design.md#invariants, I12.
"""

from __future__ import annotations

import asyncio

from sim.checks.memory import check_cache
from sim.loop import SimLoop
from sim.violations import require
from tailrace.common import limits
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.worker import Worker

TURNS_BETWEEN_LOOKS = 23
IDLE_LOOKS_MAX = 6000


class ServerWatch:
    """One worker and the server in front of it, over all their incarnations."""

    def __init__(self, loop: SimLoop, containers: int) -> None:
        self._containers = containers
        self._worker: Worker | None = None
        self._server: SegmentStoreServer | None = None
        self._turns = 0
        pass_time = loop._pass_time

        def pass_and_look(timeout: float) -> None:
            pass_time(timeout)
            self._turns += 1
            if self._turns % TURNS_BETWEEN_LOOKS == 0:
                self.look()

        loop._pass_time = pass_and_look  # type: ignore[method-assign]

    def follow(self, worker: Worker, server: SegmentStoreServer) -> None:
        """They serve."""
        self._worker, self._server = worker, server

    def ended(self) -> None:
        """Their process is dead."""
        self._worker = self._server = None

    def look(self) -> None:
        """Raises Violation."""
        worker, server = self._worker, self._server
        if worker is None or server is None:
            return
        context = server._context
        in_flight, unsent = context.in_flight, context.unsent.total_bytes
        # Each connection is served up to its share, whatever the others have: so one share may come on top.
        bound = 2 * in_flight.max_bytes + limits.CONNECTION_IN_FLIGHT_MAX_BYTES
        require(0 <= in_flight.outstanding_bytes <= bound, f"{in_flight.outstanding_bytes} bytes in flight of {bound}")
        bound = limits.SEND_BUFFERS_MAX_BYTES + limits.LARGE_REPLIES_PER_CONNECTION_MAX_BYTES
        require(0 <= unsent <= bound, f"{unsent} bytes are unsent, the bound is {bound}")
        require(0 <= context.unanswered.requests <= limits.REQUESTS_MAX, f"{context.unanswered.requests} requests")
        states = [container.state for container in worker.containers()]
        if len(states) == self._containers:  # none of them recovers or ends
            check_cache(worker.cache, states, worker.budgets.cache_bytes)

    async def idle(self) -> None:
        """Without writes nothing stays in flight, and nothing stays reserved."""
        for _ in range(IDLE_LOOKS_MAX):
            if self._taken() == (0, 0):
                break
            await asyncio.sleep(0.01)
        in_flight, reserved = self._taken()
        require(in_flight == 0, f"{in_flight} bytes stay in flight though no client writes")
        require(reserved == 0, f"{reserved} blocks stay reserved though no client writes")
        self.look()

    def _taken(self) -> tuple[int, int]:
        assert self._worker is not None
        assert self._server is not None
        outstanding = self._server._context.in_flight.outstanding_bytes
        return outstanding, self._worker.cache.cache.reserved_blocks
