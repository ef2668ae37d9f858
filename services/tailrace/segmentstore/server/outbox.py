"""Sends the replies and acknowledgements of a connection, one write per turn of the loop.

See docs/performance.md#append-blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.wire.codec import encode, encode_data_appended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tailrace.segmentstore.server.unsent import UnsentReplies
    from tailrace.segmentstore.server.writers import WriterState
    from tailrace.wire.commands import Command

_NOTHING = contextlib.nullcontext()
"""Most requests reserve nothing."""


class Outbox:
    """The send side of one connection, bounded by `limits.SEND_BUFFER_HIGH_BYTES` and one reply.

    ``unsent`` bounds all connections together; `cut_off` ends the connection at once with a reason.

    Acknowledgements are cumulative: all appends of a writer that commit in one turn get one ``DataAppended``. It is
    encoded at the end of the turn, or earlier when another frame is sent, so that it stays before later replies.
    """

    __slots__ = (
        "_acks",
        "_flush_scheduled",
        "_frames",
        "_handed_bytes",
        "_held_bytes",
        "_loop",
        "_queued_bytes",
        "_reserved_bytes",
        "_room",
        "_shared",
        "_transport",
        "_transport_full",
        "cut_off",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.WriteTransport,
        unsent: UnsentReplies,
        cut_off: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = transport
        self._shared = unsent
        self._frames: list[bytes] = []
        self._queued_bytes = 0
        self._handed_bytes = 0
        self._held_bytes = 0  # unsent bytes of the transport, when last asked
        self._reserved_bytes = 0
        self._acks: list[WriterState] = []
        self._flush_scheduled = False
        self._transport_full = False
        self._room: asyncio.Future[None] | None = None
        self.cut_off = cut_off
        transport.set_write_buffer_limits(high=limits.SEND_BUFFER_HIGH_BYTES)

    def is_full(self, reply_bytes: int = limits.FRAME_MAX_BYTES) -> bool:
        """Return whether unsent bytes, of this peer or of all, are too many to add a reply of that size."""
        if self._transport_full:
            return True
        if reply_bytes > limits.SEND_GATHER_BYTES:
            return not self._shared.has_room(holds_nothing=not (self._held_bytes or self._reserved_bytes))
        if self._shared.has_room_for_small():
            return False
        return reply_bytes > limits.REPLY_FREE_BYTES or self.unsent()[0] > 0

    def reply(self, command: Command) -> None:
        """Send a command. Raises BadRequestError, and sends nothing, when it does not fit into a frame."""
        self.send(encode(command))

    def send(self, frame: bytes) -> None:
        """Send an encoded frame."""
        if self._transport is None:
            return
        self.settle_acks()
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        if self._queued_bytes >= limits.SEND_GATHER_BYTES:
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def acknowledge(self, writer: WriterState) -> None:
        """Acknowledge the writer's `last_acked` at the end of this turn."""
        if not writer.ack_waiting and self._transport is not None:
            writer.ack_waiting = True
            self._acks.append(writer)
            if not self._flush_scheduled:
                self._flush_scheduled = True
                self._loop.call_soon(self._flush_turn)

    def settle_acks(self) -> None:
        """Encode the pending acknowledgements: later appends of those writers get their own."""
        if not self._acks:
            return
        acks, self._acks = self._acks, []
        for writer in acks:
            frame = encode_data_appended(
                writer.writer_id, writer.last_acked, writer.ack_sent, writer.ack_request_id, writer.ack_length
            )
            writer.ack_sent = writer.last_acked
            writer.ack_waiting = False
            self._frames.append(frame)
            self._queued_bytes += len(frame)

    def flush(self) -> None:
        """Write everything now."""
        self.settle_acks()
        transport = self._transport
        if self._frames and transport is not None:
            frames, self._frames = self._frames, []
            self._handed_bytes += self._queued_bytes
            self._queued_bytes = 0
            if not transport.is_closing():  # asyncio would drop the bytes and log a warning
                transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
                self._held_bytes = transport.get_write_buffer_size()
                self._shared.holds(self, self._held_bytes)

    def transport_full(self) -> None:
        """Record that the transport is above its high-water mark."""
        self._transport_full = True

    def transport_drained(self) -> None:
        """Record that the transport is below its low-water mark again."""
        self._transport_full = False
        if self._transport is not None:
            self._held_bytes = self._transport.get_write_buffer_size()
            self._shared.holds(self, self._held_bytes)
        self.room_again()

    async def room(self, reply_bytes: int = 0) -> None:
        """Wait until a reply of that size may be sent, or the connection closes."""
        while self._transport is not None and self.is_full(reply_bytes):
            if not self._transport_full:
                self._shared.wait(self, is_small=reply_bytes <= limits.SEND_GATHER_BYTES)
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def reserved(self, length_bytes: int) -> AbstractContextManager[None]:
        """Count a reply of at most that size as unsent while the handler makes it."""
        return self._reserved(length_bytes) if length_bytes else _NOTHING

    @contextlib.contextmanager
    def _reserved(self, length_bytes: int) -> Iterator[None]:
        self._reserved_bytes += length_bytes
        self._shared.reserve(length_bytes)
        try:
            yield
        finally:
            self._reserved_bytes -= length_bytes
            self._shared.release(length_bytes)

    def unsent(self) -> tuple[int, int]:
        """See `Sender`."""
        transport = self._transport
        return (0 if transport is None else transport.get_write_buffer_size()), self._handed_bytes

    def room_again(self) -> None:
        """Wake the waiters of `room`."""
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    def close(self) -> None:
        """Send nothing more."""
        self._transport = None
        self._frames.clear()
        self._acks.clear()
        self._shared.forget(self)
        self.room_again()

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self.flush()
