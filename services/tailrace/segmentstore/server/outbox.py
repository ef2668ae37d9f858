"""What a connection sends: replies and acknowledgements, in one write per turn of the loop (performance §6 rule 2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.wire.codec import encode, encode_data_appended

if TYPE_CHECKING:
    from tailrace.segmentstore.server.writers import WriterState
    from tailrace.wire.commands import Command


class Outbox:
    """The send side of one connection, bounded by `limits.SEND_BUFFER_HIGH_BYTES` and one reply.

    Acknowledgements are cumulative: however many appends of a writer commit in a turn, one ``DataAppended`` goes out.
    They are made when something else is sent or at the end of the turn, so that they keep their place before later
    replies.
    """

    __slots__ = (
        "_acks",
        "_flush_scheduled",
        "_frames",
        "_loop",
        "_queued_bytes",
        "_room",
        "_transport",
        "_transport_full",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = transport
        self._frames: list[bytes] = []
        self._queued_bytes = 0
        self._acks: list[WriterState] = []
        self._flush_scheduled = False
        self._transport_full = False
        self._room: asyncio.Future[None] | None = None
        transport.set_write_buffer_limits(high=limits.SEND_BUFFER_HIGH_BYTES)

    @property
    def full(self) -> bool:
        """Whether the peer does not take what is sent: nothing large should be added."""
        return self._transport_full

    def reply(self, command: Command) -> None:
        """Send a command. Raises BadRequestError when it does not fit into a frame; nothing is sent then."""
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
        """Make the acknowledgements that wait: later appends of those writers get their own."""
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
        if self._frames and self._transport is not None:
            frames, self._frames, self._queued_bytes = self._frames, [], 0
            if not self._transport.is_closing():  # else asyncio drops the bytes, and complains
                self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def transport_full(self) -> None:
        """The transport is above its high-water mark."""
        self._transport_full = True

    def transport_drained(self) -> None:
        """The transport is below its low-water mark again."""
        self._transport_full = False
        self._wake()

    async def room(self) -> None:
        """Wait until something large may be sent, or the connection is closed."""
        while self._transport_full and self._transport is not None:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def close(self) -> None:
        """Send nothing more."""
        self._transport = None
        self._frames.clear()
        self._acks.clear()
        self._wake()

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
