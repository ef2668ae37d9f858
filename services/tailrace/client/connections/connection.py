"""Connect to a segment store: handshake, correlation of replies, liveness, back-pressure.

See docs/protocol/wire.md#frames, docs/protocol/wire.md#handshake.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.client.connections.left_reads import LeftReads
from tailrace.client.connections.resolve import resolve
from tailrace.common import limits
from tailrace.common.errors import (
    ConnectionLostError,
    DeadlineError,
    OverloadedError,
    ProtocolError,
    UnavailableError,
    UnsupportedError,
)
from tailrace.common.task_groups import gather_bounded
from tailrace.kernel import scan_frames
from tailrace.wire import commands as c
from tailrace.wire.codec import PAYLOAD_MAX_BYTES, decode, encode, encode_parts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from tailrace.client.connections.left_reads import ReadPlace
    from tailrace.client.types import Endpoint
    from tailrace.common.errors import TailraceError

WIRE_VERSION: Final = 16
OLDEST_WIRE_VERSION: Final = 5
_INITIAL_BUFFER_BYTES: Final = 64 * limits.KIB
_SEPARATE_WRITE_MIN_BYTES: Final = 32 * limits.KIB
_FLOW_SHIFT: Final = 32
_DATA_APPENDED: Final = struct.Struct(">16sqqqq")
_FRAMES_PER_SCAN: Final = 256
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_APPEND_HEAD: Final = struct.Struct(">ii16sii")
_APPEND_TAIL: Final = struct.Struct(">iqq")
_APPEND_FIXED_BYTES: Final = _APPEND_HEAD.size - 8 + _APPEND_TAIL.size


class AppendFlow(Protocol):
    """Callbacks for one writer on a connection. They run on the event loop and must not raise."""

    def appended(self, event_number: int, segment_length: int) -> None:
        """Handle an acknowledgement: everything up to `event_number` is durable."""
        ...

    def append_failed(self, reply: c.Command) -> None:
        """Handle a refused append; later appends were not stored either."""
        ...

    def disconnected(self, error: ConnectionLostError) -> None:
        """Handle a lost connection; outcomes of unacknowledged appends are unknown."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One connection. Create it with `connect`.

    Requests may be pipelined; request ids match replies. Appends belong to flows: the upper half of their request ids
    names the flow that gets their acknowledgements and failures.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_INITIAL_BUFFER_BYTES)
        self._start = self._end = 0
        self._pending: dict[int, asyncio.Future[c.Command]] = {}
        self._left_reads = LeftReads()
        self._flows: dict[int, AppendFlow] = {}
        self._last_request = 0
        self._last_flow = 0
        self._setups = 0
        self._retired = False
        self._hello: asyncio.Future[c.Hello] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: ConnectionLostError | None = None
        self._writable = True
        self._waiting_writers: list[Callable[[], None]] = []
        self._gathered: list[c.Buffer] = []
        self._gathered_bytes = 0
        self._flush_scheduled = False
        self._heard_at_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether requests can be made."""
        return self._error is None and self._transport is not None

    @property
    def may_set_up(self) -> bool:
        """Return whether another writer may be set up here (docs/protocol/wire.md#set-up)."""
        return self._setups < limits.SETUP_APPENDS_PER_CONNECTION_MAX

    @property
    def has_room(self) -> bool:
        """Return whether another request can be made: the server closes a connection with too many of them."""
        return len(self._pending) < limits.CLIENT_REQUESTS_IN_FLIGHT_MAX

    @property
    def left_reads(self) -> int:
        """Return the number of cancelled reads that wait at the server."""
        return len(self._left_reads)

    def has_left(self, place: ReadPlace) -> bool:
        """Return whether a cancelled read of that place waits at the server. The next one takes it over."""
        return self.is_open and place in self._left_reads

    def retire(self) -> None:
        """Close when no writer and no request uses this connection."""
        self._retired = True
        self._loop.call_soon(self._close_if_unused)

    def _close_if_unused(self) -> None:
        if self._retired and not self._flows and len(self._pending) == len(self._left_reads):
            self.abort()

    def abort(self) -> None:
        """Close at once; requests in flight fail with ConnectionLostError."""
        self._flush()
        self._lose(ConnectionLostError(f"connection to {self.endpoint} was closed"))

    async def close(self) -> None:
        """Close and wait until the transport is closed; requests in flight fail with ConnectionLostError."""
        self.abort()
        await asyncio.wait([self._closed], timeout=limits.CLIENT_CONNECT_DEADLINE_S)

    # -- requests -----------------------------------------------------------------------------------------------

    async def request(self, command: Any, deadline_s: float | None = limits.CLIENT_REPLY_DEADLINE_S) -> c.Command:
        """Send a command with a new ``request_id`` and return its reply of any kind.

        A deadline of None is for reads that wait for data: keep-alives detect a dead connection, which ends them.

        Raises:
            ConnectionLostError: the connection ended first. DeadlineError: no reply in time.
            OverloadedError: it `has_room` no more.
        """
        if deadline_s is None and self.has_left(place := (command.segment, command.offset)):
            return await self._read(place, *self._left_reads.take(place), is_new=False)
        if not self.has_room:
            raise OverloadedError(
                f"{len(self._pending)} requests are in flight to {self.endpoint}, which is the maximum"
            )
        self._last_request = self._last_request % 0x7FFFFFFF + 1
        command.request_id = request_id = self._last_request
        if isinstance(command, c.SetupAppend):
            self._setups += 1
        future: asyncio.Future[c.Command] = self._loop.create_future()
        self._check_open()
        parts = encode_parts(command)
        self._pending[request_id] = future
        if deadline_s is None:
            self._write(parts)
            return await self._read((command.segment, command.offset), request_id, future, is_new=True)
        try:
            self._write(parts)
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError as error:
            raise DeadlineError(f"segment store {self.endpoint} did not answer within {deadline_s:g} s") from error
        finally:
            self._pending.pop(request_id, None)
            if self._retired:
                self._loop.call_soon(self._close_if_unused)  # the caller of this set-up may register a writer now

    async def request_all(
        self, commands: Sequence[Any], deadline_s: float | None = limits.CLIENT_REPLY_DEADLINE_S
    ) -> list[c.Command | TailraceError]:
        """Send commands, several at a time, and return the reply of each, or the error of one without a reply."""

        async def one(command: Any) -> c.Command | TailraceError:
            try:
                return await self.request(command, deadline_s)
            except UnavailableError as error:
                return error

        return await gather_bounded(commands, one)

    async def _read(
        self, place: ReadPlace, request_id: int, future: asyncio.Future[c.Command], *, is_new: bool
    ) -> c.Command:
        """Read. A cancelled read stays at the server until data come: the next one of the same place takes it over."""
        try:
            return await asyncio.shield(future)
        except BaseException:
            if not future.done():
                self._left_reads.add(place, request_id, future)
                if is_new:  # once for each request: polls may go on for days
                    future.add_done_callback(lambda done: self._drop_read(place, request_id, done))
            raise
        finally:
            if future.done():
                self._pending.pop(request_id, None)
            if self._retired:
                self._loop.call_soon(self._close_if_unused)

    def _drop_read(self, place: ReadPlace, request_id: int, future: asyncio.Future[c.Command]) -> None:
        """Forget a read that had no waiter when it ended."""
        if not future.cancelled():
            future.exception()
        if self._left_reads.discard(place, request_id):
            self._pending.pop(request_id, None)

    def open_flow(self, flow: AppendFlow) -> int:
        """Register a writer; return the number for the upper half of its request ids."""
        self._last_flow += 1
        self._flows[self._last_flow] = flow
        return self._last_flow

    def close_flow(self, number: int) -> None:
        """Unregister a writer; drop later replies for it."""
        self._flows.pop(number, None)
        if self._retired:
            self._loop.call_soon(self._close_if_unused)

    def send(self, command: c.Command) -> None:
        """Send a command without its own reply (appends). Raises ConnectionLostError."""
        self._check_open()
        self._write(encode_parts(command))

    def send_append(self, flow: int, writer_id: bytes, data: bytes, count: int, last_number: int) -> None:
        """Send an append block of `count` events (form A). Raises ConnectionLostError.

        See docs/protocol/wire.md#appends.
        """
        self._check_open()
        length = len(data)
        head = _APPEND_HEAD.pack(c.AppendBlockEnd.CODE, _APPEND_FIXED_BYTES + length, writer_id, length, length)
        tail = _APPEND_TAIL.pack(count, last_number, flow << _FLOW_SHIFT | last_number & 0xFFFFFFFF)
        self._write((head, data, tail))

    @property
    def writable(self) -> bool:
        """Return whether the transport accepts more bytes."""
        return self._writable

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once when the transport accepts bytes again or the connection has ended."""
        if self._writable:
            self._loop.call_soon(callback)
        else:
            self._waiting_writers.append(callback)

    def _set_writable(self) -> None:
        self._writable = True
        waiting, self._waiting_writers = self._waiting_writers, []
        for callback in waiting:
            self._loop.call_soon(callback)

    def _check_open(self) -> None:
        if self._error is not None:
            raise ConnectionLostError(str(self._error))

    def _write(self, parts: Sequence[c.Buffer]) -> None:
        """Send the parts of a frame. Small ones leave together at the end of the event loop's turn."""
        assert self._transport is not None
        if self._transport.is_closing():
            return  # `connection_lost` follows; asyncio would drop the bytes too and log a warning
        for part in parts:
            if len(part) >= _SEPARATE_WRITE_MIN_BYTES:
                self._flush()
                self._transport.write(part)
            else:
                self._gathered.append(part)
                self._gathered_bytes += len(part)
        if self._gathered_bytes >= limits.SEND_GATHER_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(gathered))

    # -- protocol -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send Hello at once (docs/protocol/wire.md#handshake)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._error is not None:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=limits.CLIENT_WRITE_BUFFER_MAX_BYTES)
        transport.write(encode(c.Hello(WIRE_VERSION, OLDEST_WIRE_VERSION)))
        self._timer = self._loop.call_later(limits.CLIENT_KEEP_ALIVE_S, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer space after the unconsumed bytes; grow it only for a frame that does not fit."""
        if self._end == len(self._buffer):
            kept = self._end - self._start
            size = len(self._buffer) * 2 if kept > len(self._buffer) // 2 else len(self._buffer)
            fresh = bytearray(min(size, limits.FRAME_MAX_BYTES + _INITIAL_BUFFER_BYTES))
            with memoryview(self._buffer) as old:
                fresh[:kept] = old[self._start : self._end]
            self._buffer, self._start, self._end = fresh, 0, kept
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle all complete frames."""
        self._end += nbytes
        self._heard_at_s = self._loop.time()
        try:
            while self._scan() == _FRAMES_PER_SCAN:
                pass
        except (ValueError, ProtocolError) as error:
            self._lose(ConnectionLostError(f"segment store {self.endpoint} violated the wire protocol: {error}"))
        if self._start == self._end:
            self._start = self._end = 0

    def _scan(self) -> int:
        frames, self._start = scan_frames(self._buffer, self._start, self._end, PAYLOAD_MAX_BYTES, _FRAMES_PER_SCAN)
        view = memoryview(self._buffer)
        for code, position, length in frames:
            self._handle(code, view[position : position + length])
        return len(frames)

    def _handle(self, code: int, payload: memoryview) -> None:
        if code == c.DataAppended.CODE and len(payload) >= _DATA_APPENDED.size:
            _, event_number, _, request_id, length = _DATA_APPENDED.unpack_from(payload)
            flow = self._flows.get(request_id >> _FLOW_SHIFT)
            if flow is not None:
                flow.appended(event_number, length)
                return
        command = decode(code, payload)
        match command:
            case c.Hello():
                if not self._hello.done():
                    self._hello.set_result(command)
                return
            case c.KeepAlive() | c.Padding():
                return
            case c.SegmentRead():
                command.data = bytes(command.data)  # the receive buffer is reused
        self._route(command, getattr(command, "request_id", -1))

    def _route(self, command: c.Command, request_id: int) -> None:
        future = self._pending.get(request_id)
        if future is not None:
            if not future.done():
                future.set_result(command)
            return
        flow = self._flows.get(request_id >> _FLOW_SHIFT)
        if flow is not None:
            flow.append_failed(command)

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self._writable = False

    def resume_writing(self) -> None:
        """Resume sending: the transport's buffer has drained."""
        self._set_writable()

    def eof_received(self) -> bool:
        """Close the connection: the peer sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests and writers that wait."""
        self._lose(ConnectionLostError(f"connection to {self.endpoint} ended: {exc or 'closed by the peer'}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def _lose(self, error: ConnectionLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is None:
            self._closed.set_result(None)
        else:
            self._transport.abort()
        self._set_writable()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(str(error)))
        if not self._hello.done():
            self._hello.set_exception(ConnectionLostError(str(error)))
            self._hello.exception()  # its caller may have been cancelled
        flows, self._flows = self._flows, {}
        for flow in flows.values():
            flow.disconnected(error)

    def _tick(self) -> None:
        """Send keep-alives on an idle connection, and close one whose peer does not answer them."""
        silent_s = self._loop.time() - self._heard_at_s
        if silent_s >= limits.CLIENT_SILENCE_MAX_S:
            self._reset_at_close()
            self._lose(ConnectionLostError(f"segment store {self.endpoint} sent nothing for {silent_s:.0f} s"))
            return
        if silent_s >= limits.CLIENT_KEEP_ALIVE_S / 2 and self._transport is not None:
            self._transport.write(encode(c.KeepAlive()))
        self._timer = self._loop.call_later(limits.CLIENT_KEEP_ALIVE_S, self._tick)

    def _reset_at_close(self) -> None:
        """Let the end of the connection be a reset, which overtakes unsent bytes.

        A server that does not read, as none of its containers has room, notices a reset at once, but a common end only
        behind all bytes. These are sent again on the next connection.
        """
        if self._transport is not None and not self._transport.is_closing():
            own = self._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    async def handshake(self) -> None:
        """Wait for the peer's Hello and check the versions.

        Raises:
            UnsupportedError: the version ranges do not overlap. ConnectionLostError.
        """
        hello = await self._hello
        if hello.low_version > WIRE_VERSION or hello.high_version < OLDEST_WIRE_VERSION:
            raise UnsupportedError(
                f"segment store {self.endpoint} supports wire versions {hello.low_version} to {hello.high_version},"
                f" this client {OLDEST_WIRE_VERSION} to {WIRE_VERSION}"
            )


async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None = None, server_name: str | None = None) -> Connection:
    """Open a connection with its handshakes; with `tls` the certificate must name the host or `server_name`.

    Raises:
        ConnectionLostError: not reachable, or no Hello in time. UnsupportedError: no common version.
    """
    connection = Connection(endpoint)
    try:
        async with asyncio.timeout(limits.CLIENT_CONNECT_DEADLINE_S):
            await _reach(connection, tls, server_name)
            await connection.handshake()
    except TimeoutError as error:
        connection.abort()
        raise ConnectionLostError(f"segment store {endpoint} does not answer") from error
    except OSError as error:
        raise ConnectionLostError(f"segment store {endpoint} is not reachable: {error}") from error
    except BaseException:
        connection.abort()
        raise
    return connection


async def _reach(connection: Connection, tls: ssl.SSLContext | None, server_name: str | None) -> None:
    """Connect to the first of the endpoint's addresses that accepts a connection. Raises OSError."""
    endpoint = connection.endpoint
    name = server_name or endpoint.host if tls is not None else None
    refusal = OSError("the host name has no address")
    for host, port in await resolve(endpoint.host, endpoint.port):
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, host, port, ssl=tls, server_hostname=name
            )
            return
        except OSError as error:
            refusal = error
    raise refusal
