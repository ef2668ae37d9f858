"""What a recovery inserts, in any order: contents, blocks and the room that stays free."""

from __future__ import annotations

import itertools
import random

import pytest

from tailrace.common import limits
from tailrace.kernel import BLOCK_BYTES, BlockCache
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.metadata.read_index import ReadIndex

SIZES = (1, 100, 100, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 9000, 70_000)


@pytest.mark.parametrize("entry_max_bytes", [8192, 50_000, 256 * limits.KIB])
def test_pieces_in_any_order(monkeypatch: pytest.MonkeyPatch, entry_max_bytes: int) -> None:
    monkeypatch.setattr(limits, "CACHE_ENTRY_MAX_BYTES", entry_max_bytes)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(30):
        manager, index = CacheManager(BlockCache(2 * limits.MIB)), ReadIndex()
        ends, whole = [0], b""
        for _ in range(chance.randrange(1, 60)):
            whole += chance.randbytes(chance.choice(SIZES))
            ends.append(len(whole))
        # Runs of pieces, in random order: as the appends of several merged segments in a log.
        queues: list[list[tuple[int, int]]] = [[]]
        for piece in itertools.pairwise(ends):
            if chance.random() < 0.1:
                queues.append([])
            queues[-1].append(piece)
        spare_blocks = chance.choice((0, 128, 300))
        inserted = set()
        while queues := [queue for queue in queues if queue]:
            start, end = chance.choice(queues).pop(0)
            before = manager.cache.available_blocks
            if manager.insert_untiered(index, start, whole[start:end], spare_blocks):
                inserted.add((start, end))
                assert manager.cache.available_blocks >= spare_blocks
            else:
                assert manager.cache.available_blocks == before
        taken = manager.cache.snapshot().total_blocks - manager.cache.free_blocks
        assert taken == sum(-(-entry.length // BLOCK_BYTES) for entry in index)
        for start, end in itertools.pairwise(ends):
            entries = index.run(start, end - start)
            if (start, end) in inserted:
                assert bytes(manager.copy(entries, start, end - start)) == whole[start:end]
            else:
                assert index.first_gap(start, end) == (start, end)
        assert all(entry.length <= entry_max_bytes for entry in index)
        manager.drop_all(index)
        assert manager.cache.free_blocks == manager.cache.snapshot().total_blocks


@pytest.mark.parametrize("start", [50, 100, 150, 199])
def test_bytes_that_an_entry_has_are_refused(start: int) -> None:
    manager, index = CacheManager(BlockCache(2 * limits.MIB)), ReadIndex()
    assert manager.insert_untiered(index, 100, bytes(100), 0)
    before = manager.cache.free_blocks
    with pytest.raises(ValueError, match="are in the read index already"):
        manager.insert_untiered(index, start, bytes(60), 0)
    assert manager.cache.free_blocks == before


def test_what_tier2_holds_makes_room_and_views_keep_it() -> None:
    manager, index, other = CacheManager(BlockCache(2 * limits.MIB)), ReadIndex(), ReadIndex()
    blocks = manager.cache.available_blocks
    assert manager.insert_untiered(other, 0, bytes(blocks * BLOCK_BYTES), 0)
    assert not manager.insert_untiered(index, 0, b"a", 0)
    for entry in list(other):
        manager.make_evictable(entry)
    views = [manager.pin(entry) for entry in other]
    assert not manager.insert_untiered(index, 0, b"a", blocks // 2)
    for view in views:
        manager.unpin(view)
    assert not manager.insert_untiered(index, 0, b"a", blocks)
    assert manager.insert_untiered(index, 0, b"a", blocks // 2)
    assert len(index) == 1
