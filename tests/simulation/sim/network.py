"""A simulated network: latency, arbitrary segmentation, resets, lost answers, half-open connections, partitions.

Connections overtake each other; within one (`sim.transport`) bytes arrive in order.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from sim.faults import FaultCounter
from sim.loop import ForbiddenError, SimLoop
from sim.partitions import Partitions
from sim.process import SimProcess, current_process
from sim.transport import SimSocket, SimTransport

SEGMENT_MAX_BYTES = 64 * 1024
CONNECT_GIVES_UP_S = 130.0
"""Without an answer, as Linux does after its sixth attempt."""
LOCAL_NAMES = frozenset({None, "", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"})


class SimServer(asyncio.AbstractServer):
    """A listener."""

    def __init__(self, network: SimNetwork, address: tuple[str, int], factory: Callable[[], Any]) -> None:
        self.network = network
        self.address = address
        self.factory = factory
        self.process = current_process()
        self.context = contextvars.copy_context()
        self._closed: asyncio.Future[None] = network.loop.create_future()

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        """See asyncio."""
        return () if self._closed.done() else (SimSocket(self.address),)

    def close(self) -> None:
        """See asyncio."""
        self.network.unlisten(self)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        """See asyncio: as in Python 3.11, does not wait for connections."""
        await asyncio.shield(self._closed)

    def is_serving(self) -> bool:
        """See asyncio."""
        return not self._closed.done()

    async def start_serving(self) -> None:
        """See asyncio."""

    async def serve_forever(self) -> None:
        """See asyncio."""
        await asyncio.shield(self._closed)

    def get_loop(self) -> Any:
        """See asyncio."""
        return self.network.loop


class SimNetwork(FaultCounter):
    """Every process of the world hangs on it, at one address; ports tell them apart."""

    CHANCES = MappingProxyType(
        {
            "slow_chance": "slow network",
            "lost_answer_chance": "reset before the answer",
            "half_open_chance": "half-open connection",
        }
    )

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__()
        self.loop = loop
        self.random = random.Random(f"{seed}-network")
        self.slow_chance = 0.02
        self.slow_max_s = 0.2
        self.lost_answer_chance = 0.0
        """Of each segment that answers: the connection is reset in its place."""
        self.half_open_chance = 0.0
        """Of each connection of a process that dies: the other end is not notified."""
        self.partitions = Partitions()
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._ports = itertools.count(40_000)
        self._transports: dict[SimTransport, None] = {}
        self.forget_enabled()

    def loses_answer(self, sender: SimTransport) -> bool:
        """Whether the connection breaks after a request was carried out, before its answer arrives."""
        if not (sender.answers and self.lost_answer_chance and self.random.random() < self.lost_answer_chance):
            return False
        self.count("reset before the answer")
        return True

    def latency_s(self) -> float:
        """One way through the network."""
        slow = self.random.random() < self.slow_chance
        if slow:
            self.count("slow network")
        return 30e-6 + self.random.random() * (self.slow_max_s if slow else 0.001)

    def segment_bytes(self) -> int:
        """How much of a stream travels together."""
        kind = self.random.random()
        if kind < 0.1:
            return self.random.randint(1, 16)
        return self.random.randint(1, 1500) if kind < 0.5 else SEGMENT_MAX_BYTES

    @staticmethod
    def _address(host: Any, port: Any) -> tuple[str, int]:
        return ("127.0.0.1" if host in LOCAL_NAMES else str(host), int(port))

    async def listen(self, factory: Callable[[], Any], host: Any, port: Any, **options: Any) -> SimServer:
        """See loop.create_server."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise ForbiddenError("create_server(sock=..., ssl=...) is not simulated")
        address = self._address(host, port or next(self._ports))
        if address in self._servers:
            raise OSError(98, f"error while attempting to bind on address {address}: address already in use")
        server = SimServer(self, address, factory)
        self._servers[address] = server
        return server

    def unlisten(self, server: SimServer) -> None:
        """Stop accepting."""
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    async def connect(self, factory: Callable[[], Any], host: Any, port: Any, **options: Any) -> tuple[Any, Any]:
        """See loop.create_connection."""
        if options.get("sock") is not None or options.get("ssl") is not None:
            raise ForbiddenError("create_connection(sock=..., ssl=...) is not simulated")
        address = self._address(host, port)
        await asyncio.sleep(self.latency_s())
        await self._reach(address)
        server = self._servers.get(address)
        if server is None or (server.process is not None and not server.process.alive):
            raise ConnectionRefusedError(111, f"Connect call failed {address}")
        own_address = ("127.0.0.1", next(self._ports))
        near = SimTransport(self, current_process(), own_address, address)
        far = server.context.copy().run(SimTransport, self, server.process, address, own_address)
        near.other, far.other = far, near
        far.answers = True
        self._transports[near] = self._transports[far] = None
        near.set_protocol(factory())
        if far.is_paused():  # its kernel takes the connection, the process hears of it when it goes on
            self.loop.call_soon(far.accept, server.factory, context=server.context.copy())
        else:
            far.accept(server.factory)
        await asyncio.sleep(self.latency_s())
        near.get_protocol().connection_made(near)
        return near, near.get_protocol()

    def forget(self, transport: SimTransport) -> None:
        """A connection ended."""
        self._transports.pop(transport, None)

    def drop(self, process: SimProcess) -> None:
        """A process died: its listeners go, its peers see resets."""
        for server in [server for server in self._servers.values() if server.process is process]:
            self.unlisten(server)
        for transport in [transport for transport in self._transports if transport.process is process]:
            self.forget(transport)
            transport._closing = transport._lost = True
            if self.half_open_chance and self.random.random() < self.half_open_chance:
                transport.half_open = True
                self.count("half-open connection")
            elif transport.other is not None:
                self.loop.call_world(self.latency_s(), transport.other.receive_reset)

    def reset_some(self, chance: float) -> None:
        """Break a random part of the connections."""
        for transport in list(self._transports):
            if self.random.random() < chance:
                self.count("connection reset")
                transport.abort()

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Nothing passes between two processes until `join` or `heal`; one way: nothing from the one to the other."""
        self.count("one-way partition" if one_way else "partition")
        self.partitions.cut(one, other)
        if not one_way:
            self.partitions.cut(other, one)

    def join(self, one: str, other: str, *, one_way: bool = False) -> None:
        """End the partition between two processes."""
        self.partitions.join(one, other)
        if not one_way:
            self.partitions.join(other, one)

    def heal(self) -> None:
        """End all partitions."""
        self.partitions.heal()

    async def _reach(self, address: tuple[str, int]) -> None:
        """Wait until no partition lies between the calling process and a listener. TimeoutError: after minutes."""
        here = current_process()
        gives_up_s = self.loop.time() + CONNECT_GIVES_UP_S
        while True:
            server = self._servers.get(address)
            there = None if server is None else server.process
            if not (self.partitions.lies_between(here, there) or self.partitions.lies_between(there, here)):
                return
            if self.loop.time() > gives_up_s:
                raise TimeoutError(110, f"Connect call failed {address}")
            await asyncio.sleep(0.5)
