"""The streaming cache in pure Python (the twin of ``_cache.pyx``).

It follows "Yet Another Cache but for the Streaming World". Memory is a fixed number of buffers of 2 MiB, mapped
and touched at construction, each cut into 512 blocks of 4 KiB. Block 0 of a buffer holds the metadata of the others.
An entry is a chain of blocks, each pointing to the one before it; the address of its last block is the address of the
entry, so an append finds its place at once: in the last block while there is room, then in new blocks. Only the last
block of an entry is ever partly filled. Free blocks are chained within their buffer; buffers that have any stand in a
queue, new blocks come from its first.

Added to it: *reservations* set blocks aside so that a later insert or append cannot fail for space
(docs/design.md#write-path), and *views* pin the blocks of an entry, so that a deletion gives them back only after their
last view is released (docs/design.md#cache). Every call is atomic: it raises before it changes anything. Not safe for
use from several threads at once.
"""

from __future__ import annotations

import mmap
import warnings
from collections import deque
from typing import TYPE_CHECKING, Self

from tailrace.kernel._buffers import byte_view
from tailrace.kernel._cache_common import (
    BLOCK_BYTES,
    BLOCKS_PER_BUFFER,
    BUFFER_BYTES,
    PINS_MAX,
    USABLE_BLOCKS_PER_BUFFER,
    CacheFullError,
    CacheSnapshot,
    blocks_needed,
    buffers_for,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer

_BLOCK_BITS = 9
_BLOCK_MASK = BLOCKS_PER_BUFFER - 1
_POINTER_MASK = (1 << 32) - 1
_LENGTH_SHIFT = 32
_LENGTH_MASK = (1 << 13) - 1
_USED = 1 << 45
_LAST = 1 << 46
_DELETED = 1 << 47
_PIN_SHIFT = 48
_PIN_ONE = 1 << _PIN_SHIFT


def _stored(slot: int) -> int:
    return slot >> _LENGTH_SHIFT & _LENGTH_MASK


def _last_block_length(entry_length: int) -> int:
    return (entry_length - 1) % BLOCK_BYTES + 1 if entry_length > 0 else 0


class CacheView:
    """The content of an entry at one moment, without a copy, pinned until ``release`` (or the end of ``with``).

    Appends to the entry go on meanwhile but do not show. A view that is dropped unreleased releases itself with a
    ResourceWarning.
    """

    _cache: BlockCache | None = None

    def __init__(self, cache: BlockCache, address: int, buffers: list[memoryview], length: int) -> None:
        """For the cache alone: ``BlockCache.view`` makes views."""
        self._cache = cache
        self._address = address
        self._buffers = buffers
        self._length = length

    @property
    def buffers(self) -> list[memoryview]:
        """Read-only memory in order; neighbouring blocks may share one. Raises ValueError once released."""
        if self._cache is None:
            raise ValueError("the view was released")
        return list(self._buffers)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._cache is None

    def __len__(self) -> int:
        """Length of the content in bytes (known after the release too)."""
        return self._length

    def tobytes(self) -> bytes:
        """A copy of the content. Raises ValueError once released."""
        return b"".join(self.buffers)

    def release(self) -> None:
        """Unpins the blocks and ends the use of the buffers; does nothing the second time.

        Raises BufferError, and keeps the pins, while something still holds an export of one of the buffers.
        """
        if self._cache is None:
            return
        for buffer in self._buffers:
            buffer.release()
        self._buffers = []
        cache, self._cache = self._cache, None
        cache._unpin(self._address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if self._cache is not None:
            try:
                warnings.warn(
                    f"a view of cache entry {self._address:#x} was never released", ResourceWarning, stacklevel=1
                )
            finally:
                self.release()


class BlockCache:
    """The cache; see the module's documentation for the layout.

    Raised everywhere: ValueError for an address that is no entry's (never given out, deleted, or grown by an append
    since) and for lengths and offsets that do not fit; TypeError and BufferError for data that is no contiguous buffer.
    """

    def __init__(self, max_bytes: int) -> None:
        """Takes as many whole buffers as fit in ``max_bytes`` and touches every page of them.

        Raises ValueError if not one fits or more than 16 TiB are asked for, OSError if the system refuses the memory.
        """
        count = buffers_for(max_bytes)
        self._buffer_count = count
        self._data: list[memoryview] = []
        self._readable: list[memoryview] = []
        self._slots: list[memoryview] = []
        self._queue: deque[int] = deque(range(count))
        self._free_blocks = count * USABLE_BLOCKS_PER_BUFFER
        self._reserved_blocks = 0
        self._pinned_blocks = 0
        self._deferred_blocks = 0
        self._stored_bytes = 0
        self._entries = 0
        for _ in range(count):
            self._add_buffer()

    def _add_buffer(self) -> None:
        memory = memoryview(mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        memory[::BLOCK_BYTES] = bytes(BLOCKS_PER_BUFFER)
        slots = memory[:BLOCK_BYTES].cast("Q")
        slots[0] = USABLE_BLOCKS_PER_BUFFER << 32 | 1
        for block in range(1, USABLE_BLOCKS_PER_BUFFER):
            slots[block] = block + 1
        self._data.append(memory)
        self._readable.append(memory.toreadonly())
        self._slots.append(slots)

    # --- figures

    @property
    def max_bytes(self) -> int:
        """Memory of all buffers, metadata included: never more than what the constructor was given."""
        return self._buffer_count * BUFFER_BYTES

    @property
    def used_bytes(self) -> int:
        """All memory but the free blocks."""
        return self.max_bytes - self._free_blocks * BLOCK_BYTES

    @property
    def stored_bytes(self) -> int:
        """Bytes of data in entries."""
        return self._stored_bytes

    @property
    def free_blocks(self) -> int:
        """Free blocks, the reserved ones included."""
        return self._free_blocks

    @property
    def reserved_blocks(self) -> int:
        """Free blocks that only calls with ``reserved=True`` may take."""
        return self._reserved_blocks

    @property
    def available_blocks(self) -> int:
        """Free blocks that anyone may take or reserve."""
        return self._free_blocks - self._reserved_blocks

    @property
    def pinned_blocks(self) -> int:
        """Blocks under at least one view."""
        return self._pinned_blocks

    def snapshot(self) -> CacheSnapshot:
        """All figures of this moment."""
        return CacheSnapshot(
            max_bytes=self.max_bytes,
            used_bytes=self.used_bytes,
            stored_bytes=self._stored_bytes,
            metadata_bytes=self._buffer_count * BLOCK_BYTES,
            total_blocks=self._buffer_count * USABLE_BLOCKS_PER_BUFFER,
            free_blocks=self._free_blocks,
            reserved_blocks=self._reserved_blocks,
            pinned_blocks=self._pinned_blocks,
            deferred_blocks=self._deferred_blocks,
            entries=self._entries,
            full_buffers=self._buffer_count - len(self._queue),
        )

    # --- reservations

    def reserve(self, blocks: int) -> bool:
        """Sets free blocks aside for calls with ``reserved=True``; False, and nothing done, if there are too few.

        ``blocks_needed(length)`` is enough for one insert or append of that length. Raises ValueError if negative.
        """
        if blocks < 0:
            raise ValueError(f"a number of blocks is not negative: {blocks}")
        if blocks > self.available_blocks:
            return False
        self._reserved_blocks += blocks
        return True

    def release_reservation(self, blocks: int) -> None:
        """Gives reserved blocks back. Raises ValueError if negative or more than are reserved."""
        if not 0 <= blocks <= self._reserved_blocks:
            raise ValueError(f"cannot release {blocks} of {self._reserved_blocks} reserved blocks")
        self._reserved_blocks -= blocks

    # --- changes

    def insert(self, data: Buffer, reserved: bool = False) -> int:
        """Stores a copy of the data as a new entry and returns its address.

        ``reserved`` takes the blocks from the reservation (what it took is the fall of ``reserved_blocks``).
        Raises CacheFullError if there are too few.
        """
        view = byte_view(data)
        self._claim(blocks_needed(len(view)), reserved)
        address = self._fill(view, 0)
        self._stored_bytes += len(view)
        self._entries += 1
        return address

    def append(self, address: int, expected_length: int, data: Buffer, reserved: bool = False) -> int:
        """Adds a copy of the data at the end of an entry and returns its address from now on.

        ``expected_length`` is the length of the entry, or of its last block, as the caller knows it; a difference
        raises ValueError. The old address is no longer an entry's when the new one differs. Raises CacheFullError.
        """
        view = byte_view(data)
        slots, block, slot = self._entry(address)
        self._check_length(address, slot, expected_length)
        stored = _stored(slot)
        head = min(BLOCK_BYTES - stored, len(view))
        rest = len(view) - head
        if rest:
            self._claim(blocks_needed(rest), reserved)
        place = block * BLOCK_BYTES + stored
        self._data[address >> _BLOCK_BITS][place : place + head] = view[:head]
        slot += head << _LENGTH_SHIFT
        slots[block] = slot & ~_LAST if rest else slot
        self._stored_bytes += len(view)
        return self._fill(view[head:], address) if rest else address

    def replace(self, address: int, data: Buffer, reserved: bool = False) -> int:
        """Puts the data in place of an entry's content and returns the new address.

        The blocks of the old content are used first, except those under a view. The old entry is kept when this raises
        CacheFullError.
        """
        view = byte_view(data)
        self._entry(address)
        reusable = 0
        current = address
        while current:
            slot = self._slots[current >> _BLOCK_BITS][current & _BLOCK_MASK]
            reusable += slot < _PIN_ONE
            current = slot & _POINTER_MASK
        self._claim(max(0, blocks_needed(len(view)) - reusable), reserved)
        self.delete(address)
        new_address = self._fill(view, 0)
        self._stored_bytes += len(view)
        self._entries += 1
        return new_address

    def delete(self, address: int) -> int:
        """Removes an entry; returns the bytes of memory (whole blocks) that became free by it.

        Blocks under a view stay used, and their content unchanged, until the last such view is released.
        """
        self._entry(address)
        freed = 0
        while address:
            slots, block = self._slots[address >> _BLOCK_BITS], address & _BLOCK_MASK
            slot = slots[block]
            self._stored_bytes -= _stored(slot)
            if slot >= _PIN_ONE:
                slots[block] = (slot | _DELETED) & ~_LAST
                self._deferred_blocks += 1
            else:
                self._free(address)
                freed += BLOCK_BYTES
            address = slot & _POINTER_MASK
        self._entries -= 1
        return freed

    # --- reads

    def get_append_capacity(self, address: int) -> int:
        """Bytes that an append can add to the entry without taking a new block (0 to 4096)."""
        return BLOCK_BYTES - _stored(self._entry(address)[2])

    def read(self, address: int) -> bytes:
        """A copy of the whole content of an entry."""
        self._entry(address)
        return b"".join(self._collect(address)[0])

    def read_range(self, address: int, entry_length: int, offset: int, length: int) -> bytes:
        """A copy of part of an entry; arguments and errors as of ``copy_into``."""
        self._check_range(address, entry_length, offset, length)
        content = bytearray(length)
        self._copy(address, entry_length, offset, memoryview(content))
        return bytes(content)

    def copy_into(self, address: int, entry_length: int, offset: int, length: int, dest: Buffer) -> int:
        """Copies ``length`` bytes from ``offset`` of an entry to the start of a writable buffer; returns ``length``.

        ``entry_length`` is the length of the entry as the caller knows it: it is checked against the last block, and
        against the chain as far as that is walked (from the end to the block that holds ``offset``). Raises ValueError
        for a wrong one, for a range outside of it and for a buffer that is too small.
        """
        target = byte_view(dest, writable=True)
        self._check_range(address, entry_length, offset, length)
        if length > len(target):
            raise ValueError(f"{length} bytes do not fit in a buffer of {len(target)}")
        self._copy(address, entry_length, offset, target[:length])
        return length

    def view(self, address: int) -> CacheView:
        """The content of an entry without a copy, its blocks pinned until the view is released.

        Raises OverflowError if a block already has 65,535 views.
        """
        self._entry(address)
        buffers, blocks = self._collect(address)
        for block in blocks:
            if self._slots[block >> _BLOCK_BITS][block & _BLOCK_MASK] >> _PIN_SHIFT == PINS_MAX:
                raise OverflowError(f"block {block:#x} has {PINS_MAX} views already")
        view = CacheView(self, address, buffers, sum(map(len, buffers)))
        for block in blocks:
            slots, place = self._slots[block >> _BLOCK_BITS], block & _BLOCK_MASK
            self._pinned_blocks += slots[place] < _PIN_ONE
            slots[place] += _PIN_ONE
        return view

    # --- blocks

    def _entry(self, address: int) -> tuple[memoryview, int, int]:
        """Slots of the buffer, index and metadata of the block, after checking that it is the last of an entry."""
        buffer, block = address >> _BLOCK_BITS, address & _BLOCK_MASK
        if not 0 <= buffer < self._buffer_count or block == 0:
            raise ValueError(f"{address:#x} is no address of this cache")
        slot = self._slots[buffer][block]
        if not slot & _LAST:
            raise ValueError(f"no entry ends at {address:#x}")
        return self._slots[buffer], block, slot

    @staticmethod
    def _check_length(address: int, slot: int, expected_length: int) -> None:
        stored = _stored(slot)
        if expected_length < 0 or stored != _last_block_length(expected_length):
            raise ValueError(
                f"the last block of entry {address:#x} holds {stored} bytes: a length of {expected_length} cannot be"
            )

    def _check_range(self, address: int, entry_length: int, offset: int, length: int) -> None:
        self._check_length(address, self._entry(address)[2], entry_length)
        if offset < 0 or length < 0 or offset > entry_length - length:
            raise ValueError(f"range {offset}+{length} is outside of an entry of {entry_length} bytes")
        if entry_length > self._stored_bytes:
            raise ValueError(f"the entry is shorter than {entry_length} bytes")

    def _copy(self, address: int, entry_length: int, offset: int, target: memoryview) -> None:
        """Copies from ``offset`` of an entry until ``target`` is full; the range is checked already."""
        if not target:
            return
        end = offset + len(target)
        index = blocks_needed(entry_length) - 1
        while True:
            slot = self._slots[address >> _BLOCK_BITS][address & _BLOCK_MASK]
            previous = slot & _POINTER_MASK
            if (previous == 0) != (index == 0):
                raise ValueError(f"the entry is {'shorter' if index else 'longer'} than {entry_length} bytes")
            start = index * BLOCK_BYTES
            low, high = max(offset, start), min(end, start + _stored(slot))
            if low < high:
                place = (address & _BLOCK_MASK) * BLOCK_BYTES - start
                target[low - offset : high - offset] = self._readable[address >> _BLOCK_BITS][
                    place + low : place + high
                ]
            if start <= offset:
                return
            address = previous
            index -= 1

    def _claim(self, blocks: int, reserved: bool) -> None:
        """Makes sure that this many blocks may be taken, and draws them from the reservation if it is to be used."""
        if reserved:
            if blocks > self._reserved_blocks:
                raise CacheFullError(f"{blocks} blocks needed, {self._reserved_blocks} reserved")
            self._reserved_blocks -= blocks
        elif blocks > self.available_blocks:
            raise CacheFullError(f"{blocks} blocks needed, {self.available_blocks} available")

    def _fill(self, data: memoryview, previous: int) -> int:
        """Stores the data in new blocks chained to ``previous``; returns the address of the last."""
        total = len(data)
        position = 0
        while True:
            piece = data[position : position + BLOCK_BYTES]
            position += BLOCK_BYTES
            address = self._allocate()
            buffer, block = address >> _BLOCK_BITS, address & _BLOCK_MASK
            place = block * BLOCK_BYTES
            self._data[buffer][place : place + len(piece)] = piece
            slot = _USED | len(piece) << _LENGTH_SHIFT | previous
            if position >= total:
                self._slots[buffer][block] = slot | _LAST
                return address
            self._slots[buffer][block] = slot
            previous = address

    def _allocate(self) -> int:
        buffer = self._queue[0]
        slots = self._slots[buffer]
        header = slots[0]
        block = header & _POINTER_MASK
        slots[0] = header = (header & ~_POINTER_MASK) - (1 << 32) | slots[block]
        if header >> 32 == 0:
            self._queue.popleft()
        self._free_blocks -= 1
        return buffer << _BLOCK_BITS | block

    def _free(self, address: int) -> None:
        buffer, block = address >> _BLOCK_BITS, address & _BLOCK_MASK
        slots = self._slots[buffer]
        header = slots[0]
        slots[block] = header & _POINTER_MASK
        slots[0] = (header & ~_POINTER_MASK) + (1 << 32) | block
        if header >> 32 == 0:
            self._queue.append(buffer)
        self._free_blocks += 1

    def _collect(self, address: int) -> tuple[list[memoryview], list[int]]:
        """Memory of an entry in order, neighbouring blocks joined, and its blocks from the last to the first."""
        buffers: list[memoryview] = []
        blocks: list[int] = []
        run_end = run_start = run_first = 0
        while address:
            slot = self._slots[address >> _BLOCK_BITS][address & _BLOCK_MASK]
            start = (address & _BLOCK_MASK) * BLOCK_BYTES
            blocks.append(address)
            if address + 1 == run_first:
                run_start = start
            else:
                if run_end > run_start:
                    buffers.append(self._readable[run_first >> _BLOCK_BITS][run_start:run_end])
                run_start, run_end = start, start + _stored(slot)
            run_first = address
            address = slot & _POINTER_MASK
        if run_end > run_start:
            buffers.append(self._readable[run_first >> _BLOCK_BITS][run_start:run_end])
        buffers.reverse()
        return buffers, blocks

    def _unpin(self, address: int) -> None:
        """Takes one view off the chain that ends at this block, and frees what was only waiting for that."""
        while address:
            slots, block = self._slots[address >> _BLOCK_BITS], address & _BLOCK_MASK
            slot = slots[block] - _PIN_ONE
            slots[block] = slot
            if slot < _PIN_ONE:
                self._pinned_blocks -= 1
                if slot & _DELETED:
                    self._deferred_blocks -= 1
                    self._free(address)
            address = slot & _POINTER_MASK
