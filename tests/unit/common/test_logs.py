"""Log lines (docs/operations/observe.md#logs)."""

from __future__ import annotations

import io
import json
import sys

import pytest
import structlog

from tailrace.common.logs import configure_logs


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
