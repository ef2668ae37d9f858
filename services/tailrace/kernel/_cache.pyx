# cython: cdivision=True
"""The streaming cache, natively (contract: the twin, ``_cache_py.py``; layout of the metadata: ``_cache_common.py``)."""

import mmap
import warnings

from tailrace.kernel._cache_common import BLOCK_BYTES as _BLOCK_BYTES
from tailrace.kernel._cache_common import BLOCKS_PER_BUFFER as _BLOCKS_PER_BUFFER
from tailrace.kernel._cache_common import CacheFullError, CacheSnapshot, buffers_for

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memmove

cdef extern from *:
    """
    #define TR_BLOCK 4096
    #define TR_BLOCKS 512
    #define TR_BLOCK_BITS 9
    #define TR_USED (UINT64_C(1) << 45)
    #define TR_LAST (UINT64_C(1) << 46)
    #define TR_DELETED (UINT64_C(1) << 47)
    #define TR_PIN_ONE (UINT64_C(1) << 48)
    #define TR_PINS_FULL (UINT64_C(0xFFFF) << 48)
    #define TR_POINTER(slot) ((uint32_t)(slot))
    #define TR_STORED(slot) ((int64_t)((slot) >> 32 & 0x1FFF))
    """
    const int64_t TR_BLOCK
    const uint32_t TR_BLOCKS
    const int TR_BLOCK_BITS
    const uint64_t TR_USED
    const uint64_t TR_LAST
    const uint64_t TR_DELETED
    const uint64_t TR_PIN_ONE
    const uint64_t TR_PINS_FULL
    uint32_t TR_POINTER(uint64_t slot) noexcept
    int64_t TR_STORED(uint64_t slot) noexcept

if _BLOCK_BYTES != TR_BLOCK or _BLOCKS_PER_BUFFER != TR_BLOCKS:
    raise ImportError("the native cache was built for another size of blocks: run `make setup`")


cdef inline int64_t blocks_for(int64_t length) noexcept:
    return (length + TR_BLOCK - 1) // TR_BLOCK if length > 0 else 1


cdef int check_length(int64_t address, uint64_t slot, int64_t expected_length) except -1:
    cdef int64_t last = (expected_length - 1) % TR_BLOCK + 1 if expected_length > 0 else 0
    if expected_length < 0 or TR_STORED(slot) != last:
        raise ValueError(
            f"the last block of entry {address:#x} holds {TR_STORED(slot)} bytes: a length of {expected_length} cannot be"
        )
    return 0


cdef class CacheView:
    cdef BlockCache _cache
    cdef uint32_t _address
    cdef list _buffers
    cdef int64_t _length

    def __init__(self):
        raise TypeError("BlockCache.view makes views")

    @property
    def buffers(self):
        if self._cache is None:
            raise ValueError("the view was released")
        return list(self._buffers)

    @property
    def released(self):
        return self._cache is None

    def __len__(self):
        return self._length

    def tobytes(self):
        return b"".join(self.buffers)

    def release(self):
        cdef BlockCache cache = self._cache
        if cache is None:
            return
        for buffer in self._buffers:
            buffer.release()
        self._buffers = []
        self._cache = None
        cache.unpin(self._address)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.release()

    def __del__(self):
        if self._cache is not None:
            try:
                warnings.warn(f"a view of cache entry {self._address:#x} was never released", ResourceWarning, stacklevel=1)
            finally:
                self.release()


