"""Lives of segments, and where cuts are in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.pictures import pixels
from tailrace.cli import history, history_plot
from tailrace.cli.history_plot import ACTIVE_COLOR, SEALED_COLOR
from tailrace.client.control.history import HistoryEpoch, StreamHistory
from tailrace.common.ranges import KeyRange

NOW_MS = 10_000
MS_PER_DAY = 86_400_000
ONE, LEFT, RIGHT, MERGED = 0, (1 << 32) + 1, (1 << 32) + 2, (2 << 32) + 3


def made(**changes: Any) -> StreamHistory:
    epochs = (
        HistoryEpoch(0, 1000, 0, 0, 0, {ONE: KeyRange(0.0, 1.0)}),
        HistoryEpoch(1, 3000, 1, 1, 0, {LEFT: KeyRange(0.0, 0.25), RIGHT: KeyRange(0.25, 1.0)}),
        HistoryEpoch(2, 7000, 2, 0, 1, {MERGED: KeyRange(0.0, 1.0)}),
    )
    sizes = {ONE: 100, LEFT: 40, RIGHT: 0}
    found = StreamHistory("active", epochs, sizes, {LEFT: 10, RIGHT: 0}, {"s/g": {MERGED: 50}, "s/new": {}}, None)
    return found._replace(**changes)


def test_a_segment_lives_from_its_epoch_to_the_first_one_without_it() -> None:
    found = history.segment_spans(made(), {MERGED: 200}, NOW_MS)
    assert found == [
        history.SegmentSpan(ONE, 0.0, 1.0, 1000, 3000, True, 100),
        history.SegmentSpan(LEFT, 0.0, 0.25, 3000, 7000, True, 40),
        history.SegmentSpan(RIGHT, 0.25, 1.0, 3000, 7000, True, 0),
        history.SegmentSpan(MERGED, 0.0, 1.0, 7000, NOW_MS, False, 200),
    ]


def test_a_segment_may_live_through_several_epochs_and_a_sealed_stream_ends() -> None:
    kept = {LEFT: KeyRange(0.0, 0.25), RIGHT: KeyRange(0.25, 1.0)}
    epochs = (*made().epochs[:2], HistoryEpoch(2, 5000, 2, 1, 0, {LEFT: kept[LEFT], MERGED: KeyRange(0.25, 1.0)}))
    found = {each.identifier: each for each in history.segment_spans(made(epochs=epochs, sealed_ms=9000), {}, NOW_MS)}
    assert (found[LEFT].from_ms, found[LEFT].to_ms, found[LEFT].is_sealed) == (3000, 9000, True)
    assert (found[RIGHT].to_ms, found[MERGED].to_ms) == (5000, 9000)
    assert found[MERGED].length_bytes is None


def test_the_line_of_a_cut_is_where_its_bytes_were_written() -> None:
    found = history.segment_spans(made(), {MERGED: 200}, NOW_MS)
    assert history.cut_lines(found, {RIGHT: 0, LEFT: 10}) == [(0.0, 0.25, 4000.0), (0.25, 1.0, 3000.0)]
    assert history.cut_lines(found, {MERGED: 50}) == [(0.0, 1.0, 7750.0)]
    assert history.cut_lines(found, {MERGED: 500}) == [(0.0, 1.0, 10_000.0)], "not after the present"
    assert history.cut_lines(found, {99: 5}) == []


def test_as_json() -> None:
    shown = history.as_json("s/t", made(), history.segment_spans(made(), {MERGED: 200}, NOW_MS))
    assert (shown["scope"], shown["stream"], shown["state"]) == ("s", "t", "active")
    assert [each["segments"] for each in shown["epochs"]] == [[ONE], [LEFT, RIGHT], [MERGED]]
    assert [each["sealed_ms"] for each in shown["segments"]] == [3000, 7000, 7000, None]
    assert shown["head"] == {str(LEFT): 10, str(RIGHT): 0}
    assert shown["subscribers"][0] == {"subscriber": "s/g", "cut": {str(MERGED): 50}}


Box = tuple[float, float, float, float]
"""From and to in ms since 1970, lowest and highest key."""


def drawn(found: StreamHistory) -> tuple[dict[str, list[Box]], dict[str, list[tuple[float, float]]]]:
    """The boxes and the lines of the picture, by what they are."""
    boxes: dict[str, list[Box]] = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    (panel,) = history_plot.figure_of("s/t", found, history.segment_spans(found, {MERGED: 200}, NOW_MS)).axes
    for area in panel.collections:
        extents = area.get_datalim(panel.transData).extents
        begin, low, end, high = (float(value) for value in extents)
        boxes.setdefault(str(area.get_gid()), []).append((_ms(begin), _ms(end), round(low, 9), round(high, 9)))
    for line in panel.lines:
        points = np.asarray(line.get_path().vertices).tolist()
        lines[str(line.get_gid())] = [(_ms(day), round(key, 9)) for day, key in points]
    return boxes, lines


def _ms(day: float) -> float:
    return round(day * MS_PER_DAY)


def test_the_picture_has_each_segment_the_head_and_the_position_of_each_subscriber() -> None:
    boxes, lines = drawn(made())
    assert boxes == {
        f"segment {ONE}": [(1000, 3000, 0.0, 1.0)],
        f"segment {LEFT}": [(3000, 7000, 0.0, 0.25)],
        f"segment {RIGHT}": [(3000, 7000, 0.25, 1.0)],
        f"segment {MERGED}": [(7000, NOW_MS, 0.0, 1.0)],
        "truncated": [(1000, 4000, 0.0, 0.25), (1000, 3000, 0.25, 1.0)],
    }
    assert lines == {"read by s/g": [(7750, 0.0), (7750, 1.0)]}, "a subscriber without a cut is nowhere"


def test_the_line_of_a_subscriber_has_a_step_for_each_segment() -> None:
    _, lines = drawn(made(subscribers={"s/g": {LEFT: 10, RIGHT: 0}, "s/h": {ONE: 50}}))
    assert lines == {
        "read by s/g": [(4000, 0.0), (4000, 0.25), (3000, 0.25), (3000, 1.0)],
        "read by s/h": [(2000, 0.0), (2000, 1.0)],
    }


@pytest.mark.parametrize(
    ("changes", "last_ms"), [({"head": {}, "subscribers": {}}, NOW_MS), ({"head": {}, "sealed_ms": 9000}, 9000)]
)
def test_the_picture_of_a_stream_that_was_never_truncated(changes: dict[str, Any], last_ms: int) -> None:
    boxes, lines = drawn(made(**changes))
    assert set(boxes) == {f"segment {each}" for each in (ONE, LEFT, RIGHT, MERGED)}
    assert boxes[f"segment {MERGED}"] == [(7000, last_ms, 0.0, 1.0)]
    assert bool(lines) is ("subscribers" not in changes)


def test_the_file_has_the_picture(tmp_path: Path) -> None:
    found = made(head={}, subscribers={})
    file = tmp_path / "history.png"
    history_plot.plot("s/t", found, history.segment_spans(found, {MERGED: 200}, NOW_MS), file)
    sealed, active = pixels(file, SEALED_COLOR), pixels(file, ACTIVE_COLOR)
    assert sealed > active > 0, "the segments that are sealed cover two thirds"
