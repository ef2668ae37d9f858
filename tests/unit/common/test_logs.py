"""Log lines (docs/operations/observe.md#logs)."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import sys

import pytest
import structlog
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.logs import LimitedLog, configure_logs, configure_notes


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


class Gone(Unbuffered):
    """Takes no line until it is back, as a full disk; or never, as a terminal that has gone."""

    error: Exception | None = OSError(errno.EIO, "Input/output error")

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


def test_a_server_goes_on_without_lines_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Gone()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logs()
    log = structlog.get_logger()
    for say in (log.info, log.warning, log.error, log.critical):
        say("not_said")
    log.exception("not_said", exc_info=ValueError("a bug"))
    stderr.error = ValueError("another error is a bug")
    with pytest.raises(ValueError, match="is a bug"):
        log.info("not_said")
    stderr.error = None
    log.info("said")
    assert [json.loads(line)["event"] for line in stderr.writes] == ["said"]


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


async def test_lines_that_peers_cause_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_LINES_BURST", 3)
    monkeypatch.setattr(limits, "LOG_LINES_PER_S", 0.5)
    now_s = 100.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    with capture_logs() as lines:
        log = LimitedLog(structlog.get_logger())
        for number in range(10):
            log.warning("closed", number=number)
        log.error("other", number=0)
        now_s += 2.0
        log.warning("closed", number=10)
        log.warning("closed", number=11)
        now_s += 1000.0
        for number in range(12, 20):
            log.info("closed", number=number)
    shown = [line["number"] for line in lines if line["event"] == "closed"]
    assert shown == [0, 1, 2, 10, 12, 13, 14]
    assert [line.get("left_out") for line in lines] == [None, None, None, None, 7, 1, None, None]
    assert {line["log_level"] for line in lines} == {"warning", "error", "info"}
