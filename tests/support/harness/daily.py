"""What has its turn today: CI runs a part of what takes long, another one each day."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")


def today() -> datetime.date | None:
    """The day that CI gives (TAILRACE_TEST_DAY); None in other runs, which have no turns."""
    day = os.environ.get("TAILRACE_TEST_DAY")
    return datetime.date.fromisoformat(day) if day else None


def of_day(day: datetime.date, items: Sequence[T], count: int) -> list[T]:
    """So many items that have their turn on a day; each has its turn as often as the others."""
    first = day.toordinal() * count
    return [items[(first + number) % len(items)] for number in range(count)]


def leave_out(config: pytest.Config, items: list[pytest.Item], groups: Sequence[Sequence[str]], count: int) -> None:
    """Leave out the tests that have their turn on another day: all but those of so many groups.

    A group has files of a suite or tests in them, by a part of their node ids. Tests in no group run every day. Where
    no day is given, and in the long form, all run.
    """
    day = today()
    if day is None or os.environ.get("TAILRACE_TEST_PROFILE") == "full":
        return
    chosen = of_day(day, groups, count)
    away = [part for group in groups if group not in chosen for part in group]
    left = [item for item in items if any(part in item.nodeid for part in away)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
