"""What ``inspect verify`` says of logs in objects that Tier 2 alone does not prove to be whole."""

from __future__ import annotations

import pytest

from tailrace.cli.verify_output import print_report
from tailrace.segmentstore.verify.report import LogEnd, Report


def text_of(capsys: pytest.CaptureFixture[str], *ends: LogEnd) -> list[str]:
    report = Report(containers=len(ends))
    report.log_ends += ends
    print_report("s3://bucket/prefix", report)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "s3://bucket/prefix: healthy"
    return [line for line in lines if "epoch" in line]


def test_logs_whose_end_the_folder_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert text_of(capsys, LogEnd(0, 3, 3, True), LogEnd(1, 2, 2, True)) == []


def test_logs_that_may_have_lost_their_newest_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = text_of(capsys, LogEnd(0, 3, 3, True), LogEnd(1, 2, 4, False), LogEnd(2, 5, 5, False))
    assert first.startswith("2 logs were checked up to the newest epoch that Tier 2 shows")
    assert second.startswith("container 1: epoch 4 is claimed and its log holds nothing")
