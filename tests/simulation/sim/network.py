"""A simulated network under asyncio's transports: latency, arbitrary segmentation, bounded buffers, resets, partitions.

A connection is two pipes. A pipe holds the sender's buffer (its size drives pause_writing), the segments under way and
the receiver's buffer (bounded, so that a receiver that does not read slows the sender down).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

from sim.loop import ForbiddenError, SimLoop
from sim.process import SimProcess, current_process

RECEIVE_BUFFER_BYTES = 128 * 1024
SEND_HIGH_WATER_BYTES = 64 * 1024
SEGMENT_MAX_BYTES = 64 * 1024
_TOLD_LATER = frozenset({"connection_made", "connection_lost", "pause_writing", "resume_writing"})
"""Callbacks of protocols whose answer nobody waits for."""
LOCAL_NAMES = frozenset({None, "", "localhost", "127.0.0.1", "0.0.0.0", "::", "::1"})


class SimSocket:
    """What `get_extra_info("socket")` answers."""

    def __init__(self, address: tuple[str, int], peer: tuple[str, int] | None = None) -> None:
        self._address = address
        self._peer = peer

    def getsockname(self) -> tuple[str, int]:
        """Own address."""
        return self._address

    def getpeername(self) -> tuple[str, int]:
        """The peer's address."""
        if self._peer is None:
            raise OSError(107, "not connected")
        return self._peer

    def setsockopt(self, *args: Any) -> None:
        """Options make no difference here."""

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: SimNetwork, process: SimProcess | None, local: tuple[str, int], peer: tuple[str, int]):
        super().__init__({"sockname": local, "peername": peer, "socket": SimSocket(local, peer)})
        self._network = network
        self._loop = network.loop
        self.process = process
        self._context = contextvars.copy_context()
        self._protocol: Any = None
        self.other: SimTransport | None = None
        self._high = SEND_HIGH_WATER_BYTES
        self._low = SEND_HIGH_WATER_BYTES // 4
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._under_way = 0
        self._last_arrival_s = 0.0
        self._pumping = False
        self._writing_paused = False
        self._reading = True
        self._closing = False
        self._lost = False
        self._eof_wanted = False
        self._eof_sent = False
        self._eof_pending = False
        self._waking = False

    # -- the protocol's side

    def accept(self, factory: Callable[[], Any]) -> None:
        """A listener got this connection."""
        if not self._lost:
            self._protocol = self.run(factory)
            self.run(self._protocol.connection_made, self)

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call into the protocol, as its process; its errors end the connection."""
        if self.process is not None and not self.process.alive:
            return None
        if self.is_paused() and callback.__name__ in _TOLD_LATER:
            self._loop.call_soon(callback, *args, context=self._context.copy())  # held back until it goes on
            return None
        try:
            return self._context.copy().run(callback, *args)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "error in a protocol callback", "exception": error, "transport": self}
            )
            self._reset(error)
        return None

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self._protocol

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """See asyncio."""
        self._reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self._closing and not self._reading:
            self._reading = True
            self._loop.call_soon(self._hand_over)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        if high is None:
            high = SEND_HIGH_WATER_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low
        self._check_high_water()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return len(self._outgoing)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._lost or self._is_dead() or not data:
            return
        self._outgoing += data
        self._check_high_water()
        self._pump_soon()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def write_eof(self) -> None:
        """See asyncio."""
        if not self._closing and not self._eof_wanted:
            self._eof_wanted = True
            self._pump_soon()

    def close(self) -> None:
        """See asyncio: what was written still leaves."""
        if self._closing:
            return
        self._closing = True
        self._eof_wanted = True
        self._pump_soon()

    def abort(self) -> None:
        """See asyncio."""
        self._reset(None)

    # -- the network's side

    def _is_dead(self) -> bool:
        return self.process is not None and not self.process.alive

    def is_paused(self) -> bool:
        """Whether its process stands still."""
        return self.process is not None and self.process.paused

    def _check_high_water(self) -> None:
        if len(self._outgoing) > self._high and not self._writing_paused:
            self._writing_paused = True
            self.run(self._protocol.pause_writing)

    def _check_low_water(self) -> None:
        if self._writing_paused and len(self._outgoing) <= self._low:
            self._writing_paused = False
            self.run(self._protocol.resume_writing)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_world(self._network.random.random() * 50e-6, self._pump)

    def _pump(self) -> None:
        """Send one segment, if the receiver has room for it."""
        self._pumping = False
        other = self.other
        if other is None or self._lost or self._is_dead():
            return
        if self._network.is_cut(self, other):
            self._pumping = True
            self._loop.call_world(0.05, self._pump)
            return
        room = RECEIVE_BUFFER_BYTES - len(other._incoming) - self._under_way
        if self._outgoing and room > 0:
            size = min(len(self._outgoing), room, self._network.segment_bytes())
            segment = bytes(memoryview(self._outgoing)[:size])
            del self._outgoing[:size]
            self._under_way += size
            self._loop.call_world(self._arrival_delay_s(), self._arrive, segment)
            self._check_low_water()
        if self._outgoing:
            if room > 0:
                self._pump_soon()
        elif self._eof_wanted and not self._eof_sent:
            self._eof_sent = True
            self._loop.call_world(self._arrival_delay_s(), other._receive_eof)
            if self._closing:
                self._lose_soon(None)

    def _arrival_delay_s(self) -> float:
        """Segments of a connection arrive in order (timers fire late by a bounded amount)."""
        earliest = self._last_arrival_s + 200e-6
        self._last_arrival_s = max(self._loop.time() + self._network.latency_s(), earliest)
        return self._last_arrival_s - self._loop.time()

    def _arrive(self, segment: bytes) -> None:
        self._under_way -= len(segment)
        other = self.other
        if other is None or (self._lost and not self._eof_wanted):
            return
        if other._lost or other._closing or other._is_dead():
            self._reset(ConnectionResetError(104, "Connection reset by peer"), tell=False)
            return
        self._loop.trace("arrive", len(segment))
        other._incoming += segment
        other._hand_over()

    def _hand_over(self) -> None:
        """Give the protocol what arrived, as long as it reads."""
        if self.is_paused():
            if not self._waking:
                self._waking = True
                self._loop.call_soon(self._hand_over, context=self._context.copy())  # held back until it goes on
            return
        self._waking = False
        protocol = self._protocol
        while self._incoming and self._reading and not self._closing:
            if isinstance(protocol, asyncio.BufferedProtocol):
                taken = self._fill(protocol)
                if not taken:
                    return
            else:
                data = bytes(self._incoming)
                self._incoming.clear()
                self.run(protocol.data_received, data)
            protocol = self._protocol
        if self.other is not None and len(self._incoming) < RECEIVE_BUFFER_BYTES and self.other._outgoing:
            self.other._pump_soon()
        if self._eof_pending and not self._incoming and self._reading and not self._closing:
            self._eof_pending = False
            if not self.run(protocol.eof_received):
                self.close()

    def _fill(self, protocol: asyncio.BufferedProtocol) -> int:
        buffer = self.run(protocol.get_buffer, -1)
        if buffer is None:
            return 0
        view = memoryview(buffer).cast("B")
        if not len(view):
            self._reset(RuntimeError("get_buffer() returned an empty buffer"))
            return 0
        size = min(len(view), len(self._incoming))
        view[:size] = self._incoming[:size]
        del self._incoming[:size]
        view.release()
        self.run(protocol.buffer_updated, size)
        return size

    def _receive_eof(self) -> None:
        if not self._closing and not self._is_dead():
            self._eof_pending = True
            self._hand_over()

    def _reset(self, error: BaseException | None, *, tell: bool = True) -> None:
        """Break the connection; the peer learns of it after a while."""
        if self._lost:
            return
        self._closing = True
        self._outgoing.clear()
        self._lose_soon(error)
        if tell and self.other is not None:
            self._loop.call_world(self._network.latency_s(), self.other.receive_reset)

    def receive_reset(self) -> None:
        """The peer broke the connection."""
        self._reset(ConnectionResetError(104, "Connection reset by peer"), tell=False)

    def _lose_soon(self, error: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_world(0, self._lose, error)

    def _lose(self, error: BaseException | None) -> None:
        self._network.forget(self)
        if self._protocol is not None:  # None: a process that stood still never heard of the connection
            self.run(self._protocol.connection_lost, error)


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


class SimNetwork:
    """Every process of the world hangs on it, at one address; ports tell them apart."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.random = random.Random(f"{seed}-network")
        self.slow_chance = 0.02
        self.faults: dict[str, int] = {}
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._ports = itertools.count(40_000)
        self._transports: dict[SimTransport, None] = {}
        self._cut: set[frozenset[str]] = set()

    def latency_s(self) -> float:
        """One way through the network."""
        slow = self.random.random() < self.slow_chance
        return 30e-6 + self.random.random() * (0.2 if slow else 0.001)

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
        server = self._servers.get(address)
        if server is None or (server.process is not None and not server.process.alive):
            raise ConnectionRefusedError(111, f"Connect call failed {address}")
        own_address = ("127.0.0.1", next(self._ports))
        near = SimTransport(self, current_process(), own_address, address)
        far = server.context.copy().run(SimTransport, self, server.process, address, own_address)
        near.other, far.other = far, near
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
            if transport.other is not None:
                self.loop.call_world(self.latency_s(), transport.other.receive_reset)

    def reset_some(self, chance: float) -> None:
        """Break a random part of the connections."""
        for transport in list(self._transports):
            if self.random.random() < chance:
                self.faults["connection reset"] = self.faults.get("connection reset", 0) + 1
                transport.abort()

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two processes (by the name they were made with) until `heal`."""
        self.faults["partition"] = self.faults.get("partition", 0) + 1
        self._cut.add(frozenset({one, other}))

    def join(self, one: str, other: str) -> None:
        """End the partition between two processes."""
        self._cut.discard(frozenset({one, other}))

    def heal(self) -> None:
        """End all partitions."""
        self._cut.clear()

    def is_cut(self, one: SimTransport, other: SimTransport) -> bool:
        """Whether a partition lies between two ends."""
        if not self._cut:
            return False
        names = [end.process.name.split("#")[0] if end.process is not None else "" for end in (one, other)]
        return self.are_apart(*names)

    def are_apart(self, one: str, other: str) -> bool:
        """Whether a partition lies between two processes (by the name they were made with)."""
        return frozenset({one, other}) in self._cut
