"""A long segment is divided where chunks say that an event begins, and nowhere else."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from tailrace.common import limits
from tailrace.kernel import pack_events
from tailrace.pipelines.direct import DirectEvents, SegmentReferences, divisions
from tailrace.pipelines.direct.divisions import begins_event
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.container.container import Container

from .conftest import Owned

A = "scope/a/0.#epoch.0"
PARTS = [pack_events([b"looks like an event"] * 40)] * 3
"""A large event in three appends, of which each could be taken for events."""


class Written:
    """Events of one segment, in the order in which they are in it."""

    def __init__(self, container: Container, seed: int) -> None:
        self.container = container
        self.sent: list[bytes] = []
        self._rng = random.Random(seed)
        self._numbers = itertools.count()

    @property
    def starts(self) -> set[int]:
        """Where events begin."""
        return set(itertools.accumulate((8 + len(event) for event in self.sent), initial=0))

    async def some(self, segment: str = A) -> list[bytes]:
        """Write a block of events."""
        events = [self._rng.randbytes(self._rng.randrange(200)) for _ in range(self._rng.randrange(1, 8))]
        await self.container.append(segment, [pack_events(events)])
        return events

    async def plain(self) -> None:
        """Write to the segment itself."""
        self.sent += await self.some()

    async def transaction(self) -> None:
        """Commit a transaction of several blocks, some of which may be flushed before."""
        name = f"{A}#transaction.{next(self._numbers):032x}"
        await self.container.create_segment(name)
        events = await self.some(name)
        await self.maybe_flush()
        events += await self.some(name)
        await self._merge(name)
        self.sent += events

    async def large(self) -> None:
        """Write one event in several appends to a transient segment."""
        name = f"{A}#transient.{next(self._numbers):032x}"
        await self.container.create_segment(name, kind=SegmentKind.TRANSIENT)
        whole = pack_events([b"".join(PARTS)])
        position = 0
        for length in (8 + len(PARTS[0]), len(PARTS[1]), len(PARTS[2])):
            await self.container.append(name, [whole[position : position + length]])
            position += length
            await self.maybe_flush()
        await self._merge(name)
        self.sent.append(b"".join(PARTS))

    async def maybe_flush(self) -> None:
        """Write what is there to Tier 2, in half of the cases."""
        if self._rng.random() < 0.5:
            await self.container.background.writer.flush_all(self.container.core.log.next_sequence - 1)

    async def _merge(self, name: str) -> None:
        await self.container.seal(name)
        await self.container.merge(A, name)

    async def anything(self) -> None:
        """One of the above."""
        await self._rng.choice([self.plain, self.plain, self.transaction, self.large])()
        await self.maybe_flush()


async def read_in_parts(owned: Owned, found: SegmentReferences, begins: list[int]) -> list[bytes]:
    """Read each part by itself."""
    got: list[bytes] = []
    for start, end in itertools.pairwise([0, *begins, found.length]):
        reader = DirectEvents(owned.tier2, found.within(start, end), start, end)
        got += [event async for batch in reader.batches() for event in batch.events()]
        assert reader.offset == end
    return got


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_parts_begin_where_events_begin(
    owned: Owned, monkeypatch: pytest.MonkeyPatch, seed: int, *, compacts: bool
) -> None:
    """Through merges, large events, owners that come and go, and compaction, which may join chunks within events."""
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 0.01 if compacts else 3600.0)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    container = await owned.open()
    await container.create_segment(A)
    written = Written(container, seed)
    for number in range(120):
        await written.anything()
        if number % 50 == 49:
            await owned.snapshot()
            written.container = await owned.open()
    await owned.snapshot()
    found = await owned.references(A)
    whole = found.length
    for most in (whole // 20, whole // 7, whole // 3):
        begins = await divisions(owned.tier2, found, 0, whole, most)
        assert compacts or most > whole // 20 or len(begins) >= 2
        assert set(begins) <= written.starts
        assert await read_in_parts(owned, found, begins) == written.sent


async def test_a_segment_that_one_owner_wrote_is_divided_evenly(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 3600.0)  # chunks that were joined are longer
    container = await owned.open()
    await container.create_segment(A)
    written = Written(container, 1)
    for _ in range(200):
        await written.plain()
        await container.background.writer.flush_all(container.core.log.next_sequence - 1)
    await owned.snapshot()
    found = await owned.references(A)
    most = found.length // 10
    begins = await divisions(owned.tier2, found, 0, found.length, most)
    assert max(end - start for start, end in itertools.pairwise([0, *begins, found.length])) <= most
    assert await read_in_parts(owned, found, begins) == written.sent
    assert await divisions(owned.tier2, found, begins[0], begins[2], found.length) == []
    within = await divisions(owned.tier2, found, begins[0], begins[9], most)
    assert set(within) <= written.starts
    assert begins[0] < min(within)
    assert max(within) < begins[9]


async def test_what_compaction_joins_begins_an_event_where_its_first_chunk_did(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMPACT_TICK_S", 0.01)
    container = await owned.open()
    await container.create_segment(A)
    written = Written(container, 3)
    for _ in range(100):
        await written.plain()
        await container.background.writer.flush_all(container.core.log.next_sequence - 1)
    async with asyncio.timeout(120):
        while container.background.compaction.replaced_refs < 3 * limits.COMPACT_RUN_MIN:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await owned.snapshot()
    found = await owned.references(A)
    assert len(found.chunks) < 100
    assert [ref for ref in found.chunks if not await begins_event(owned.tier2, ref)] == []
    assert {ref.segment_offset for ref in found.chunks} <= written.starts


async def test_what_a_new_owner_finds_in_the_log_is_in_doubt(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint behind the merge, so that the new owner does not see which appends came by it."""
    container = await owned.open()
    await container.create_segment(A)
    written = Written(container, 4)
    monkeypatch.setattr(written, "maybe_flush", lambda: asyncio.sleep(0))
    await written.plain()
    await written.large()
    await container.background.checkpointer.run_if_due(force=True)
    written.container = await owned.open()
    segment = written.container.state.by_name[A]
    length = segment.length
    assert {item.offset for item in segment.pending} - written.starts
    assert not any(segment.event_starts.is_start(item.offset) for item in segment.pending)
    await written.plain()
    assert segment.event_starts.is_start(length)


async def test_chunks_within_an_event_are_no_places_to_divide(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await owned.open()
    await container.create_segment(A)
    written = Written(container, 2)
    monkeypatch.setattr(written, "maybe_flush", lambda: written.container.flush_to_storage())
    await written.large()
    await owned.snapshot()
    found = await owned.references(A)
    assert len(found.chunks) == 3
    assert await divisions(owned.tier2, found, 0, found.length, found.length // 5) == []
