"""A truncation that drops many entries of the read index takes them out together."""

from __future__ import annotations

import pytest

from tailrace.kernel import BlockCache
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.metadata.read_index import Entry, ReadIndex

ENTRIES = 1000


def test_a_truncation_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of small transactions has 100,000 entries in a cache of 400 MiB: one at a time they took 2.8 s."""
    cache, index = CacheManager(BlockCache(4 << 20)), ReadIndex()
    for number in range(ENTRIES):
        index.add(Entry(index, number * 100, 100, -1, ((number, 0, 100),)))
    alone = 0
    remove = ReadIndex.remove

    def counted(self: ReadIndex, entry: Entry) -> None:
        nonlocal alone
        alone += 1
        remove(self, entry)

    monkeypatch.setattr(ReadIndex, "remove", counted)
    cache.drop_below(index, ENTRIES * 100 - 150)
    assert [entry.offset for entry in index] == [(ENTRIES - 2) * 100, (ENTRIES - 1) * 100]
    cache.drop_below(index, ENTRIES * 100)
    assert not len(index)
    assert alone <= 1
