"""Reservations against a model: whatever happens to a tail while appends wait, they take what is reserved."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tailrace.common import limits
from tailrace.kernel import BLOCK_BYTES, BlockCache, CacheView
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.cache.staged_tail import StagedTail
from tailrace.segmentstore.metadata.read_index import ReadIndex

SIZES = (1, 100, 100, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 9000, 70_000)


class Segment:
    """A segment with its bytes."""

    def __init__(self) -> None:
        self.index = ReadIndex()
        self.content = b""
        self.start = 0
        self.tiered = 0
        self.sealed = False


class Model:
    """A cache under pressure, and segments with appends and merges that are committed in the order of their staging."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.manager = CacheManager(BlockCache(2 * limits.MIB))
        self.pressed = 0
        self.manager.on_pressure(self._press)
        self.segments = [Segment() for _ in range(4)]
        self.staged: deque[tuple[Segment, bytes | Segment]] = deque()
        self.views: list[CacheView] = []
        self.taken = 0
        self.refused = 0

    def _press(self) -> None:
        self.pressed += 1

    def step(self) -> None:
        """Let something happen."""
        actions = [self.stage, self.stage, self.stage, self.commit, self.commit, self.commit, self.tier, self.tier]
        actions += [self.truncate, self.merge, self.fetch, self.pin, self.unpin, self.take]
        self.random.choice(actions)()
        self.check()

    def _pick(self) -> Segment:
        return self.random.choice(self.segments)

    def stage(self) -> None:
        segment = self._pick()
        data = self.random.randbytes(self.random.choice(SIZES))
        if segment.sealed:
            return
        if self.manager.stage_append(segment.index, len(segment.content), len(data)):
            self.staged.append((segment, data))
        else:
            self.refused += 1

    def merge(self) -> None:
        target, source = self.random.sample(self.segments, 2)
        if target.sealed or source.sealed or source.start:
            return
        source.sealed = True
        self.manager.stage_merge(target.index, len(target.content))
        self.staged.append((target, source))
        self.segments[self.segments.index(source)] = Segment()

    def commit(self) -> None:
        if not self.staged:
            return
        segment, what = self.staged.popleft()
        offset = len(segment.content)
        if isinstance(what, Segment):
            segment.content += what.content
            end = len(segment.content)
            self.manager.move(what.index, segment.index, offset, end)
            # As a flush of each: the target is in Tier 2 up to where its own bytes are.
            segment.tiered = offset + what.tiered if segment.tiered == offset else segment.tiered
            return
        cut = self.random.randint(0, len(what))
        for piece in (what[:cut], what[cut:]):
            if piece:
                self.manager.append_tail(segment.index, len(segment.content), piece)
                segment.content += piece

    def tier(self) -> None:
        segment = self._pick()
        length = len(segment.content)
        segment.tiered = length if self.random.random() < 0.7 else self.random.randint(segment.tiered, length)
        for entry in segment.index.between(segment.start, segment.tiered):
            if entry.end <= segment.tiered:
                self.manager.make_evictable(entry)

    def truncate(self) -> None:
        segment = self._pick()
        if not segment.sealed and self.random.random() < 0.5:
            length = len(segment.content)
            segment.start = self.random.choice([length, self.random.randint(segment.start, length)])
            self.manager.drop_below(segment.index, segment.start)

    def fetch(self) -> None:
        segment = self._pick()
        if segment.tiered > segment.start:
            start = self.random.randint(segment.start, segment.tiered - 1)
            end = min(start + 100_000, segment.tiered)
            self.manager.insert_fetched(segment.index, start, segment.content[start:end])

    def pin(self) -> None:
        entries = [entry for segment in self.segments for entry in segment.index]
        if entries and len(self.views) < 3:
            self.views.append(self.manager.pin(self.random.choice(entries)))

    def unpin(self) -> None:
        if self.views:
            self.manager.unpin(self.views.pop())

    def take(self) -> None:
        """Something else takes all room that is left, or gives it back."""
        if self.taken:
            self.manager.cache.release_reservation(self.taken)
            self.taken = 0
        else:
            self.taken = self.manager.cache.available_blocks - self.random.randint(0, 1)
            self.taken = max(self.taken, 0)
            assert self.manager.cache.reserve(self.taken)

    def check(self) -> None:
        """What is reserved is what staged bytes take; the cache holds the right bytes, and every block is known."""
        manager = self.manager
        assert manager.cache.reserved_blocks == self.taken + sum(tail.blocks for tail in manager.staged.values())
        figures = manager.cache.snapshot()
        pending = [what for _, what in self.staged if isinstance(what, Segment)]
        known = 0
        for segment in (*self.segments, *pending):
            for entry in segment.index:
                known += -(-entry.length // BLOCK_BYTES)
                assert entry.end <= len(segment.content)
        assert known == figures.total_blocks - figures.free_blocks - figures.deferred_blocks

    def settle(self) -> None:
        """Commit everything, and read all that is in the cache."""
        while self.staged:
            self.commit()
            self.check()
        assert not self.manager.staged
        for segment in self.segments:
            for entry in segment.index:
                assert self.manager.cache.read(entry.address) == segment.content[entry.offset : entry.end]
        while self.views:
            self.unpin()


@pytest.mark.parametrize("entry_max", [8_192, 50_000, limits.CACHE_ENTRY_MAX_BYTES])
def test_appends_take_exactly_what_is_reserved(entry_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CACHE_ENTRY_MAX_BYTES", entry_max)
    refused = pressed = evictions = again = 0
    for seed in range(60):
        model = Model(seed)
        for _ in range(400):
            model.step()
            again += any(tail.flush_again for tail in model.manager.staged.values())
        model.settle()
        refused += model.refused
        pressed += model.pressed
        evictions += model.manager.evictions
    assert min(refused, pressed, evictions, again) > 0, "the cache was never full"


def test_a_tail_that_could_not_be_made_evictable_is_flushed_again() -> None:
    manager = CacheManager(BlockCache(2 * limits.MIB))
    pressed: list[int] = []
    manager.on_pressure(lambda: pressed.append(1))
    index = ReadIndex()
    assert manager.stage_append(index, 0, 100)
    manager.append_tail(index, 0, bytes(100))
    assert manager.stage_append(index, 100, 100)
    (tail,) = index
    assert manager.reserve(manager.cache.available_blocks)
    pressed.clear()
    manager.make_evictable(tail)
    assert not tail.evictable, "the append behind it has no other block"
    assert pressed == [1]
    manager.append_tail(index, 100, bytes(100))
    assert pressed == [1, 1], "its bytes must be flushed now: others may wait for its block"
    manager.make_evictable(tail)
    assert tail.evictable
    assert manager.reserve(1)
    assert len(index) == 0


def test_bytes_behind_a_staged_merge_count_from_a_new_block() -> None:
    tail = StagedTail(1000)
    assert tail.growth(1000) == 0
    tail.append_staged(1000)
    assert tail.growth(1) == 1
    tail.merge_staged()
    assert tail.growth(100) == 1
    tail.append_staged(100)
    assert tail.blocks == 1
    tail.append_committed(1000, 0)
    assert tail.merge_committed(free_bytes=100) == 1
    assert tail.blocks == 0
    tail.append_committed(100, 0)
    assert tail.idle
