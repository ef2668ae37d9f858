"""Segments, splits and merges as texts."""

from typing import Any

import pytest

from tailrace.cli.commands.stream import segment_table
from tailrace.cli.segments import find_segment, plan_texts
from tailrace.client.control.scale_plan import ScalePlan
from tailrace.client.model import SegmentRange
from tailrace.common.errors import BadRequestError
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange, equal_ranges

FOUR = [SegmentRange(segment_id(number, 0), key_range) for number, key_range in enumerate(equal_ranges(4))]


def test_splits_and_merges_together() -> None:
    ranges = (KeyRange(0.0, 0.125), KeyRange(0.125, 0.25), KeyRange(0.5, 1.0))
    assert plan_texts(FOUR, ["0:2"], ["3,2.#epoch.0"]) == ScalePlan((0, 3, 2), ranges, 4)


def test_a_segment_is_found_by_id_number_and_name() -> None:
    segments = [SegmentRange(segment_id(7, 3), KeyRange(0.0, 1.0))]
    for text in (str(segment_id(7, 3)), "7", "7.#epoch.3", " 7 "):
        assert find_segment(segments, text) is segments[0]
    for text in ("8", "7.#epoch.2", "-7", "", "seven", "7.0"):
        with pytest.raises(BadRequestError):
            find_segment(segments, text)


@pytest.mark.parametrize(
    ("splits", "merges", "message"),
    [
        (["0"], [], "--split '0' is not of the form ID:N"),
        (["0:1"], [], "of the form ID:N"),
        (["0:x"], [], "of the form ID:N"),
        (["0:" + "9" * 5000], [], "of the form ID:N"),
        (["9" * 5000 + ":2"], [], "is not a segment id"),
        (["9:2"], [], "segment 9 is not active; active segments: 0, 1, 2, 3"),
        ([], ["0"], "--merge '0' is not of the form ID,ID"),
        ([], ["0,x"], "'x' is not a segment id"),
        ([], ["0,2"], "are not neighbours"),
        (["0:2"], ["0,1"], "named twice"),
    ],
)
def test_what_cannot_be_done(splits: list[str], merges: list[str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        plan_texts(FOUR, splits, merges)


def test_a_table_of_segments_has_rates_where_they_have_a_unit() -> None:
    row: dict[str, Any] = {"id": 7, "number": 7, "epoch": 0, "low": 0.0, "high": 0.25, "start_offset": 10, "length": 20}
    found = [{**row, "rate_per_s": 1234.56}, {**row, "rate_per_s": None}]
    columns, rows = segment_table(found, None)
    assert columns == ("segment", "number", "epoch", "keys", "start", "length")
    assert rows == [("7", 7, 0, "0 – 0.25", 10, 20)] * 2
    with_rates, rated = segment_table(found, "events/s")
    assert with_rates == (*columns, "events/s")
    assert rated == [(*rows[0], "1,234.6"), (*rows[1], "unknown")]
