"""What a streaming query reads next, its offsets and its options (docs/spark.md)."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.model import SegmentRange, StreamName, Successor
from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import StreamCut
from tailrace.pipelines.source.offsets import from_offset, to_offset
from tailrace.pipelines.source.options import Moment, ValueFormat, parse_options
from tailrace.pipelines.source.plan import Slice, divided, follow, grouped, share, slices

STREAM = StreamName("scope", "stream")
OTHER = StreamName("scope", "other")
GIVEN = {"controller": "tcp://localhost:9090", "stream": "scope/stream"}


def successor(identifier: int, *predecessors: int) -> Successor:
    return Successor(SegmentRange(identifier, KeyRange(0.0, 1.0)), predecessors)


def test_a_split_segment_is_left_for_its_parts() -> None:
    assert follow({1: [successor(2, 1), successor(3, 1)]}) == ({1}, {2, 3})


def test_a_merge_waits_for_all_predecessors() -> None:
    assert follow({1: [successor(3, 1, 2)]}) == (set(), set())
    assert follow({1: [successor(3, 1, 2)], 2: [successor(3, 1, 2)]}) == ({1, 2}, {3})


def test_a_segment_stays_with_one_that_must_wait() -> None:
    """1 becomes 4 and part of 5, 2 becomes the rest of 5: neither may be left before 3 is read to its end."""
    first = [successor(4, 1), successor(5, 1, 2)]
    second = [successor(5, 1, 2), successor(6, 2, 3)]
    assert follow({1: first, 2: second}) == (set(), set())


def test_the_last_segments_of_a_sealed_stream_stay() -> None:
    assert follow({1: []}) == (set(), set())


@st.composite
def scales(draw: st.DrawFn) -> tuple[dict[int, list[Successor]], set[int]]:
    """A scale of up to six neighbours into up to six, with bounds anywhere, and which of the former are complete."""
    old = _ranges(draw(st.lists(st.integers(1, 99), max_size=5, unique=True)))
    new = _ranges(draw(st.lists(st.integers(1, 99), max_size=5, unique=True)))
    after = {
        100 + place: [index for index, each in enumerate(old) if each.overlaps(part)] for place, part in enumerate(new)
    }
    successors = {
        index: [
            Successor(SegmentRange(each, new[each - 100]), tuple(before))
            for each, before in after.items()
            if index in before
        ]
        for index in range(len(old))
    }
    return successors, draw(st.sets(st.sampled_from(range(len(old)))))


def _ranges(bounds: list[int]) -> list[KeyRange]:
    edges = [0.0, *(bound / 100 for bound in sorted(bounds)), 1.0]
    return [KeyRange(low, high) for low, high in itertools.pairwise(edges)]


@given(scales())
def test_what_follows_has_the_keys_of_what_is_left(case: tuple[dict[int, list[Successor]], set[int]]) -> None:
    successors, complete = case
    leaving, following = follow({each: successors[each] for each in complete})
    assert leaving <= complete
    expected = {after.segment.identifier for each in leaving for after in successors[each]}
    assert following == expected
    before = {
        each
        for one in following
        for after in itertools.chain(*successors.values())
        if after.segment.identifier == one
        for each in after.predecessors
    }
    assert before == leaving
    if complete == set(successors):
        assert leaving == complete


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 5000))
def test_shares_are_fair_and_bounded(unread: list[int], most: int) -> None:
    parts = share(unread, most)
    waiting = [each for each in unread if each]
    assert all(0 <= part <= size and (part > 0) == (size > 0) for part, size in zip(parts, unread, strict=True))
    assert sum(parts) <= max(most, len(waiting))
    if sum(unread) <= most:
        assert parts == unread
    short = [part for part, size in zip(parts, unread, strict=True) if part < size]
    assert not short or max(parts) - min(short) <= max(1, len(waiting)) or max(parts) <= min(short) + 1


@given(st.integers(0, 50), st.integers(1, 1000), st.lists(st.integers(0, 1200), max_size=20), st.integers(1, 400))
def test_a_slice_is_divided_only_where_events_begin(start: int, length: int, begins: list[int], most: int) -> None:
    whole = Slice(STREAM, 1, start, start + length)
    parts = divided(whole, begins, most)
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    assert {part.start for part in parts[1:]} <= set(begins)
    for part in parts:
        assert part.start < part.end
        inner = [each for each in begins if part.start < each < part.end]
        assert part.end - part.start <= most or not inner, "it could have been divided"
    together = [second.end - first.start for first, second in itertools.pairwise(parts)]
    assert all(size > most for size in together), "two parts would fit into one"


@given(
    st.dictionaries(
        st.sampled_from([STREAM, OTHER]),
        st.dictionaries(st.integers(0, 2**62), st.integers(0, 2**62), min_size=1),
        min_size=1,
    )
)
def test_offsets_survive_json_and_have_one_text(positions: dict[StreamName, dict[int, int]]) -> None:
    text = json.dumps(to_offset(positions))
    assert from_offset(json.loads(text), list(positions)) == positions
    backwards = {stream: dict(reversed(cut.items())) for stream, cut in reversed(positions.items())}
    assert json.dumps(to_offset(backwards)) == text


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ([], "no offset of this source"),
        ({"scope/stream": 5}, "no position in scope/stream"),
        ({"scope/stream": {"x": 5}}, "no position in scope/stream"),
        ({"scope/other": {"1": 5}}, "the checkpoint is of scope/other, the query reads scope/stream"),
    ],
)
def test_other_offsets_are_refused(offset: object, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        from_offset(offset, [STREAM])


def test_a_batch_has_what_lies_between_two_positions() -> None:
    found = slices({STREAM: {1: 10, 2: 5}}, {STREAM: {2: 5, 3: 40, 4: 0}})
    assert found == [Slice(STREAM, 3, 0, 40)]
    assert slices({STREAM: {1: 10}}, {STREAM: {1: 30}}) == [Slice(STREAM, 1, 10, 30)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"controller": ""}, "the option controller is missing"),
        ({"streams": "a/b"}, "give the option stream, or streams"),
        ({"stream": "a/b c/d"}, "names one stream"),
        ({"stream": "a"}, "not of the form SCOPE/STREAM"),
        ({"start": "x"}, "option start: 'x' is neither head, tail, a time nor a stream cut"),
        ({"end": StreamCut("scope", "other", {1: 2}).to_text()}, "option end: the cut is of the stream scope/other"),
        ({"failondataloss": "no"}, "option failOnDataLoss: 'no' is none of true, false"),
        ({"maxbytespertrigger": "0"}, "option maxBytesPerTrigger: '0' is not a number above 0"),
        ({"maxbytespertrigger": "²"}, "is not a number above 0"),
        ({"group": "spark"}, "not of the form SCOPE/GROUP"),
        ({"maxpartitions": "3"}, "there is no option maxpartitions"),
        ({"maxpartitionbytes": "0"}, "maxPartitionBytes: '0' is not a number above 0"),
        ({"minpartitionbytes": "-1"}, "minPartitionBytes: '-1' is not a number of at least 0"),
        ({"start": "2026-13-01"}, "option start: '2026-13-01' is no time in ISO 8601"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "option end: '2026-01-01' is before the start '2026-01-02'"),
        ({"start": "yesterday"}, "is neither head, tail, a time nor a stream cut"),
    ],
)
def test_wrong_options(changes: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        parse_options(GIVEN | changes, streaming=False)


def test_options_of_the_other_kind_of_query() -> None:
    with pytest.raises(BadRequestError, match="maxEventsPerTrigger is an option of streaming queries"):
        parse_options(GIVEN | {"maxeventspertrigger": "5"}, streaming=False)
    with pytest.raises(BadRequestError, match="the end of a streaming query is a stream cut"):
        parse_options(GIVEN | {"end": "tail"}, streaming=True)
    with pytest.raises(BadRequestError, match="not both"):
        parse_options(GIVEN | {"maxeventspertrigger": "5", "maxbytespertrigger": "5"}, streaming=True)


def test_options_are_parsed() -> None:
    cut = StreamCut("scope", "stream", {1: 2})
    given = {
        "controller": "tcp://a:1",
        "streams": "scope/stream, scope/other",
        "mode": "FAILFAST",
        "valueformat": "json",
    }
    parsed = parse_options(given, streaming=True)
    assert parse_options(GIVEN | {"end": cut.to_text()}, streaming=True).end == cut
    assert parsed.streams == (STREAM, OTHER)
    assert (parsed.value_format, parsed.fail_fast, parsed.fail_on_data_loss) == (ValueFormat.JSON, True, True)
    assert (parsed.max_bytes, parsed.min_partition_bytes) == (None, 0)
    assert parse_options(GIVEN | {"minpartitionbytes": "5"}, streaming=True).min_partition_bytes == 5
    assert parse_options(GIVEN | {"maxpartitionbytes": "5"}, streaming=False).max_partition_bytes == 5
    with pytest.raises(BadRequestError, match="maxPartitionBytes is an option of tables"):
        parse_options(GIVEN | {"maxpartitionbytes": "5"}, streaming=True)
    assert parse_options(GIVEN | {"start": cut.to_text()}, streaming=False).start == cut


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:02", 2000),
    ],
)
def test_times_are_in_utc_unless_they_have_a_zone(text: str, time_ms: int) -> None:
    assert parse_options(GIVEN | {"start": text}, streaming=True).start == Moment(time_ms)
    several = {"controller": "tcp://a:1", "streams": "scope/stream, scope/other", "end": text}
    assert parse_options(several, streaming=False).end == Moment(time_ms)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 100))
def test_groups_are_consecutive_and_no_larger_than_they_must_be(lengths: list[int], least: int) -> None:
    found = grouped(lengths, least)
    assert [index for group in found for index in group] == list(range(len(lengths)))
    sizes = [[lengths[index] for index in group] for group in found]
    assert all(sum(group) >= least for group in sizes[:-1])
    assert all(sum(group[:-1]) < max(least, 1) for group in sizes)
    assert least > 0 or [len(group) for group in sizes] == [1] * len(lengths)


@pytest.mark.parametrize(("direct", "is_read", "is_only"), [("auto", 1, 0), ("always", 1, 1), ("never", 0, 0)])
def test_direct_says_whether_a_table_looks_at_tier_2(direct: str, is_read: int, is_only: int) -> None:
    given = {"controller": "tcp://c:9090", "stream": "s/t", "tier2": "/data/tier2", "direct": direct}
    parsed = parse_options(given, streaming=False)
    assert (parsed.tier2 is not None, parsed.direct_only) == (is_read, is_only)
