"""One connection of the segment store protocol: passes frames to their processors.

See docs/design.md#receive, docs/protocol/wire.md#frames, docs/protocol/wire.md#handshake.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.auth import Principal
from tailrace.common.errors import ProtocolError
from tailrace.segmentstore.server.appends import AppendProcessor
from tailrace.segmentstore.server.gone_peers import has_gone
from tailrace.segmentstore.server.outbox import Outbox
from tailrace.segmentstore.server.requests import RequestProcessor
from tailrace.wire import commands as c
from tailrace.wire.appends import (
    APPEND_BLOCK,
    APPEND_BLOCK_END,
    CONDITIONAL_APPEND,
    CONDITIONAL_BLOCK_END,
    BlockAssembler,
    decode_conditional,
)
from tailrace.wire.codec import decode, encode
from tailrace.wire.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.segmentstore.server.context import ServerContext

WIRE_VERSION: Final = 16
"""The version that the server announces; 17 would make newer clients use features that it lacks.

See docs/protocol/wire.md#handshake.
"""

OLDEST_WIRE_VERSION: Final = 5

_DROPPED: Final = memoryview(bytearray(limits.RECEIVE_BUFFER_BYTES))
"""Takes what connections receive that end already: with TLS they read until their peers have ended, too."""
_KEEP_ALIVE_FRAME: Final = encode(c.KeepAlive())
_KEEP_ALIVE: Final = c.KeepAlive.CODE
_PADDING: Final = c.Padding.CODE


# Why a connection is not read for now; plain numbers, because the code tests them once per frame.
_STOP_CONTAINER: Final = 1  # an append waits for room in its container
_STOP_BUDGET: Final = 2  # too many bytes in flight
_STOP_SENDING: Final = 4  # the peer does not take its replies
_STOP_RECEIVING: Final = 8  # the receive buffers have no room for the rest of the frame


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one client. Calls `made` when the connection is open, `gone` when it has ended.

    While any reason to stop is set, the connection neither reads nor decodes. It handles the remaining frames when the
    last reason ends.
    """

    def __init__(
        self, context: ServerContext, made: Callable[[Connection], None], gone: Callable[[Connection], None]
    ) -> None:
        self._context = context
        self._made = made
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._receiver = Receiver(context.receiving.pool, self)
        self._assembler = BlockAssembler()
        self._budget = context.in_flight.connection(self._has_room)
        self._stops = 0
        self._closing = False
        self._waiting_frame_end = -1
        self._cut_off: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.principal = Principal(str(peer))
        self._outbox = Outbox(self._loop, transport, self._context.unsent, self.cut_off)
        self._appends = AppendProcessor(self._context, self._outbox, self._budget, self.fail)
        host = str(peer[0] if isinstance(peer, tuple) else peer)
        self._requests = RequestProcessor(self._context, self.principal, host, self._outbox, self._budget, self.fail)
        self._made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what only this connection needs."""
        self._closing = True
        if self._cut_off is not None:
            self._cut_off.cancel()
        self._budget.close()
        self._appends.close()
        self._outbox.close()
        self._requests.close()
        self._receiver.close()
        self._context.receiving.forget(self)
        self._context.gone_peers.forget(self)
        self._gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next received bytes."""
        return self._receiver.get_buffer() if not self._closing else _DROPPED

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames of newly received bytes. While the connection ends they are dropped."""
        if self._closing:
            return
        self._receiver.received(nbytes)
        if not self._stops:
            self._drain()

    def eof_received(self) -> bool:
        """Let the transport close after what is queued: the peer sends no more."""
        return False

    @property
    def is_read(self) -> bool:
        """Return whether the server reads this connection, so that only the peer can delay a frame."""
        return not self._stops

    def makes_room(self) -> bool:
        """Let an idle connection give way to this new one; return whether one did."""
        return self._context.places.make_room(self._requests)

    def end_if_peer_gone(self) -> bool:
        """Do what `eof_received` does, for a connection that is not read; return whether it ends."""
        if not self._closing and has_gone(self._transport):
            self.end()
        return self._closing

    def room_to_receive(self) -> bool:
        """Resume receiving if there is room; return whether there was."""
        if self._closing or not self._receiver.may_receive():
            return self._closing
        self._resume(_STOP_RECEIVING)
        return True

    def pause_writing(self) -> None:
        """Stop replying and reading while the peer does not take replies."""
        self._outbox.transport_full()
        self._stop(_STOP_SENDING)

    def resume_writing(self) -> None:
        """Resume when the peer takes replies again."""
        self._outbox.transport_drained()
        self._resume(_STOP_SENDING)

    def fail(self, reason: str, error: Exception | None = None, *, logged: bool = False) -> None:
        """Send what is queued and close the connection. Log the reason in one line unless it is `logged` already."""
        if self._closing:
            return
        if not logged:
            self._context.log.warning("connection closed", peer=self.principal.address, reason=reason, exc_info=error)
        self.end()

    def cut_off(self, reason: str) -> None:
        """Close the connection at once and drop what is queued. Log the reason in one line."""
        if not self._closing:
            self._context.log.warning("connection closed", peer=self.principal.address, reason=reason)
            self._closing = True
        self._transport.abort()

    def end(self) -> None:
        """Send what is queued and close, at most ``limits.CLOSE_FLUSH_DEADLINE_S`` later."""
        self._closing = True
        self._context.places.leave(self._requests)
        self._outbox.flush()
        self._transport.close()
        if self._stops:  # TLS ends when it has read the end of the peer, which is not read
            self._transport.resume_reading()
        if self._cut_off is None:
            self._cut_off = self._loop.call_later(limits.CLOSE_FLUSH_DEADLINE_S, self._transport.abort)

    # -- frames -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Handle the received frames until a reason to stop is set."""
        receiver = self._receiver
        try:
            while self._stops == 0 and not self._closing and (frames := receiver.frames()):
                view = receiver.view
                for code, start, length in frames:
                    self._frame(code, view, start, length)
                    if self._stops != 0 or self._closing:
                        self._stopped_after(start, length)
                        break
            if not self._stops & _STOP_CONTAINER:
                receiver.settle()
            if not self._stops and not self._closing and not receiver.may_receive():
                self._stop(_STOP_RECEIVING)
                self._context.receiving.wait(self)
        except ProtocolError as error:
            self.fail(str(error))
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}", error)

    def _stopped_after(self, start: int, length: int) -> None:
        """Leave the frames behind this one for later; also this one when its append waits for room."""
        if self._stops & _STOP_CONTAINER:
            self._receiver.rewind(start)
            self._waiting_frame_end = start + length
        else:
            self._receiver.resume_at(start + length)

    def _frame(self, code: int, view: memoryview, start: int, length: int) -> None:
        if code == APPEND_BLOCK_END:
            self._append_block_end(view, start, length)
        elif code == APPEND_BLOCK:
            self._appends.check_writer(self._assembler.begin(view, start, length))
            self._receiver.hold(start, length)
        elif code == _KEEP_ALIVE:
            self._outbox.send(_KEEP_ALIVE_FRAME)
        elif code in (CONDITIONAL_APPEND, CONDITIONAL_BLOCK_END):
            self._assembler.refuse_open_block()
            self._append(self._appends.append(decode_conditional(code, view, start, length)))
        elif code != _PADDING:
            self._command(decode(code, view[start : start + length]), length)

    def _append_block_end(self, view: memoryview, start: int, length: int) -> None:
        append = self._assembler.end(view, start, length, self._receiver.held_start)
        self._append(self._appends.append(append))

    def _append(self, waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None:
            waiter.add_done_callback(self._try_again)
            self._stop(_STOP_CONTAINER)
            return
        if self._receiver.held_start >= 0:
            self._assembler.close()
            self._receiver.release_held()
        if self._budget.must_wait():
            self._stop(_STOP_BUDGET)

    def _command(self, command: c.Command, length: int) -> None:
        if isinstance(command, c.Hello):
            self._hello(command)
            return
        if isinstance(command, c.SetupAppend):
            self._requests.start_setup(command, self._appends, length)
        else:
            self._requests.start(command, length)
        if self._budget.must_wait():
            self._stop(_STOP_BUDGET)

    def _hello(self, command: c.Hello) -> None:
        self._outbox.send(encode(c.Hello(WIRE_VERSION, self._context.oldest_version)))
        if command.low_version > WIRE_VERSION or command.high_version < OLDEST_WIRE_VERSION:
            self.fail(f"the peer speaks versions {command.low_version} to {command.high_version}")

    # -- stop and resume ----------------------------------------------------------------------------------------------

    def _stop(self, why: int) -> None:
        if not self._stops and not self._closing:
            self._transport.pause_reading()
            self._context.gone_peers.stopped(self)
        self._stops |= why

    def _resume(self, why: int) -> None:
        self._stops &= ~why
        if not self._stops and not self._closing:
            self._transport.resume_reading()
            self._context.gone_peers.resumed(self)
            # Deferred: this may be called while a container commits.
            self._loop.call_soon(self._drain_rest)

    def _drain_rest(self) -> None:
        if not self._stops and not self._closing:
            self._drain()

    def _has_room(self) -> None:
        self._resume(_STOP_BUDGET)

    def _try_again(self, waiter: asyncio.Future[None]) -> None:
        """Submit the waiting append again: the container may have room now."""
        if self._closing:
            return
        if not waiter.cancelled() and (error := waiter.exception()) is not None:
            self.fail(f"waiting for room failed: {error}")
            return
        try:
            again = self._appends.resubmit()
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}", error)
            return
        self._append(again)
        if again is None:
            self._receiver.resume_at(self._waiting_frame_end)
            self._resume(_STOP_CONTAINER)
