"""Stream cuts: the Java text form, bad input, and the order of cuts."""

import base64
import gzip
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits, names
from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange
from tailrace.common.stream_cut import (
    CutOrder,
    StreamCut,
    compare_cuts,
    pairs_of_positions,
    parse_stream_cut,
)

S0, S1 = names.segment_id(0, 0), names.segment_id(1, 0)
S2, S3 = names.segment_id(2, 1), names.segment_id(3, 1)
S4 = names.segment_id(4, 2)
RANGES = {
    S0: KeyRange(0, 0.5),
    S1: KeyRange(0.5, 1),
    S2: KeyRange(0, 0.25),
    S3: KeyRange(0.25, 0.5),
    S4: KeyRange(0.25, 1),  # made of segments 3 and 1
}


def packed(plain: str) -> str:
    return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


@given(
    st.dictionaries(
        st.builds(names.segment_id, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
        st.integers(-1, 2**63 - 1),
        max_size=20,
    )
)
def test_text_form_round_trips(positions: dict[int, int]) -> None:
    cut = StreamCut("scope", "stream", positions)
    assert parse_stream_cut(cut.to_text()) == cut
    assert hash(parse_stream_cut(cut.to_text())) == hash(cut)


def test_text_form_is_the_java_clients() -> None:
    text = StreamCut("a", "b", {S0: 7, S3: -1}).to_text()
    assert gzip.decompress(base64.b64decode(text)) == b"0:a/b:0,3:0,1:7,-1"
    assert parse_stream_cut(packed("0:a/b:3,0:1,0:-1,7")) == StreamCut("a", "b", {S0: 7, S3: -1})
    assert parse_stream_cut("UNBOUNDED") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no base64!",
        base64.b64encode(b"not gzip").decode(),
        base64.b64encode(gzip.compress(b"0:a/b:0:0:0", mtime=0)[:-6]).decode(),
        packed("1:a/b:0:0:0"),
        packed("0:ab:0:0:0"),
        packed("0:a/b:0,1:0:0"),
        packed("0:a/b:x:0:0"),
        packed("0:a/b:0,0:0,0:1,2"),
        packed("0:a/b:-1:0:0"),
        packed("0:a/b:0:0:-2"),
        packed("0:a b/c:0:0:0"),
        base64.b64encode(gzip.compress(b"\xff\xfe", mtime=0)).decode(),
        "A" * (limits.STREAM_CUT_TEXT_MAX_BYTES + 4),
    ],
)
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_stream_cut(text)


def test_a_small_text_cannot_grow_without_bound() -> None:
    bomb = packed("0:a/b:" + "1," * limits.STREAM_CUT_PLAIN_MAX_BYTES)
    with pytest.raises(BadRequestError, match="larger than"):
        parse_stream_cut(bomb)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ({S0: 5, S1: 5}, {S0: 5, S1: 5}, CutOrder.EQUAL_OR_AFTER),
        ({S0: 5, S1: 4}, {S0: 5, S1: 5}, CutOrder.BEFORE),
        ({S0: 6, S1: 4}, {S0: 5, S1: 5}, CutOrder.OVERLAPS),
        ({S0: 900, S1: 5}, {S2: 0, S3: 0, S1: 5}, CutOrder.BEFORE),
        ({S2: 0, S4: 0}, {S0: 900, S1: 900}, CutOrder.EQUAL_OR_AFTER),
        ({S2: 0, S3: 9, S1: 9}, {S0: 3, S1: 10}, CutOrder.OVERLAPS),
    ],
)
def test_order_of_cuts(first: dict[int, int], second: dict[int, int], order: CutOrder) -> None:
    assert compare_cuts(first, second, RANGES) is order


def test_cuts_are_compared_at_every_pair_of_segments_with_common_keys(test_seed: int) -> None:
    chance = random.Random(test_seed)
    overlapping = 0
    for _ in range(2_000):
        ranges: dict[int, KeyRange] = {}
        cuts = [_some_cut(chance, ranges, disjoint=chance.random() < 0.8) for _ in range(2)]
        first, second = cuts
        expected = {
            ((one >> 32, one, first[one]), (other >> 32, other, second[other]))
            for one in first
            for other in second
            if ranges[one].overlaps(ranges[other])
        }
        found = list(pairs_of_positions(first, second, ranges))
        assert sorted(found) == sorted(expected)
        overlapping += len(found) > max(len(first), len(second))
    assert overlapping > 200


def _some_cut(chance: random.Random, ranges: dict[int, KeyRange], *, disjoint: bool) -> dict[int, int]:
    edges = [0.0, *sorted(chance.sample([each / 16 for each in range(1, 16)], chance.randint(0, 6))), 1.0]
    placed = [KeyRange(low, high) for low, high in itertools.pairwise(edges)]
    if not disjoint:
        placed.append(KeyRange(*sorted(chance.sample(edges, 2))))
    cut = {}
    for each in placed:
        identifier = segment_id(len(ranges), chance.randint(0, 3))
        ranges[identifier] = each
        cut[identifier] = chance.randint(0, 9)
    return cut
