"""Sends logs to standard error: as lines for people on a terminal, otherwise as JSON."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: int = logging.INFO) -> None:
    """Send every log line of that level and above to standard error, times in UTC."""
    people = sys.stderr.isatty()
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
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
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


def _as_note(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """Return ``tailrace: what happened: key=value, …``, without a traceback."""
    words = str(event.pop("event")).replace("_", " ")
    event.pop("exc_info", None)
    return f"tailrace: {words}: " + ", ".join(f"{key}={value}" for key, value in event.items())
