"""How old the oldest retained byte is, by the cuts that were recorded (docs/controller.md#retention)."""

from __future__ import annotations

import pytest

from tailrace.controller.metadata.model import RecordedCut
from tailrace.controller.retention.retention_set import oldest_ms, written_before_ms

CREATED_MS = 5
RECORDED = [RecordedCut(0, 100, 10), RecordedCut(1, 200, 25), RecordedCut(2, 300, 30)]


@pytest.mark.parametrize(
    ("recorded", "head", "tail", "expected"),
    [
        (RECORDED, 0, 40, CREATED_MS),
        ([], 0, 40, CREATED_MS),
        (RECORDED, 10, 40, 100),
        (RECORDED, 12, 40, 100),
        (RECORDED, 29, 40, 200),
        (RECORDED, 35, 40, 300),
        (RECORDED[1:], 12, 40, 200),
        ([], 12, 40, None),
        (RECORDED, 40, 40, None),
        ([], 0, 0, None),
    ],
)
def test_the_oldest_byte(recorded: list[RecordedCut], head: int, tail: int, expected: int | None) -> None:
    assert oldest_ms(recorded, head, tail, CREATED_MS) == expected


@pytest.mark.parametrize(
    ("position", "expected"), [(0, 100), (9, 100), (10, 200), (24, 200), (25, 300), (29, 300), (30, None)]
)
def test_a_byte_behind_a_position_is_older_than_the_first_cut_behind_it(position: int, expected: int | None) -> None:
    assert written_before_ms(RECORDED, position) == expected
    assert written_before_ms([], position) is None
