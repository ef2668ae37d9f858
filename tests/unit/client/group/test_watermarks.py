"""Watermarks in the form that Java's readers expect, and the segment that holds them."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.context import ClientContext
from tailrace.client.group.watermarks import WATERMARK, MarkSegment
from tailrace.client.revisioned import RevisionedStream
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.ranges import KeyRange
from tailrace.common.watermarks import RangedSegment, Watermark

LEFT, RIGHT = RangedSegment(1 << 32 | 3, KeyRange(0.0, 0.5)), RangedSegment(4, KeyRange(0.5, 1.0))
MARK_SEGMENT = "s/_MARKstream/0.#epoch.0"
I64 = st.integers(-(2**63), 2**63 - 1)


def framed(body: bytes) -> bytes:
    """Format 0, version 0, one revision, number 0, its length, and the body."""
    return bytes([0, 0, 1, 0]) + struct.pack(">i", len(body)) + body


def test_the_bytes_are_those_of_the_document() -> None:
    """docs/protocol/naming.md#watermarks."""
    segments = (
        framed(struct.pack(">qdd", segment.identifier, *segment.key_range)) + struct.pack(">q", offset)
        for segment, offset in ((LEFT, 100), (RIGHT, 2**40))
    )
    expected = framed(struct.pack(">qq", -5, 17) + bytes([2]) + b"".join(segments))
    watermark = Watermark(-5, 17, {LEFT: 100, RIGHT: 2**40})
    assert WATERMARK.encode(watermark) == expected
    assert WATERMARK.decode(expected) == watermark


@given(I64, I64, st.dictionaries(st.sampled_from([LEFT, RIGHT]), st.integers(0, 2**63 - 1)))
def test_every_watermark_is_read_as_it_was_written(lower: int, upper: int, positions: dict[RangedSegment, int]) -> None:
    watermark = Watermark(lower, upper, positions)
    assert WATERMARK.decode(WATERMARK.encode(watermark)) == watermark


@given(st.binary(max_size=40))
def test_other_bytes_are_corruption_or_a_watermark(data: bytes) -> None:
    with contextlib.suppress(CorruptionError, FormatVersionError):
        assert isinstance(WATERMARK.decode(data), Watermark)


@pytest.fixture
def segment(store: Any, context: ClientContext) -> str:
    store.create(MARK_SEGMENT)
    return MARK_SEGMENT


async def mark_of(context: ClientContext, segment: str) -> int | None:
    return await RevisionedStream(context, segment).mark()


async def test_watermarks_are_appended_one_after_the_other(context: ClientContext, segment: str) -> None:
    writer = MarkSegment(context, segment)
    assert await writer.newest() is None
    for number in range(3):
        assert await writer.append(Watermark(number, number, {LEFT: number}))
    entries = await RevisionedStream(context, segment).read_from(0)
    assert [WATERMARK.decode(entry.payload).lower for entry in entries] == [0, 1, 2]
    assert await mark_of(context, segment) == entries[1].revision, "readers begin with the newest one"
    assert await MarkSegment(context, segment).newest() == Watermark(2, 2, {LEFT: 2})


async def test_nothing_is_appended_before_the_newest_one_is_known(context: ClientContext, segment: str) -> None:
    assert not await MarkSegment(context, segment).append(Watermark(1, 1, {}))
    assert await RevisionedStream(context, segment).latest() == 0


async def test_one_of_two_writers_is_refused_and_continues_after_the_other(
    context: ClientContext, segment: str
) -> None:
    first, second = MarkSegment(context, segment), MarkSegment(context, segment)
    for writer in (first, second):
        assert await writer.newest() is None
    assert await first.append(Watermark(1, 1, {LEFT: 1}))
    assert not await second.append(Watermark(2, 2, {LEFT: 2}))
    assert not await second.append(Watermark(3, 3, {LEFT: 3})), "it does not know the newest one yet"
    assert await second.newest() == Watermark(1, 1, {LEFT: 1})
    assert await second.append(Watermark(4, 4, {LEFT: 4}))
    assert not await first.append(Watermark(5, 5, {LEFT: 5}))
    assert await first.newest() == Watermark(4, 4, {LEFT: 4})


async def test_a_mark_that_did_not_move_is_moved_by_the_next_watermark(context: ClientContext, segment: str) -> None:
    """The controller ended between the two."""
    writer = MarkSegment(context, segment)
    await writer.newest()
    assert await writer.append(Watermark(1, 1, {LEFT: 1}))
    stream = RevisionedStream(context, segment)
    payload = WATERMARK.encode(Watermark(2, 2, {LEFT: 2}))
    assert await stream.write_conditionally(await stream.latest(), payload) is not None
    end = await stream.latest()
    successor = MarkSegment(context, segment)
    assert await successor.newest() == Watermark(2, 2, {LEFT: 2})
    assert await successor.append(Watermark(3, 3, {LEFT: 3}))
    assert await mark_of(context, segment) == end


async def test_a_segment_with_something_else_is_corruption(context: ClientContext, segment: str) -> None:
    await RevisionedStream(context, segment).write_conditionally(0, bytes([0, 0, 1, 1]))
    with pytest.raises(CorruptionError, match="_MARKstream"):
        await MarkSegment(context, segment).newest()
