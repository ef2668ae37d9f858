"""The block cache, case by case, in both implementations: layout, bounds, errors, views, reservations."""

import ctypes
import gc
import random
from types import ModuleType

import pytest

from tailrace.kernel import BLOCK_BYTES, BUFFER_BYTES, CacheFullError, _cache, _cache_py, blocks_needed

MODULES = pytest.mark.parametrize("cache", [_cache, _cache_py], ids=["native", "pure"])
MIB = 1024 * 1024
BLOCKS = 511  # that hold data, in one buffer


def pattern(length: int, seed: int = 0) -> bytes:
    return random.Random(seed * 1_000_003 + length).randbytes(length)


class Export:
    """Holds an export of a memoryview itself, as a send in progress does."""

    def __init__(self, buffer: memoryview) -> None:
        self._object: object | None = ctypes.py_object(buffer)
        self._view = ctypes.create_string_buffer(128)
        ctypes.pythonapi.PyObject_GetBuffer(self._object, self._view, 0)

    def close(self) -> None:
        ctypes.pythonapi.PyBuffer_Release(self._view)


def check_balance(cache: _cache_py.BlockCache) -> None:
    figures = cache.snapshot()
    assert figures.used_bytes + figures.free_blocks * BLOCK_BYTES == figures.max_bytes
    assert 0 <= figures.reserved_blocks <= figures.free_blocks <= figures.total_blocks
    assert cache.available_blocks == figures.free_blocks - figures.reserved_blocks


def test_blocks_needed() -> None:
    assert [blocks_needed(length) for length in (0, 1, 4096, 4097, 8192, 8193)] == [1, 1, 1, 2, 2, 3]
    with pytest.raises(ValueError, match="not negative"):
        blocks_needed(-1)


@MODULES
def test_the_bound_is_whole_buffers_and_counts_metadata(cache: ModuleType) -> None:
    made = cache.BlockCache(5 * MIB)
    assert made.max_bytes == 4 * MIB == 2 * BUFFER_BYTES
    figures = made.snapshot()
    assert figures.total_blocks == figures.free_blocks == 2 * BLOCKS
    assert figures.used_bytes == figures.metadata_bytes == 2 * BLOCK_BYTES
    assert (figures.stored_bytes, figures.entries, figures.full_buffers) == (0, 0, 0)


@MODULES
@pytest.mark.parametrize("max_bytes", [0, -1, 2 * MIB - 1, (1 << 44) + 2 * MIB])
def test_an_impossible_bound_is_refused(cache: ModuleType, max_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        cache.BlockCache(max_bytes)


@MODULES
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 8192, 10_000, 100_000])
def test_insert_read_delete(cache: ModuleType, length: int) -> None:
    made = cache.BlockCache(2 * MIB)
    data = pattern(length)
    address = made.insert(data)
    assert made.read(address) == data
    assert made.stored_bytes == length
    assert made.snapshot().free_blocks == BLOCKS - blocks_needed(length)
    assert made.get_append_capacity(address) == blocks_needed(length) * BLOCK_BYTES - length
    assert made.delete(address) == blocks_needed(length) * BLOCK_BYTES
    assert made.free_blocks == BLOCKS
    assert made.stored_bytes == 0


@MODULES
def test_addresses_are_buffer_and_block_and_an_entry_is_known_by_its_last(cache: ModuleType) -> None:
    made = cache.BlockCache(4 * MIB)
    assert made.insert(b"one") == 1
    assert made.insert(bytes(3 * BLOCK_BYTES)) == 4
    assert made.insert(bytes((BLOCKS - 4) * BLOCK_BYTES)) == 511
    # The first buffer is full and left the queue: the next block is the first of the second.
    assert made.snapshot().full_buffers == 1
    assert made.insert(b"two") == (1 << 9) | 1
    made.delete(4)
    assert made.snapshot().full_buffers == 0
    # The freed buffer went to the end of the queue; the second is still its head.
    assert made.insert(b"three") == (1 << 9) | 2
    made.insert(bytes((BLOCKS - 2) * BLOCK_BYTES))
    # Freed from the last to the first, so the lowest freed block is reused first.
    assert made.insert(b"four") == 2


