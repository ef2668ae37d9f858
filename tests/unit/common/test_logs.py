"""Log lines (docs/operations/observe.md#logs)."""

from __future__ import annotations

import io
import json
import sys

import pytest
import structlog

from tailrace.common.logs import configure_logs, configure_notes


class Unbuffered(io.StringIO):
    """Keeps what each write brought."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share their standard error would mix their lines otherwise."""
    stderr = Unbuffered()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logs()
    structlog.get_logger().info("said", number=1)
    (line,) = stderr.writes
    assert line.endswith("\n")
    assert json.loads(line)["event"] == "said"


def test_a_commands_warnings_are_one_line_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Unbuffered()
    monkeypatch.setattr(sys, "stderr", stderr)
    structlog.reset_defaults()
    configure_notes()
    structlog.get_logger().info("not_said")
    structlog.get_logger().warning("write_waits", segment="s", reason="gone", exc_info=True)
    assert stderr.writes == ["tailrace: write waits: segment=s, reason=gone\n"]
    configure_logs()
    configure_notes()  # a server's logs stay what they are
    structlog.get_logger().info("said")
    assert json.loads(stderr.writes[1])["event"] == "said"
