"""Answers on the port of a worker that is away: WrongHost to everything (design §1, wire §3.6).

Clients keep an endpoint until they hear WrongHost; a port that nobody answers would hold them for their whole patience.
So whoever keeps a worker's socket answers while the worker does not run, by the worker's own server over no containers:
every request gets the reply that a worker gives for a container which is elsewhere. Whoever asks whether the worker is
there (`cluster.prober`) tells the two apart by the oldest version in the answer to Hello.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from tailrace.common import limits
from tailrace.common.errors import WrongHostError
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.server.receiving import ReceiveRoom
from tailrace.wire.commands_append import WRONG_HOST_OLDEST_VERSION
from tailrace.wire.receiver import BufferPool

if TYPE_CHECKING:
    import socket

    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.tables.types import TableOperations


class NoContainers:
    """Implements ContainerRegistry: nothing runs here."""

    def container_for(self, segment_name: str) -> NoReturn:
        """See ContainerRegistry."""
        raise WrongHostError(f"the container of {segment_name} does not run here now")

    def container_by_id(self, container_id: int) -> NoReturn:
        """See ContainerRegistry."""
        raise WrongHostError(f"container {container_id} does not run here now")

    def is_arriving(self, segment_name: str) -> bool:
        """See ContainerRegistry."""
        return False

    async def wait_arrived(self, segment_name: str) -> None:
        """See ContainerRegistry."""

    def table_service(self, container: SegmentContainer) -> TableOperations:
        """See ContainerRegistry."""
        raise WrongHostError(f"container {container.container_id} does not run here now")


class WrongHostResponder:
    """Answers on one listening socket, which somebody else keeps, from `begin` to `end`."""

    def __init__(self, listener: socket.socket, clock: Clock, entropy: Entropy) -> None:
        self._listener = listener
        self._clock = clock
        self._entropy = entropy
        self._server: SegmentStoreServer | None = None

    @property
    def answers(self) -> bool:
        """Whether it answers now."""
        return self._server is not None

    async def begin(self) -> None:
        """Answer from now on. Raises OSError."""
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        pool = BufferPool(limits.WRONG_HOST_BUFFERS_IDLE_MAX_BYTES, limits.WRONG_HOST_RECEIVE_MAX_BYTES)
        self._server = SegmentStoreServer(
            NoContainers(),
            InFlightBudget(limits.WRONG_HOST_RECEIVE_MAX_BYTES),
            self._clock,
            self._entropy,
            receiving=ReceiveRoom(loop, pool),
            connections_max=limits.WRONG_HOST_CONNECTIONS_MAX,
            oldest_version=WRONG_HOST_OLDEST_VERSION,
        )
        # A number of its own for the same socket: what is closed at the end is that number, not the socket.
        await self._server.start_on(self._listener.dup())

    async def end(self) -> None:
        """Answer no more, and close the connections: their clients must meet the worker."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()
