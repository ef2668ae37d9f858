"""Lives of segments, and where cuts are in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import history, history_plot
from tailrace.client.control.history import HistoryEpoch, StreamHistory
from tailrace.common.ranges import KeyRange

NOW_MS = 10_000
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
    found = history.lives(made(), {MERGED: 200}, NOW_MS)
    assert found == [
        history.Life(ONE, 0.0, 1.0, 1000, 3000, True, 100),
        history.Life(LEFT, 0.0, 0.25, 3000, 7000, True, 40),
        history.Life(RIGHT, 0.25, 1.0, 3000, 7000, True, 0),
        history.Life(MERGED, 0.0, 1.0, 7000, NOW_MS, False, 200),
    ]


def test_a_segment_may_live_through_several_epochs_and_a_sealed_stream_ends() -> None:
    kept = {LEFT: KeyRange(0.0, 0.25), RIGHT: KeyRange(0.25, 1.0)}
    epochs = (*made().epochs[:2], HistoryEpoch(2, 5000, 2, 1, 0, {LEFT: kept[LEFT], MERGED: KeyRange(0.25, 1.0)}))
    found = {each.identifier: each for each in history.lives(made(epochs=epochs, sealed_ms=9000), {}, NOW_MS)}
    assert (found[LEFT].from_ms, found[LEFT].to_ms, found[LEFT].is_sealed) == (3000, 9000, True)
    assert (found[RIGHT].to_ms, found[MERGED].to_ms) == (5000, 9000)
    assert found[MERGED].length_bytes is None


def test_the_line_of_a_cut_is_where_its_bytes_were_written() -> None:
    found = history.lives(made(), {MERGED: 200}, NOW_MS)
    assert history.cut_lines(found, {RIGHT: 0, LEFT: 10}) == [(0.0, 0.25, 4000.0), (0.25, 1.0, 3000.0)]
    assert history.cut_lines(found, {MERGED: 50}) == [(0.0, 1.0, 7750.0)]
    assert history.cut_lines(found, {MERGED: 500}) == [(0.0, 1.0, 10_000.0)], "not after the present"
    assert history.cut_lines(found, {99: 5}) == []


def test_as_json() -> None:
    shown = history.as_json("s/t", made(), history.lives(made(), {MERGED: 200}, NOW_MS))
    assert (shown["scope"], shown["stream"], shown["state"]) == ("s", "t", "active")
    assert [each["segments"] for each in shown["epochs"]] == [[ONE], [LEFT, RIGHT], [MERGED]]
    assert [each["sealed_ms"] for each in shown["segments"]] == [3000, 7000, 7000, None]
    assert shown["head"] == {str(LEFT): 10, str(RIGHT): 0}
    assert shown["subscribers"][0] == {"subscriber": "s/g", "cut": {str(MERGED): 50}}


@pytest.mark.parametrize("changes", [{}, {"head": {}, "subscribers": {}}, {"sealed_ms": 9000}])
def test_the_picture_is_drawn(changes: dict[str, Any], tmp_path: Path) -> None:
    found = made(**changes)
    file = tmp_path / "history.png"
    history_plot.plot("s/t", found, history.lives(found, {MERGED: 200}, NOW_MS), file)
    assert file.read_bytes().startswith(b"\x89PNG")
