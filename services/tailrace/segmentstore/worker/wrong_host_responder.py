"""Replies WrongHost to every request on the port of a worker that does not run.

See docs/design.md#processes, docs/protocol/wire.md#failure-replies.

Clients keep an endpoint until they receive WrongHost; an unanswered port would hold them until their timeout. So the
pod's main process, which keeps the worker's socket, answers while the worker does not run. It uses the worker's server
without containers, so every reply is that of a worker which does not own the container. The prober
(`cluster.prober`) recognises the responder by the oldest version in its reply to Hello.
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
    """A ContainerRegistry without containers."""

    def container_for(self, segment_name: str) -> NoReturn:
        """See ContainerRegistry."""
        raise WrongHostError(f"the container of {segment_name} does not run here")

    def container_by_id(self, container_id: int) -> NoReturn:
        """See ContainerRegistry."""
        raise WrongHostError(f"container {container_id} does not run here")

    def is_pending(self, segment_name: str) -> bool:
        """See ContainerRegistry."""
        return False

    async def wait_opened(self, segment_name: str) -> None:
        """See ContainerRegistry."""

    def table_service(self, container: SegmentContainer) -> TableOperations:
        """See ContainerRegistry."""
        raise WrongHostError(f"container {container.container_id} does not run here")


class WrongHostResponder:
    """Answers on one listening socket from `begin` to `end`. The caller keeps the socket open."""

    def __init__(self, listener: socket.socket, clock: Clock, entropy: Entropy) -> None:
        self._listener = listener
        self._clock = clock
        self._entropy = entropy
        self._server: SegmentStoreServer | None = None

    @property
    def answers(self) -> bool:
        """Return whether it answers now."""
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
        # A duplicated descriptor: closing the server closes the duplicate, not the worker's socket.
        await self._server.start_on(self._listener.dup())

    async def end(self) -> None:
        """Stop answering and close the connections, so that their clients reach the worker."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()
