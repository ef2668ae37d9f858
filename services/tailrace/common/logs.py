"""Sends logs to standard error: as lines for people on a terminal, otherwise as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import FilteringBoundLogger


def configure_logs(level: int = logging.INFO) -> None:
    """Send every log line of that level and above to standard error, times in UTC. Drop those it does not take."""
    stderr = sys.stderr
    people = stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=True) if people else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if people else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write per line, even unbuffered: the workers of a server share its standard error.
        logger_factory=lambda *_: _ServerLogger(stderr),
    )


def configure_notes() -> None:
    """Send warnings of a command's client to standard error, one line each; unless the program has its own logs."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[_as_note],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


class LibraryLog:
    """Logs of code that runs in applications: through structlog where the program has configured that, as servers do.

    Otherwise through `logging`, under the name of the module. Its warnings go to standard error unless the application
    says otherwise, and never to standard output, where structlog's own defaults write.
    """

    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._plain = logging.getLogger(name)

    def info(self, event: str, **fields: Any) -> None:
        """Log at level INFO."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log at level WARNING. ``exc_info`` is as in `logging`."""
        self._log(logging.WARNING, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            self._structured.log(level, event, **fields)
        elif self._plain.isEnabledFor(level):
            trace = fields.pop("exc_info", None)
            self._plain.log(level, "%s", _in_words(event, fields), exc_info=trace, stacklevel=3)


class _ServerLogger(structlog.WriteLogger):
    """Drops a line that cannot be written, as to a terminal that has gone: nothing else may fail because of it."""

    def msg(self, message: str) -> None:
        """Write and flush a line."""
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


@dataclass(slots=True)
class _Allowance:
    """The lines of one event that may be logged now, as of a time, and how many were left out before."""

    lines: float
    at_s: float
    left_out: int = 0


class LimitedLog:
    """Logs what peers cause, so that none of them fills a disk with it.

    Of each event at most ``limits.LOG_LINES_BURST`` lines at once, and ``limits.LOG_LINES_PER_S`` in the long run. A
    line says in ``left_out`` how many lines of its event were left out before it. Events must be few and fixed.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._allowances: dict[str, _Allowance] = {}

    def info(self, event: str, **fields: Any) -> None:
        """Log a line at level INFO, or count it."""
        if self._may_log(event, fields):
            self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log a line at level WARNING, or count it."""
        if self._may_log(event, fields):
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a line at level ERROR, or count it."""
        if self._may_log(event, fields):
            self._log.error(event, **fields)

    def _may_log(self, event: str, fields: dict[str, Any]) -> bool:
        now_s = asyncio.get_running_loop().time()
        allowance = self._allowances.setdefault(event, _Allowance(limits.LOG_LINES_BURST, now_s))
        earned = (now_s - allowance.at_s) * limits.LOG_LINES_PER_S
        allowance.lines, allowance.at_s = min(allowance.lines + earned, limits.LOG_LINES_BURST), now_s
        if allowance.lines < 1:
            allowance.left_out += 1
            return False
        allowance.lines -= 1
        if allowance.left_out:
            fields["left_out"], allowance.left_out = allowance.left_out, 0
        return True


def _as_note(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """Return ``tailrace: what happened: key=value, …``, without a traceback."""
    words = str(event.pop("event"))
    event.pop("exc_info", None)
    return f"tailrace: {_in_words(words, event)}"


def _in_words(event: str, fields: Mapping[str, Any]) -> str:
    """Return ``what happened: key=value, …``."""
    return f"{event.replace('_', ' ')}: " + ", ".join(f"{key}={value}" for key, value in fields.items())
