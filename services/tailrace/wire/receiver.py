"""The receive buffer of a connection, without I/O (docs/design.md#receive, docs/performance.md#append-blocks).

Bytes are received and frames found in place. An append block stays in place until its end is received, so its bytes are
copied once, by the container. Buffers come from a pool and return to it when nothing is pending: idle connections hold
none, and no buffer is zeroed for a new connection. A connection that fills its buffers gets larger ones. So a busy
connection needs few system calls, and a thousand slow ones need little memory.

A large frame gets its buffer as its bytes come, not by the length in its header. But before it gets the first part, the
pool must have promised room for all of it. So every started frame can be finished, and the memory of all is bounded.
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
    """Receive buffers in sizes of powers of two, reused up to a total of bytes; one pool per event loop.

    A receiver needs a promise for a buffer above `limits.RECEIVE_BUFFER_BYTES`; all promises together are at most
    ``max_bytes``. A frame that is larger than that is received when nothing else is promised. ``on_room`` is called
    when a promise ends. While ``is_open`` returns False there are no promises: received bytes must be processed first.
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
        """Take a buffer of at least that size with arbitrary content. With very many in use, small ones are smaller."""
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
        """Return a buffer to the pool; the caller must not use it any more."""
        self._in_use -= 1
        size = len(buffer)
        if self._idle_bytes + size <= self._idle_max_bytes:
            self._idle_bytes += size
            self._idle.setdefault(size, []).append(buffer)

    def promise(self, receiver: Receiver, size: int, *, spare: bool = False) -> bool:
        """Promise the receiver a buffer of that size; ``spare``: only if half of the total remains. Return success."""
        if not self.is_open():
            return False
        others = self.promised_bytes - self.promised.get(receiver, 0)
        if others + size > (self._max_bytes // 2 if spare else self._max_bytes) and (spare or others):
            return False
        self.promised[receiver] = size
        self.promised_bytes = others + size
        return True

    def lower_promise(self, receiver: Receiver, size: int) -> None:
        """Lower the promise of a receiver that has a smaller buffer now; the smallest size needs no promise."""
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
    """Return the size of a buffer for so many bytes."""
    return 1 << (length_bytes - 1).bit_length()


class Receiver:
    """Finds frames in the received bytes.

    Use: `get_buffer`, fill it, `received`; then `frames` until it returns none; then `settle`. A frame's payload is in
    `view` at the returned positions until the next `get_buffer` or `settle`. To stop in the middle, `rewind` to the
    first unhandled frame; it is found again later. `hold` keeps an append block beyond that. Call `may_receive` before
    receiving more. ``owner`` identifies the connection of a promise.
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
        """The start of the held payload, -1 when none is held."""

    @property
    def view(self) -> memoryview:
        """Return the buffer that the positions of frames refer to."""
        assert self._view is not None
        return self._view

    def may_receive(self) -> bool:
        """Return whether the whole frame in receipt has room; takes a promise for it if needed."""
        if self._view is None:
            return True
        needed = self._kept_bytes() + self._missing_bytes()
        if needed <= len(self._view) or needed <= self._pool.promised.get(self, 0):
            return True
        return self._pool.promise(self, rounded(needed))

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
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
        """Record that `length` bytes were put into the buffer of the last `get_buffer`."""
        self._end += length
        self.received_bytes += length
        if self._end == len(self.view):
            self._preferred_bytes = min(2 * self._preferred_bytes, limits.RECEIVE_BUFFER_BUSY_BYTES)
        elif 8 * length < self._preferred_bytes:
            self._preferred_bytes = max(self._preferred_bytes // 2, limits.RECEIVE_BUFFER_BYTES)

    def frames(self) -> list[Frame]:
        """Return the next complete frames as (code, payload start, payload length).

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
        """Return the frame with this payload again, and all after it."""
        self._scan = payload_start - FRAME_HEADER_BYTES

    def resume_at(self, position: int) -> None:
        """Return frames again from `position`, where one begins; earlier ones were handled."""
        self._scan = position

    def hold(self, payload_start: int, length: int) -> None:
        """Keep the payload of a returned frame until `release_held`."""
        self.held_start, self._held_length = payload_start, length

    def release_held(self) -> None:
        """Release the held payload."""
        self.held_start, self._held_length = -1, 0

    def settle(self) -> None:
        """Give an empty buffer back after every returned frame was handled."""
        if self._view is not None and self._scan == self._end and self.held_start < 0:
            self._drop()

    def close(self) -> None:
        """Give the buffer back in any case."""
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
        """Return the room needed after the received bytes: for the rest of the frame, and enough for one read."""
        assert self._view is not None
        pending = self._end - self._scan
        if pending < FRAME_HEADER_BYTES:
            return limits.RECEIVE_MIN_BYTES
        length: int = FRAME_HEADER.unpack_from(self._view, self._scan)[1]
        if not 0 <= length <= PAYLOAD_MAX_BYTES:
            return limits.RECEIVE_MIN_BYTES  # `frames` refuses it when it gets there
        return max(FRAME_HEADER_BYTES + length - pending, limits.RECEIVE_MIN_BYTES)

    def _make_room(self, kept: int, missing: int) -> None:
        """Move kept bytes to the front, of a larger buffer if this one is too small for them and `missing` bytes.

        A buffer grows with the received bytes, by a factor of four.
        """
        source = self.view
        held, pending = self._held_length, self._end - self._scan
        wanted = kept + missing
        if wanted > len(source):
            wanted = min(wanted, max(4 * kept, kept + limits.RECEIVE_MIN_BYTES))
        wanted = max(wanted, self._preferred(len(source)))
        target = source if len(source) // 4 < wanted <= len(source) else self._pool.take(wanted)
        # The held block is before the pending bytes, so moving it first never overwrites them.
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
        """Return the buffer size for a connection that fills its buffers, if enough remains for others."""
        wanted = self._preferred_bytes
        if wanted <= max(size, limits.RECEIVE_BUFFER_BYTES, self._pool.promised.get(self, 0)):
            return wanted
        return wanted if self._pool.promise(self, wanted, spare=True) else limits.RECEIVE_BUFFER_BYTES
