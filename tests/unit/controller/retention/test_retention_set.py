"""How old the oldest retained byte is, by the cuts that were recorded (docs/controller.md#retention)."""

from __future__ import annotations

import pytest

from tailrace.controller.metadata.model import RecordedCut
from tailrace.controller.retention.retention_set import oldest_ms, written_before_ms

CREATED_MS = 5
RECORDED = [RecordedCut(0, 100, 10), RecordedCut(1, 200, 25), RecordedCut(2, 300, 30)]


@pytest.mark.parametrize(
    ("recorded", "until_head", "head", "tail", "expected"),
    [
        (RECORDED, 0, 0, 40, CREATED_MS),
        ([], 0, 0, 40, CREATED_MS),
        (RECORDED, 1, 10, 40, 100),
        (RECORDED, 1, 29, 40, 100),
        (RECORDED, 2, 29, 40, 200),
        (RECORDED, 3, 35, 40, 300),
        (RECORDED[1:], 0, 12, 40, 200),
        ([], 0, 12, 40, None),
        (RECORDED, 3, 40, 40, None),
        ([], 0, 0, 0, None),
    ],
)
def test_the_oldest_byte(
    recorded: list[RecordedCut], until_head: int, head: int, tail: int, expected: int | None
) -> None:
    assert oldest_ms(recorded, until_head, head, tail, CREATED_MS) == expected


@pytest.mark.parametrize(("until_position", "expected"), [(0, 100), (1, 200), (2, 300), (3, None)])
def test_a_byte_behind_a_position_is_older_than_the_first_cut_behind_it(
    until_position: int, expected: int | None
) -> None:
    assert written_before_ms(RECORDED, until_position) == expected
    assert written_before_ms([], 0) is None