@MODULES
def test_appends_fill_the_last_block_then_take_new_ones(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    content = b""
    address = made.insert(content)
    used = made.used_bytes
    for step, length in enumerate([0, 100, 3996, 0, 1, 4095, 5000, 3 * BLOCK_BYTES, 10]):
        data = pattern(length, step)
        fits = length <= made.get_append_capacity(address)
        new_address = made.append(address, len(content), data)
        assert (new_address == address) is fits
        content += data
        address = new_address
        assert made.read(address) == content
    assert made.used_bytes == used + (blocks_needed(len(content)) - 1) * BLOCK_BYTES
    assert made.snapshot().entries == 1


@MODULES
def test_an_append_checks_what_the_caller_believes(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    address = made.insert(bytes(BLOCK_BYTES + 7))
    for wrong in (-1, 0, 6, 8, BLOCK_BYTES, BLOCK_BYTES + 8, -BLOCK_BYTES + 7):
        with pytest.raises(ValueError, match="cannot be"):
            made.append(address, wrong, b"x")
    assert made.read(address) == bytes(BLOCK_BYTES + 7)
    assert made.append(address, BLOCK_BYTES + 7, b"x") == address  # the whole length
    assert made.append(address, 8, b"y") == address  # or that of the last block
    full = made.insert(bytes(BLOCK_BYTES))
    with pytest.raises(ValueError, match="cannot be"):
        made.append(full, 0, b"x")
    assert made.append(full, BLOCK_BYTES, b"x") != full


@MODULES
def test_bad_addresses(cache: ModuleType) -> None:
    made = cache.BlockCache(4 * MIB)
    grown = made.insert(bytes(BLOCK_BYTES))
    address = made.append(grown, BLOCK_BYTES, bytes(BLOCK_BYTES))
    deleted = made.insert(b"gone")
    made.delete(deleted)
    never_used, metadata, outside = 100, 512, 2 << 9 | 1
    before = made.snapshot()
    for bad in (grown, deleted, never_used, 0, metadata, outside, -1, -511, 1 << 32, 1 << 40):
        for call in (made.read, made.view, made.delete, made.get_append_capacity):
            with pytest.raises(ValueError, match=r"no address|no entry"):
                call(bad)
        with pytest.raises(ValueError, match=r"no address|no entry"):
            made.append(bad, 0, b"x")
        with pytest.raises(ValueError, match=r"no address|no entry"):
            made.replace(bad, b"x")
        with pytest.raises(ValueError, match=r"no address|no entry"):
            made.read_range(bad, 4096, 0, 1)
    assert made.snapshot() == before
    assert made.read(address) == bytes(2 * BLOCK_BYTES)


@MODULES
def test_ranges(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    data = pattern(3 * BLOCK_BYTES + 100)
    address = made.insert(data)
    edges = [0, 1, 4095, 4096, 4097, 8192, 12287, 12288, 12387, 12388]
    for start in edges:
        for end in edges:
            if start <= end:
                assert made.read_range(address, len(data), start, end - start) == data[start:end]
                target = bytearray(b"\xee" * (end - start + 2))
                assert made.copy_into(address, len(data), start, end - start, memoryview(target)[1:]) == end - start
                assert target == b"\xee" + data[start:end] + b"\xee"


@MODULES
def test_ranges_that_do_not_fit_are_refused(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    length = 2 * BLOCK_BYTES + 100
    address = made.insert(pattern(length))
    made.insert(bytes(100_000))
    huge = 1 << 62
    for offset, count in [(-1, 1), (0, -1), (length, 1), (0, length + 1), (length + 1, 0), (huge, 1), (1, huge)]:
        with pytest.raises(ValueError, match="outside"):
            made.read_range(address, length, offset, count)
    for wrong in (length + 1, length - 1, 0, -1):
        with pytest.raises(ValueError, match="cannot be"):
            made.read_range(address, wrong, 0, 0)
    for wrong in (
        100,
        BLOCK_BYTES + 100,
        length + BLOCK_BYTES,
        length + 40 * BLOCK_BYTES,
        length + (BLOCK_BYTES << 30),
    ):
        with pytest.raises(ValueError, match="than"):
            made.read_range(address, wrong, 0, min(wrong, 10))
    target = bytearray(9)
    with pytest.raises(ValueError, match="do not fit"):
        made.copy_into(address, length, 0, 10, target)
    assert target == bytes(9)
    with pytest.raises(BufferError):
        made.copy_into(address, length, 0, 5, bytes(9))
    with pytest.raises(TypeError):
        made.insert("text")
    with pytest.raises(BufferError):
        made.insert(memoryview(bytes(10))[::2])


@MODULES
def test_a_full_cache_refuses_and_changes_nothing(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    big = made.insert(bytes((BLOCKS - 2) * BLOCK_BYTES))
    small = made.insert(bytes(BLOCK_BYTES - 1))
    before = made.snapshot()
    for call in (
        lambda: made.insert(bytes(BLOCK_BYTES + 1)),
        lambda: made.append(small, BLOCK_BYTES - 1, bytes(BLOCK_BYTES + 2)),
        lambda: made.replace(small, bytes(2 * BLOCK_BYTES + 1)),
    ):
        with pytest.raises(CacheFullError):
            call()
        assert made.snapshot() == before
    assert made.read(small) == bytes(BLOCK_BYTES - 1)
    grown = made.append(small, BLOCK_BYTES - 1, bytes(BLOCK_BYTES + 1))
    assert made.free_blocks == 0
    assert made.used_bytes == made.max_bytes
    with pytest.raises(CacheFullError):
        made.insert(b"")
    # Replacing may use the blocks that it frees.
    replaced = made.replace(big, b"x")
    assert made.free_blocks == BLOCKS - 3
    assert made.read(replaced) == b"x"
    assert len(made.read(grown)) == 2 * BLOCK_BYTES


@MODULES
def test_a_reservation_keeps_others_out_and_cannot_fail_its_holder(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    assert made.reserve(3)
    assert not made.reserve(BLOCKS - 2)
    assert made.reserve(0)
    filler = made.insert(bytes((BLOCKS - 3) * BLOCK_BYTES))
    assert (made.free_blocks, made.available_blocks) == (3, 0)
    with pytest.raises(CacheFullError):
        made.insert(b"")
    with pytest.raises(CacheFullError):
        made.append(filler, BLOCK_BYTES, b"x")
    address = made.insert(b"x", reserved=True)
    assert made.reserved_blocks == 2
    assert made.append(address, 1, bytes(4095), reserved=True) == address
    assert made.reserved_blocks == 2
    address = made.append(address, BLOCK_BYTES, bytes(2 * BLOCK_BYTES), reserved=True)
    assert (made.reserved_blocks, made.free_blocks) == (0, 0)
    with pytest.raises(CacheFullError, match="0 reserved"):
        made.append(address, BLOCK_BYTES, b"x", reserved=True)
    # A replacement draws only what the old blocks do not cover.
    made.delete(filler)
    assert made.reserve(2)
    address = made.replace(address, bytes(4 * BLOCK_BYTES), reserved=True)
    assert made.reserved_blocks == 1
    with pytest.raises(CacheFullError):
        made.replace(address, bytes(6 * BLOCK_BYTES), reserved=True)
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="cannot release"):
            made.release_reservation(wrong)
    made.release_reservation(1)
    assert made.reserved_blocks == 0
    with pytest.raises(ValueError, match="not negative"):
        made.reserve(-1)
    check_balance(made)


@MODULES
def test_a_view_is_read_only_ordered_and_joined_where_blocks_are_neighbours(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    address = made.insert(pattern(10_000))
    with made.view(address) as view:
        (buffer,) = view.buffers
        assert buffer.readonly
        assert buffer == pattern(10_000)
        assert (len(view), view.tobytes(), view.released) == (10_000, pattern(10_000), False)
        with pytest.raises(TypeError):
            buffer[0] = 1
    assert view.released
    assert len(view) == 10_000
    with pytest.raises(ValueError, match="released"):
        view.buffers  # noqa: B018
    with pytest.raises(ValueError, match="released"):
        bytes(buffer)
    empty = made.insert(b"")
    with made.view(empty) as view:
        assert (view.buffers, len(view), made.pinned_blocks) == ([], 0, 1)


@MODULES
def test_a_fragmented_entry_reads_in_order(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    singles = [made.insert(b"") for _ in range(BLOCKS)]
    for address in singles[::2]:
        made.delete(address)
    data = pattern(40 * BLOCK_BYTES + 5)
    address = made.insert(data)
    assert made.read(address) == data
    assert made.read_range(address, len(data), 5000, 9000) == data[5000:14000]
    with made.view(address) as view:
        assert len(view.buffers) == 41
        assert view.tobytes() == data


@MODULES
def test_blocks_under_a_view_outlive_their_entry(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    data = pattern(2 * BLOCK_BYTES + 10)
    address = made.insert(data)
    view = made.view(address)
    second = made.view(address)
    assert made.pinned_blocks == 3
    assert made.delete(address) == 0
    with pytest.raises(ValueError, match="no entry"):
        made.read(address)
    figures = made.snapshot()
    assert (figures.stored_bytes, figures.entries, figures.deferred_blocks, figures.free_blocks) == (
        0,
        0,
        3,
        BLOCKS - 3,
    )
    other = made.insert(bytes((BLOCKS - 3) * BLOCK_BYTES))
    with pytest.raises(CacheFullError):
        made.insert(b"")
    assert view.tobytes() == data
    view.release()
    view.release()
    assert (made.pinned_blocks, made.free_blocks) == (3, 0)
    assert second.tobytes() == data
    second.release()
    figures = made.snapshot()
    assert (figures.pinned_blocks, figures.deferred_blocks, figures.free_blocks) == (0, 0, 3)
    made.delete(other)
    check_balance(made)


@MODULES
def test_an_entry_grows_and_goes_under_its_views(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    data = pattern(5000)
    address = made.insert(data)
    early = made.view(address)
    grown = made.append(address, 5000, b"y" * 5000)
    late = made.view(grown)
    assert made.pinned_blocks == 3
    replaced = made.replace(grown, b"new")
    assert (early.tobytes(), late.tobytes()) == (data, data + b"y" * 5000)
    assert made.free_blocks == BLOCKS - 4
    late.release()
    assert (made.free_blocks, made.pinned_blocks) == (BLOCKS - 3, 2)
    assert early.tobytes() == data
    early.release()
    assert (made.free_blocks, made.pinned_blocks) == (BLOCKS - 1, 0)
    assert made.read(replaced) == b"new"


@MODULES
def test_an_export_of_a_view_delays_its_release(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    view = made.view(made.insert(b"abc"))
    (buffer,) = view.buffers
    send = Export(buffer)
    with pytest.raises(BufferError):
        view.release()
    assert made.pinned_blocks == 1
    send.close()
    view.release()
    assert made.pinned_blocks == 0


@MODULES
def test_a_dropped_view_warns_and_releases_itself(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    view = made.view(made.insert(b"abc"))
    views = [view]
    del view
    with pytest.warns(ResourceWarning, match="never released"):
        views.clear()
    assert made.pinned_blocks == 0


@MODULES
def test_memory_lives_as_long_as_anyone_looks_at_it(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    view = made.view(made.insert(b"abc"))
    part = view.buffers[0][1:]
    del made
    gc.collect()
    assert view.tobytes() == b"abc"
    view.release()
    del view
    gc.collect()
    assert part == b"bc"


@MODULES
def test_a_block_has_a_bounded_number_of_views(cache: ModuleType) -> None:
    made = cache.BlockCache(2 * MIB)
    address = made.insert(b"abc")
    views = [made.view(address) for _ in range(65535)]
    with pytest.raises(OverflowError):
        made.view(address)
    assert made.pinned_blocks == 1
    for view in views:
        view.release()
    assert made.pinned_blocks == 0
    assert made.delete(address) == BLOCK_BYTES


@MODULES
def test_only_the_cache_makes_views(cache: ModuleType) -> None:
    with pytest.raises(TypeError):
        cache.CacheView()
