"""Direct reads of Tier 2, their pure parts: ranges to references, bytes to events."""

from __future__ import annotations

import array
import itertools
import pickle
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import CorruptionError, SegmentTruncatedError
from tailrace.kernel import _frames, _frames_py, pack_events
from tailrace.pipelines.direct import SegmentReferences, events
from tailrace.pipelines.direct.events import EventBatch, EventFrames
from tailrace.pipelines.direct.references import requests
from tailrace.segmentstore.metadata.fields import ChunkRef

SEGMENT = "scope/stream/0.#epoch.0"
EVENTS = st.lists(st.binary(max_size=60), max_size=20)


def references(lengths: list[int], first: int, start: int) -> SegmentReferences:
    """Chunks of these lengths from `first` on, of a segment that begins at `start`."""
    chunks, at = [], first
    for number, length in enumerate(lengths):
        chunks.append(ChunkRef(f"c0/{number}", 70, at, length))
        at += length
    return SegmentReferences(SEGMENT, 5, 1, start, at, "s0/1", 1, tuple(chunks))


@st.composite
def _ranges(draw: st.DrawFn) -> tuple[SegmentReferences, int, int]:
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=8))
    first = draw(st.integers(0, 100))
    found = references(lengths, first, draw(st.integers(first, first + lengths[0] - 1)))
    start = draw(st.integers(found.start_offset, found.length + 20))
    return found, start, draw(st.integers(start, found.length + 40))


@given(_ranges())
def test_a_range_is_what_tier_2_has_and_what_follows(drawn: tuple[SegmentReferences, int, int]) -> None:
    found, start, end = drawn
    direct, store = found.split(start, end)
    parts = [part for part in (direct, store) if part]
    assert sum(stop - begin for begin, stop in parts) == end - start
    assert not parts or (parts[0][0], parts[-1][1]) == (start, end)
    assert direct is None or direct[1] <= found.length
    assert store is None or store[0] >= found.length


@given(_ranges(), st.sampled_from([1, 64, 100, 1000]))
def test_requests_are_the_bytes_of_a_range_once_and_in_order(
    drawn: tuple[SegmentReferences, int, int], max_bytes: int
) -> None:
    found, start, end = drawn
    start, end = min(start, found.length), min(end, found.length)
    small = found.within(start, end)
    position = start
    for ref, offset, length in requests(small, start, end, max_bytes):
        assert offset == position
        assert 0 < length <= max_bytes
        assert ref.segment_offset <= offset < offset + length <= ref.end
        position += length
        at = position - ref.segment_offset
        assert position == end or position == ref.end or at % max_bytes == 0  # whole blocks
    assert position == end
    assert list(requests(small, start, end, max_bytes)) == list(requests(found, start, end, max_bytes))
    assert pickle.loads(pickle.dumps(small)) == small


def test_a_range_that_is_truncated_is_named() -> None:
    with pytest.raises(SegmentTruncatedError, match=rf"{SEGMENT}: 10 bytes from offset 20 to 30 were truncated"):
        references([100], 0, 30).split(20, 40)
    assert references([100], 0, 30).split(20, 20) == (None, None)


def test_a_gap_between_references_is_named() -> None:
    found = references([10, 10], 0, 0)
    gap = SegmentReferences(SEGMENT, 5, 1, 0, 30, "s0/1", 1, (found.chunks[0], ChunkRef("c0/9", 70, 20, 10)))
    with pytest.raises(CorruptionError, match=rf"s0/1: no reference for byte 10 of segment {SEGMENT}"):
        list(requests(gap, 0, 30, 100))
    with pytest.raises(CorruptionError, match="no reference for byte 20"):
        list(requests(found, 0, 25, 100))


@pytest.mark.parametrize("module", [_frames, _frames_py], ids=["native", "pure"])
@given(sent=EVENTS, cuts=st.lists(st.integers(0, 1500), max_size=30), begin=st.integers(0, 2**40), data=st.data())
def test_events_over_any_boundaries_of_blocks(
    module: ModuleType, sent: list[bytes], cuts: list[int], begin: int, data: st.DataObject
) -> None:
    packed = pack_events(sent)
    starts = [begin]
    for event in sent:
        starts.append(starts[-1] + 8 + len(event))
    stop = begin + data.draw(st.integers(0, len(packed) + 5))
    frames = EventFrames(SEGMENT, begin, stop)
    got: list[bytes] = []
    offsets: list[int] = []
    edges = sorted({0, len(packed), *(cut for cut in cuts if cut <= len(packed))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "gather_events", module.gather_events)
        for first, last in itertools.pairwise(edges):
            batch = frames.add([memoryview(packed)[first:last]])
            if batch is not None:
                assert batch.count == len(batch.events()) > 0
                got += batch.events()
                offsets += array.array("q", batch.offsets)
            if frames.offset < stop and last < len(packed):
                assert begin + last < frames.wanted_to <= max(begin + len(packed), frames.offset + 8)
    expected = [(event, at) for event, at in zip(sent, starts, strict=False) if at < stop]
    assert list(zip(got, offsets, strict=True)) == expected
    assert frames.offset == starts[len(expected)]


def test_bytes_that_are_no_event_are_named() -> None:
    frames = EventFrames(SEGMENT, 1000, 2000)
    with pytest.raises(CorruptionError, match=rf"{SEGMENT} from offset 1000: no event begins at 11: type 7"):
        frames.add([memoryview(pack_events([b"abc"]) + b"\0\0\0\7" + bytes(20))])


def test_a_long_event_is_joined_once() -> None:
    """Each piece of it is kept as it came: looking at all of them for every piece would take quadratic time."""
    packed = pack_events([b"x" * 1_000_000, b"end"])
    frames = EventFrames(SEGMENT, 0, len(packed))
    calls = 0

    def counted(*arguments: Any) -> tuple[bytes, bytes, bytes, int]:
        nonlocal calls
        calls += 1
        return _frames.gather_events(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "gather_events", counted)
        batches = [frames.add([memoryview(packed)[at : at + 1000]]) for at in range(0, len(packed), 1000)]
    assert [len(event) for batch in batches if batch for event in batch.events()] == [1_000_000, 3]
    assert calls <= 3


def test_the_text_of_a_batch_is_without_its_bytes() -> None:
    """Python makes the text of a result that `asyncio.Runner.run` returns, each time."""
    batch = EventBatch(3, bytes(3000), bytes(16), bytes(24))
    assert repr(batch) == "EventBatch(count=3)"
