"""What the driver of a Pipeline leaves for Kubernetes: numbers, or one line of its error."""

import io
from pathlib import Path

import pytest

from tailrace.cli.pod import job
from tailrace_operator.pipeline import render


def test_numbers_are_left_without_the_position() -> None:
    text = '{"batches": 2, "rows": 300, "position": {"a/b": {"0": 5}}}'
    assert job.result_of(0, text, "") == (0, '{"batches": 2, "rows": 300}')
    assert job.result_of(0, "no JSON", "warning") == (0, "")
    assert job.result_of(0, "[1]", "") == (0, "")


def test_an_error_is_left_as_its_last_line() -> None:
    assert job.result_of(1, "", "tailrace: no such stream") == (1, "tailrace: no such stream")
    assert job.result_of(1, "", "") == (1, "exit code 1")
    assert len(job.result_of(1, "", "x" * 10_000)[1]) == job.MESSAGE_MAX_BYTES


def test_findings_of_an_audit_are_no_error_that_another_run_could_mend() -> None:
    text = '{"healthy": false, "findings": {"orphan": 2, "damaged": 1}, "report": "s3a://lake/audits/2026"}'
    code, message = job.result_of(1, text, "a warning")
    assert code == job.FINDINGS_CODE
    assert code == render.FINDINGS_CODE
    assert message == "the audit has findings (1 damaged, 2 orphan); its report is s3a://lake/audits/2026"
    assert job.result_of(0, text, "")[0] == 0


def test_a_kept_stream_passes_everything_on() -> None:
    stream = io.StringIO()
    kept = job.Kept(stream)
    for part in ("one\ntw", "o\n", "\n", "incomplete"):
        kept.write(part)
    assert stream.getvalue() == "one\ntwo\n\nincomplete"
    assert kept.last == "two"


def test_a_wrong_option_ends_the_job_with_its_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole way, through the command line."""
    message = tmp_path / "message"
    monkeypatch.setenv("TERMINATION_MESSAGE", str(message))
    monkeypatch.setattr("sys.argv", ["job.py", "archive", "a/b", "s3a://lake/x", "--colour=red"])
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert job.main() == 2
    assert "no such option: --colour" in message.read_text()
