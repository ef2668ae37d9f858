"""One end of a connection of the simulated network, under asyncio's transports.

A connection is two pipes. A pipe holds the sender's buffer (its size drives pause_writing), the segments under way and
the receiver's buffer (bounded, so that a receiver that does not read slows the sender down).
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sim.process import SimProcess

if TYPE_CHECKING:
    from sim.network import SimNetwork

RECEIVE_BUFFER_BYTES = 128 * 1024
SEND_HIGH_WATER_BYTES = 64 * 1024
WINDOW_MIN_BYTES = 32 * 1024
"""A receiver with less room than that, and than what is there to be sent, is sent nothing."""
REBOOT_MAX_S = 30.0
"""A machine that died answers again after that time at most: that it knows of no such connection."""
ESTABLISHED, CLOSE, CLOSE_WAIT = 1, 7, 8
"""States of a connection, as Linux numbers them."""
_CALLED_LATER = frozenset({"connection_made", "connection_lost", "pause_writing", "resume_writing"})
"""Callbacks of protocols whose result no caller waits for."""


class SimSocket:
    """What `get_extra_info("socket")` answers."""

    def __init__(
        self,
        address: tuple[str, int],
        peer: tuple[str, int] | None = None,
        state: Callable[[], int] = lambda: ESTABLISHED,
    ) -> None:
        self._address = address
        self._peer = peer
        self._state = state

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

    def getsockopt(self, level: int, option: int, length: int = 0) -> bytes:
        """The state of the connection, which is all that is known of it."""
        if (level, option, length) != (socket.IPPROTO_TCP, socket.TCP_INFO, 1):
            raise NotImplementedError(f"getsockopt({level}, {option}, {length}) is not simulated")
        return bytes([self._state()])

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: SimNetwork, process: SimProcess | None, local: tuple[str, int], peer: tuple[str, int]):
        super().__init__({"sockname": local, "peername": peer, "socket": SimSocket(local, peer, self._state)})
        self._network = network
        self._loop = network.loop
        self.process = process
        self._context = contextvars.copy_context()
        self._protocol: Any = None
        self.other: SimTransport | None = None
        self.answers = False
        """Whether it is the end that was connected to."""
        self.half_open = False
        """Whether its process died without a word to the other end."""
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
        self._broken = False
        """The peer broke the connection, which is not read: it is noticed when it is read or written."""
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
        if self.is_paused() and callback.__name__ in _CALLED_LATER:
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
            if self._broken:
                self._break()
                return
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
        if self._closing or self._lost or self._is_dead() or not data:
            return
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._broken:
            self._break()
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
        """Whether its process is paused."""
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
        if self._network.partitions.lies_between(self.process, other.process):
            self._pumping = True
            self._loop.call_world(0.05, self._pump)
            return
        if self._outgoing and self._network.loses_answer(self):
            self._reset(ConnectionResetError(104, "Connection reset by peer"))
            return
        room = RECEIVE_BUFFER_BYTES - len(other._incoming) - self._under_way
        if room < min(len(self._outgoing), WINDOW_MIN_BYTES):
            room = 0  # else one small segment after the other would take the place of another, for ever
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
        if other.half_open:
            self._loop.call_world(self._network.random.random() ** 2 * REBOOT_MAX_S, self.receive_reset)
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
        if self._reading or self._closing or self._outgoing:
            self._break()
        else:
            self._broken = True

    def _break(self) -> None:
        self._reset(ConnectionResetError(104, "Connection reset by peer"), tell=False)

    def _state(self) -> int:
        if self._broken or self._lost:
            return CLOSE
        return CLOSE_WAIT if self._eof_pending else ESTABLISHED

    def _lose_soon(self, error: BaseException | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_world(0, self._lose, error)

    def _lose(self, error: BaseException | None) -> None:
        self._network.forget(self)
        if self._protocol is not None:  # None: a process that was paused never heard of the connection
            self.run(self._protocol.connection_lost, error)
