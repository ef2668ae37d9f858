"""Probes a worker's pod with a Hello of the binary protocol (docs/protocol/wire.md#handshake, ADR 0009)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from tailrace.common import limits
from tailrace.wire import commands as c
from tailrace.wire.codec import FRAME_HEADER, FRAME_HEADER_BYTES, decode, encode
from tailrace.wire.commands_append import WRONG_HOST_OLDEST_VERSION

if TYPE_CHECKING:
    from tailrace.cluster.endpoints import ContainerEndpoints

_HELLO: Final = encode(c.Hello(16, 5))  # a server of any version replies

_logger = structlog.get_logger()


class HelloProber:
    """Implements `Prober` over the network, at the internal endpoint."""

    async def answers(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.answers. A worker without an endpoint cannot answer; a WrongHost responder does not count."""
        if endpoints is None:
            return False
        answer = _Answer()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.PROBE_DEADLINE_S):
                transport, _ = await loop.create_connection(
                    lambda: answer, endpoints.internal.host, endpoints.internal.port
                )
                try:
                    return await answer.came
                finally:
                    transport.abort()
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: not a valid host name
            _logger.info("worker_does_not_answer", worker=worker, reason=repr(error))
            return False

    async def refuses(self, worker: str, endpoints: ContainerEndpoints | None) -> bool:
        """See Prober.refuses."""
        if endpoints is None:
            return False
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.PROBE_REFUSAL_DEADLINE_S):
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, endpoints.internal.host, endpoints.internal.port
                )
        except ConnectionRefusedError as error:
            _logger.info("worker_refuses_connections", worker=worker, reason=repr(error))
            return True
        except (OSError, TimeoutError, ValueError):  # ValueError: not a valid host name
            return False
        transport.abort()
        return False


class _Answer(asyncio.Protocol):
    """Sends Hello and waits for the Hello that the server sends first."""

    def __init__(self) -> None:
        self.came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(_HELLO)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.came.done():
            return
        self._received += data[: len(_HELLO)]
        if len(self._received) < len(_HELLO):
            return
        code, _ = FRAME_HEADER.unpack_from(self._received)
        hello = decode(code, self._received[FRAME_HEADER_BYTES : len(_HELLO)]) if code == c.Hello.CODE else None
        self.came.set_result(isinstance(hello, c.Hello) and hello.low_version != WRONG_HOST_OLDEST_VERSION)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not self.came.done():
            self.came.set_result(False)
