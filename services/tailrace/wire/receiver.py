"""The receive buffer of a connection, sans I/O (design §3.1, performance §6 rule 1).

Bytes are received in place, frames are found in place, and an append block stays where it is until its end has come, so
that its bytes are copied once, by whoever takes the append. Buffers come from a pool and go back to it whenever nothing
is pending: idle connections hold none, and no buffer is zeroed for a new connection. A connection that fills its
buffers gets larger ones, so that a busy one needs few system calls and a thousand slow ones little memory.

A large frame gets its room as its bytes come, never for what its header says; but before it gets the first of it, the
pool must have promised all of it. So the frames that were begun can be finished, and the memory of all is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import ProtocolError
from tailrace.kernel import scan_frames
from tailrace.wire.codec import FRAME_HEADER, FRAME_HEADER_BYTES, PAYLOAD_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Frame: TypeAlias = tuple[int, int, int]

_SCAN_FRAMES_MAX: Final = 64  # frames found at once; bounds what is found again after a stop


class BufferPool:
    """Receive buffers in sizes of powers of two, kept for reuse up to a total of bytes; one pool per event loop.

    What exceeds a buffer of `limits.RECEIVE_BUFFER_BYTES` is promised before, up to ``max_bytes`` for all receivers
    together; a frame that is too large for that is received when nothing else is promised. ``on_room`` is called when a
    promise ends. While ``is_open`` says no, nothing is promised: what was received has to be worked off first.
    """

    def __init__(
        self,
        idle_max_bytes: int = limits.RECEIVE_POOL_IDLE_MAX_BYTES,
        max_bytes: int = limits.RECEIVE_BUFFERS_MAX_BYTES,
    ) -> None:
        self._idle_max_bytes = idle_max_bytes
        self._max_bytes = max_bytes
        self._idle_bytes = 0
        self._idle: dict[int, list[memoryview]] = {}
        self._in_use = 0
        self.promised: dict[Receiver, int] = {}
        self.promised_bytes = 0
        self.on_room: Callable[[], None] | None = None
        self.is_open: Callable[[], bool] = _always

    @property
    def idle_bytes(self) -> int:
        """Return the bytes of unused buffers. The tests check that they are bounded."""
        return self._idle_bytes

    def take(self, length_bytes: int) -> memoryview:
        """A buffer of at least that size; its content is arbitrary. When very many are in use, small ones are small."""
        many = self._in_use >= limits.RECEIVE_BUFFERS_MANY
        smallest = limits.RECEIVE_MIN_BYTES if many else limits.RECEIVE_BUFFER_BYTES
        size = max(smallest, rounded(length_bytes))
        self._in_use += 1
        idle = self._idle.get(size)
        if idle:
            self._idle_bytes -= size
            return idle.pop()
        return memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Return a buffer; nothing may look into it any more."""
        self._in_use -= 1
        size = len(buffer)
        if self._idle_bytes + size <= self._idle_max_bytes:
            self._idle_bytes += size
            self._idle.setdefault(size, []).append(buffer)

    def promise(self, receiver: Receiver, size: int, *, spare: bool = False) -> bool:
        """Let the receiver have a buffer of that size, whenever it needs it; ``spare``: only if half would be left."""
        if not self.is_open():
            return False
        others = self.promised_bytes - self.promised.get(receiver, 0)
        if others + size > (self._max_bytes // 2 if spare else self._max_bytes) and (spare or others):
            return False
        self.promised[receiver] = size
        self.promised_bytes = others + size
        return True

    def lower_promise(self, receiver: Receiver, size: int) -> None:
        """The receiver has a smaller buffer now; one that everybody has needs no promise."""
        before = self.promised.pop(receiver, 0)
        after = min(before, size) if size > limits.RECEIVE_BUFFER_BYTES else 0
        if after:
            self.promised[receiver] = after
        self.promised_bytes -= before - after
        if after < before and self.on_room is not None:
            self.on_room()


def _always() -> bool:
    return True


def rounded(length_bytes: int) -> int:
    """The size of a buffer for so many bytes."""
    return 1 << (length_bytes - 1).bit_length()


class Receiver:
    """Finds frames in what was received.

    Use: `get_buffer`, fill it, `received`; then `frames` until it returns none; then `settle`. A frame's payload lies
    in `view` at the positions given until the next `get_buffer` or `settle`. To stop in the middle, `rewind` to the
    first frame that was not handled; it is found again later. `hold` keeps an append block beyond that.
    Before more is received, ask `may_receive`. ``owner`` is for whoever looks through the pool's promises.
    """

    __slots__ = (
        "_end",
        "_held_length",
        "_pool",
        "_preferred_bytes",
        "_scan",
        "_view",
        "held_start",
        "owner",
        "received_bytes",
        "received_frames",
    )

    def __init__(self, pool: BufferPool, owner: Any = None) -> None:
        self._pool = pool
        self.owner = owner
        self.received_bytes = 0
        self.received_frames = 0
        self._preferred_bytes = limits.RECEIVE_BUFFER_BYTES
        self._view: memoryview | None = None
        self._scan = 0  # first byte not yet handed out as a frame
        self._end = 0  # end of what was received
        self._held_length = 0
        self.held_start = -1
        """Where the held payload begins now, -1 when none is held."""

    @property
    def view(self) -> memoryview:
        """The buffer that the positions of frames refer to."""
        assert self._view is not None
        return self._view

    @property
    def pending_bytes(self) -> int:
        """Received bytes that were not handed out as frames yet."""
        return self._end - self._scan

    def may_receive(self) -> bool:
        """Whether there is room, or is promised now, for the whole of the frame that is under way."""
        if self._view is None:
            return True
        needed = self._kept_bytes() + self._missing_bytes()
        if needed <= len(self._view) or needed <= self._pool.promised.get(self, 0):
            return True
        return self._pool.promise(self, rounded(needed))

    def get_buffer(self) -> memoryview:
        """Where to receive next; never empty."""
        if self._view is None:
            wanted = self._preferred(0)
            self._view = self._pool.take(wanted if wanted > limits.RECEIVE_BUFFER_BYTES else 1)
            return self._view
        size = len(self._view)
        room = size - self._end
        missing, kept = self._missing_bytes(), self._kept_bytes()
        if room < min(missing, limits.RECEIVE_MIN_BYTES) or (2 * room < size and 4 * kept <= size):
            self._make_room(kept, missing)
        return self._view[self._end :]

    def received(self, length: int) -> None:
        """`length` bytes were put into the buffer of the last `get_buffer`."""
        self._end += length
        self.received_bytes += length
        if self._end == len(self.view):
            self._preferred_bytes = min(2 * self._preferred_bytes, limits.RECEIVE_BUFFER_BUSY_BYTES)
        elif 8 * length < self._preferred_bytes:
            self._preferred_bytes = max(self._preferred_bytes // 2, limits.RECEIVE_BUFFER_BYTES)

    def frames(self) -> list[Frame]:
        """The next complete frames as (code, payload start, payload length).

        Raises:
            ProtocolError: a length is negative or above the largest frame.
        """
        if self._view is None:
            return []
        try:
            frames, self._scan = scan_frames(self._view, self._scan, self._end, PAYLOAD_MAX_BYTES, _SCAN_FRAMES_MAX)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        self.received_frames += len(frames)
        return frames

    def rewind(self, payload_start: int) -> None:
        """Hand out the frame with this payload again, and all after it."""
        self._scan = payload_start - FRAME_HEADER_BYTES

    def resume_at(self, position: int) -> None:
        """Hand out frames again from `position`, where one begins; what is before it was handled."""
        self._scan = position

    def hold(self, payload_start: int, length: int) -> None:
        """Keep the payload of a frame that was handed out until `release_held`."""
        self.held_start, self._held_length = payload_start, length

    def release_held(self) -> None:
        """The held payload is not needed any more."""
        self.held_start, self._held_length = -1, 0

    def settle(self) -> None:
        """Every frame handed out was handled: give the buffer back if it holds nothing more."""
        if self._view is not None and self._scan == self._end and self.held_start < 0:
            self._drop()

    def close(self) -> None:
        """Give the buffer back whatever it holds."""
        self.release_held()
        if self._view is not None:
            self._drop()

    def _drop(self) -> None:
        assert self._view is not None
        self._pool.give(self._view)
        self._view = None
        self._scan = self._end = 0
        self._pool.lower_promise(self, 0)

    def _kept_bytes(self) -> int:
        return self._end - self._scan + self._held_length

    def _missing_bytes(self) -> int:
        """Room wanted after the received bytes: the rest of the frame under way, and never too little for one read."""
        assert self._view is not None
        pending = self._end - self._scan
        if pending < FRAME_HEADER_BYTES:
            return limits.RECEIVE_MIN_BYTES
        length: int = FRAME_HEADER.unpack_from(self._view, self._scan)[1]
        if not 0 <= length <= PAYLOAD_MAX_BYTES:
            return limits.RECEIVE_MIN_BYTES  # refused by `frames` as soon as it looks there
        return max(FRAME_HEADER_BYTES + length - pending, limits.RECEIVE_MIN_BYTES)

    def _make_room(self, kept: int, missing: int) -> None:
        """Move what must stay to the front, in a larger buffer if this one is too small for it and `missing` bytes.

        A buffer grows with what was received, by a factor of four.
        """
        source = self.view
        held, pending = self._held_length, self._end - self._scan
        wanted = kept + missing
        if wanted > len(source):
            wanted = min(wanted, max(4 * kept, kept + limits.RECEIVE_MIN_BYTES))
        wanted = max(wanted, self._preferred(len(source)))
        target = source if len(source) // 4 < wanted <= len(source) else self._pool.take(wanted)
        # The held block lies before the pending bytes, so moving it first never overwrites them.
        if held:
            target[:held] = source[self.held_start : self.held_start + held]
            self.held_start = 0
        target[held : held + pending] = source[self._scan : self._end]
        self._scan, self._end = held, held + pending
        if target is not source:
            self._pool.give(source)
            self._view = target
            if len(target) < len(source):
                self._pool.lower_promise(self, len(target))

    def _preferred(self, size: int) -> int:
        """What a connection that fills its buffers should have, if that leaves enough for others."""
        wanted = self._preferred_bytes
        if wanted <= max(size, limits.RECEIVE_BUFFER_BYTES, self._pool.promised.get(self, 0)):
            return wanted
        return wanted if self._pool.promise(self, wanted, spare=True) else limits.RECEIVE_BUFFER_BYTES
