"""Limits made small, so that short runs reach what takes hours in production; and silence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def turned(knobs: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Set attributes of modules for a while."""
    saved = {place: getattr(*place) for place in knobs}
    for (owner, name), value in knobs.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in saved.items():
            setattr(owner, name, value)


@contextmanager
def silent_logs() -> Iterator[None]:
    """Drop all log lines: thousands of simulated crashes would fill the terminal."""
    saved = structlog.get_config()
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**saved)


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent
