"""What went wrong in Spark, as one line (docs/spark-jobs.md)."""

from __future__ import annotations

import pytest

from tailrace.pipelines.jobs.session import reason_of


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no reason given"),
        ("\n[PATH_NOT_FOUND] Path does not exist: file:/none. SQLSTATE: 42K03\n\tat x", None),
        ("[A] b\ntailrace.common.errors.DataError: one\n  tailrace.common.errors.DataLossError: two: 2", "two: 2"),
        ("[B] terminated with exception: [USER_RAISED_EXCEPTION] no field SQLSTATE: P0001 SQLSTATE: XX", "no field"),
    ],
)
def test_the_reason_of_a_message(text: str, reason: str | None) -> None:
    assert reason_of(text) == (reason or text.strip().splitlines()[0])