cdef class BlockCache:
    cdef list _readable
    cdef Py_buffer *_exports
    cdef unsigned char **_bases
    cdef uint32_t *_queue
    cdef int64_t _queue_first
    cdef int64_t _queue_length
    cdef int64_t _buffer_count
    cdef int64_t _exported
    cdef int64_t _free_blocks
    cdef int64_t _reserved_blocks
    cdef int64_t _pinned_blocks
    cdef int64_t _deferred_blocks
    cdef int64_t _stored_bytes
    cdef int64_t _entries

    def __cinit__(self, max_bytes):
        cdef int64_t count = buffers_for(max_bytes)
        cdef int64_t index
        self._readable = []
        self._bases = <unsigned char **>PyMem_Calloc(count, sizeof(unsigned char *))
        self._exports = <Py_buffer *>PyMem_Calloc(count, sizeof(Py_buffer))
        self._queue = <uint32_t *>PyMem_Calloc(count, sizeof(uint32_t))
        if self._bases == NULL or self._exports == NULL or self._queue == NULL:
            raise MemoryError
        for index in range(count):
            self.add_buffer(index)
        self._buffer_count = count
        self._queue_length = count
        self._free_blocks = count * (TR_BLOCKS - 1)

    def __dealloc__(self):
        cdef int64_t index
        for index in range(self._exported):
            PyBuffer_Release(&self._exports[index])
        PyMem_Free(self._bases)
        PyMem_Free(self._exports)
        PyMem_Free(self._queue)

    cdef int add_buffer(self, int64_t index) except -1:
        cdef uint32_t block
        cdef uint64_t *slots
        cdef unsigned char *base
        memory = mmap.mmap(-1, TR_BLOCK * TR_BLOCKS, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # The cache holds the export for its whole lifetime, so the memory under the pointer stays open and in place.
        PyObject_GetBuffer(memory, &self._exports[index], PyBUF_WRITABLE)
        self._exported = index + 1
        base = <unsigned char *>self._exports[index].buf
        for block in range(TR_BLOCKS):
            base[block * TR_BLOCK] = 0
        slots = <uint64_t *>base
        slots[0] = <uint64_t>(TR_BLOCKS - 1) << 32 | 1
        for block in range(1, TR_BLOCKS):
            slots[block] = (block + 1) % TR_BLOCKS
        self._bases[index] = base
        self._queue[index] = <uint32_t>index
        self._readable.append(memoryview(memory).toreadonly())
        return 0

    # --- figures

    @property
    def max_bytes(self):
        return self._buffer_count * TR_BLOCKS * TR_BLOCK

    @property
    def used_bytes(self):
        return (self._buffer_count * TR_BLOCKS - self._free_blocks) * TR_BLOCK

    @property
    def stored_bytes(self):
        return self._stored_bytes

    @property
    def free_blocks(self):
        return self._free_blocks

    @property
    def reserved_blocks(self):
        return self._reserved_blocks

    @property
    def available_blocks(self):
        return self._free_blocks - self._reserved_blocks

    @property
    def pinned_blocks(self):
        return self._pinned_blocks

    def snapshot(self):
        return CacheSnapshot(
            max_bytes=self.max_bytes,
            used_bytes=self.used_bytes,
            stored_bytes=self._stored_bytes,
            metadata_bytes=self._buffer_count * TR_BLOCK,
            total_blocks=self._buffer_count * (TR_BLOCKS - 1),
            free_blocks=self._free_blocks,
            reserved_blocks=self._reserved_blocks,
            pinned_blocks=self._pinned_blocks,
            deferred_blocks=self._deferred_blocks,
            entries=self._entries,
            full_buffers=self._buffer_count - self._queue_length,
        )

    # --- reservations

    def reserve(self, int64_t blocks):
        if blocks < 0:
            raise ValueError(f"a number of blocks is not negative: {blocks}")
        if blocks > self._free_blocks - self._reserved_blocks:
            return False
        self._reserved_blocks += blocks
        return True

    def release_reservation(self, int64_t blocks):
        if not 0 <= blocks <= self._reserved_blocks:
            raise ValueError(f"cannot release {blocks} of {self._reserved_blocks} reserved blocks")
        self._reserved_blocks -= blocks

    # --- changes

    def insert(self, data, bint reserved=False):
        cdef Py_buffer view
        cdef uint32_t address
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.claim(blocks_for(view.len), reserved)
            address = self.fill(<const unsigned char *>view.buf, view.len, 0)
            self._stored_bytes += view.len
            self._entries += 1
        finally:
            PyBuffer_Release(&view)
        return address

    def append(self, int64_t address, int64_t expected_length, data, bint reserved=False):
        cdef Py_buffer view
        cdef uint64_t *slot
        cdef int64_t stored, head, rest
        cdef uint32_t last
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            slot = self.entry(address)
            check_length(address, slot[0], expected_length)
            last = <uint32_t>address
            stored = TR_STORED(slot[0])
            head = min(TR_BLOCK - stored, <int64_t>view.len)
            rest = view.len - head
            if rest:
                self.claim(blocks_for(rest), reserved)
            if head:
                memmove(self.memory(last) + stored, view.buf, head)
                slot[0] += <uint64_t>head << 32
            if rest:
                slot[0] &= ~TR_LAST
                last = self.fill(<const unsigned char *>view.buf + head, rest, last)
            self._stored_bytes += view.len
        finally:
            PyBuffer_Release(&view)
        return last

    def replace(self, int64_t address, data, bint reserved=False):
        cdef Py_buffer view
        cdef uint32_t current
        cdef uint64_t slot
        cdef int64_t reusable = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.entry(address)
            current = <uint32_t>address
            while current:
                slot = self.slot(current)[0]
                reusable += slot < TR_PIN_ONE
                current = TR_POINTER(slot)
            self.claim(max(<int64_t>0, blocks_for(view.len) - reusable), reserved)
            self.remove(<uint32_t>address)
            current = self.fill(<const unsigned char *>view.buf, view.len, 0)
            self._stored_bytes += view.len
            self._entries += 1
        finally:
            PyBuffer_Release(&view)
        return current

    def delete(self, int64_t address):
        self.entry(address)
        return self.remove(<uint32_t>address)

    # --- reads

    def get_append_capacity(self, int64_t address):
        return TR_BLOCK - TR_STORED(self.entry(address)[0])

    def read(self, int64_t address):
        cdef uint32_t current = <uint32_t>address
        cdef uint64_t slot
        cdef int64_t length = 0
        self.entry(address)
        while current:
            slot = self.slot(current)[0]
            length += TR_STORED(slot)
            current = TR_POINTER(slot)
        content = PyBytes_FromStringAndSize(NULL, length)
        self.copy(<uint32_t>address, length, 0, length, <unsigned char *>PyBytes_AS_STRING(content))
        return content

    def read_range(self, int64_t address, int64_t entry_length, int64_t offset, int64_t length):
        self.check_range(address, entry_length, offset, length)
        content = PyBytes_FromStringAndSize(NULL, length)
        self.copy(<uint32_t>address, entry_length, offset, length, <unsigned char *>PyBytes_AS_STRING(content))
        return content

    def copy_into(self, int64_t address, int64_t entry_length, int64_t offset, int64_t length, dest):
        cdef Py_buffer view
        PyObject_GetBuffer(dest, &view, PyBUF_WRITABLE)
        try:
            self.check_range(address, entry_length, offset, length)
            if length > view.len:
                raise ValueError(f"{length} bytes do not fit in a buffer of {view.len}")
            self.copy(<uint32_t>address, entry_length, offset, length, <unsigned char *>view.buf)
        finally:
            PyBuffer_Release(&view)
        return length

    def view(self, int64_t address):
        cdef CacheView view = CacheView.__new__(CacheView)
        cdef uint32_t current = <uint32_t>address
        cdef uint64_t *slot
        self.entry(address)
        while current:
            slot = self.slot(current)
            if slot[0] >= TR_PINS_FULL:
                raise OverflowError(f"block {current:#x} has 65535 views already")
            current = TR_POINTER(slot[0])
        current = <uint32_t>address
        while current:
            slot = self.slot(current)
            self._pinned_blocks += slot[0] < TR_PIN_ONE
            slot[0] += TR_PIN_ONE
            current = TR_POINTER(slot[0])
        # Pinned before any object is made: making one may run the garbage collector, and so anybody's code.
        view._address = <uint32_t>address
        try:
            view._buffers = self.collect(view._address, &view._length)
        except BaseException:
            self.unpin(view._address)
            raise
        view._cache = self
        return view

    # --- blocks

    cdef inline uint64_t *slot(self, uint32_t address) noexcept:
        return <uint64_t *>self._bases[address >> TR_BLOCK_BITS] + (address & (TR_BLOCKS - 1))

    cdef inline unsigned char *memory(self, uint32_t address) noexcept:
        return self._bases[address >> TR_BLOCK_BITS] + (address & (TR_BLOCKS - 1)) * TR_BLOCK

    cdef uint64_t *entry(self, int64_t address) except NULL:
        cdef uint64_t *slot
        if address < 0 or address >> TR_BLOCK_BITS >= self._buffer_count or address & (TR_BLOCKS - 1) == 0:
            raise ValueError(f"{address:#x} is no address of this cache")
        slot = self.slot(<uint32_t>address)
        if not slot[0] & TR_LAST:
            raise ValueError(f"no entry ends at {address:#x}")
        return slot

    cdef int check_range(self, int64_t address, int64_t entry_length, int64_t offset, int64_t length) except -1:
        check_length(address, self.entry(address)[0], entry_length)
        if offset < 0 or length < 0 or offset > entry_length - length:
            raise ValueError(f"range {offset}+{length} is outside of an entry of {entry_length} bytes")
        if entry_length > self._stored_bytes:
            raise ValueError(f"the entry is shorter than {entry_length} bytes")
        return 0

    cdef int claim(self, int64_t blocks, bint reserved) except -1:
        if reserved:
            if blocks > self._reserved_blocks:
                raise CacheFullError(f"{blocks} blocks needed, {self._reserved_blocks} reserved")
            self._reserved_blocks -= blocks
        elif blocks > self._free_blocks - self._reserved_blocks:
            raise CacheFullError(f"{blocks} blocks needed, {self._free_blocks - self._reserved_blocks} available")
        return 0

    cdef uint32_t fill(self, const unsigned char *data, int64_t length, uint32_t previous) noexcept:
        cdef uint32_t address
        cdef int64_t piece
        cdef uint64_t last
        while True:
            piece = min(length, TR_BLOCK)
            address = self.allocate()
            if piece:
                memmove(self.memory(address), data, piece)
            length -= piece
            last = 0 if length else TR_LAST
            self.slot(address)[0] = TR_USED | last | <uint64_t>piece << 32 | previous
            if last:
                return address
            data += piece
            previous = address

    cdef uint32_t allocate(self) noexcept:
        # `claim` has made sure that a block is free, so the queue is not empty.
        cdef uint32_t buffer = self._queue[self._queue_first]
        cdef uint64_t *slots = <uint64_t *>self._bases[buffer]
        cdef uint32_t block = TR_POINTER(slots[0])
        cdef uint64_t free = (slots[0] >> 32) - 1
        slots[0] = free << 32 | TR_POINTER(slots[block])
        if free == 0:
            self._queue_first = (self._queue_first + 1) % self._buffer_count
            self._queue_length -= 1
        self._free_blocks -= 1
        return buffer << TR_BLOCK_BITS | block

    cdef void free(self, uint32_t address) noexcept:
        cdef uint32_t buffer = address >> TR_BLOCK_BITS
        cdef uint32_t block = address & (TR_BLOCKS - 1)
        cdef uint64_t *slots = <uint64_t *>self._bases[buffer]
        cdef uint64_t free = slots[0] >> 32
        slots[block] = TR_POINTER(slots[0])
        slots[0] = (free + 1) << 32 | block
        if free == 0:
            self._queue[(self._queue_first + self._queue_length) % self._buffer_count] = buffer
            self._queue_length += 1
        self._free_blocks += 1

    cdef int64_t remove(self, uint32_t address) noexcept:
        cdef uint64_t slot
        cdef int64_t freed = 0
        while address:
            slot = self.slot(address)[0]
            self._stored_bytes -= TR_STORED(slot)
            if slot >= TR_PIN_ONE:
                self.slot(address)[0] = (slot | TR_DELETED) & ~TR_LAST
                self._deferred_blocks += 1
            else:
                self.free(address)
                freed += TR_BLOCK
            address = TR_POINTER(slot)
        self._entries -= 1
        return freed

    cdef void unpin(self, uint32_t address) noexcept:
        cdef uint64_t slot
        while address:
            slot = self.slot(address)[0] - TR_PIN_ONE
            self.slot(address)[0] = slot
            if slot < TR_PIN_ONE:
                self._pinned_blocks -= 1
                if slot & TR_DELETED:
                    self._deferred_blocks -= 1
                    self.free(address)
            address = TR_POINTER(slot)

    cdef int copy(self, uint32_t address, int64_t entry_length, int64_t offset, int64_t length, unsigned char *target) except -1:
        cdef int64_t index = blocks_for(entry_length) - 1
        cdef int64_t start, low, high
        cdef uint64_t slot
        if length == 0:
            return 0
        while True:
            slot = self.slot(address)[0]
            if (TR_POINTER(slot) == 0) != (index == 0):
                raise ValueError(f"the entry is {'shorter' if index else 'longer'} than {entry_length} bytes")
            start = index * TR_BLOCK
            low = max(offset, start)
            high = min(offset + length, start + TR_STORED(slot))
            if low < high:
                memmove(target + (low - offset), self.memory(address) + (low - start), high - low)
            if start <= offset:
                return 0
            address = TR_POINTER(slot)
            index -= 1

    cdef list collect(self, uint32_t address, int64_t *length):
        cdef list buffers = []
        cdef uint64_t slot
        cdef uint32_t first = 0
        cdef int64_t start, run_start = 0, run_end = 0
        length[0] = 0
        while address:
            slot = self.slot(address)[0]
            start = (address & (TR_BLOCKS - 1)) * TR_BLOCK
            length[0] += TR_STORED(slot)
            if address + 1 == first:
                run_start = start
            else:
                if run_end > run_start:
                    buffers.append(self._readable[first >> TR_BLOCK_BITS][run_start:run_end])
                run_start = start
                run_end = start + TR_STORED(slot)
            first = address
            address = TR_POINTER(slot)
        if run_end > run_start:
            buffers.append(self._readable[first >> TR_BLOCK_BITS][run_start:run_end])
        buffers.reverse()
        return buffers
