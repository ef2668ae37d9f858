"""What has its turn today: CI runs a part of what takes long, another one each day."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def today() -> datetime.date | None:
    """The day that CI gives (TAILRACE_TEST_DAY); None in other runs, which have no turns."""
    day = os.environ.get("TAILRACE_TEST_DAY")
    return datetime.date.fromisoformat(day) if day else None


def of_day(day: datetime.date, items: Sequence[T], count: int) -> list[T]:
    """So many items that have their turn on a day; each has its turn as often as the others."""
    first = day.toordinal() * count
    return [items[(first + number) % len(items)] for number in range(count)]
