"""Planted bugs by name: the proof that the checkers can fail (docs/design.md#testing).

A bug changes the code under test while it is planted. It names the workload that must notice it, the checker that must
report it, and words of that report: any other report is no find.
"""

from __future__ import annotations

import datetime
import re
import tomllib
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
"""Two words at least."""
PER_DAY = 10
MEASURED = Path(__file__).resolve().parents[2] / "planted-bugs.toml"
"""What `run.py --measure-bugs` wrote."""
UNKNOWN_SECONDS = 5.0

Workload = Callable[[int], Any]
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug: `plant` puts it in; a run of `workload(seed)` that notices it fails in `checker` with `words`."""

    name: str
    summary: str
    """The mistake."""
    breaks: str
    """The guarantee that it breaks."""
    workload: Workload
    plant: Plant
    checker: str
    """The file that must raise the violation, below `sim/` or `tests/support/`."""
    words: str
    """A regular expression that the report must contain."""
    unmodified: Workload
    """The workload without any bug."""

    @property
    def is_directed(self) -> bool:
        """Whether its workload is turned towards what the bug needs."""
        return self.workload is not self.unmodified


@dataclass(frozen=True, slots=True)
class Measured:
    """How a bug was found when all of them were measured."""

    seed: int | None = None
    """The first seed of its workload that finds it; hunts try it first."""
    seconds: float = UNKNOWN_SECONDS
    """Time on a processor of that seed, with and without the bug."""
    found: int = 0
    of: int = 0
    """The unmodified workload found it in `found` of `of` seeds."""


BUGS: dict[str, PlantedBug] = {}
"""All planted bugs, in the order of their definition."""


def bug(name: str, workload: Workload, *, checker: str, words: str) -> Callable[[Plant], Plant]:
    """Register a function that plants a bug; its docstring says what is wrong and, after "Breaks:", what that breaks.

    `workload` is a workload, or a function with a workload as its return type. Raises ValueError when the name is taken
    or not of words in lower case with hyphens, when the docstring lacks a part, or when no words are expected.
    """

    def register(plant: Plant) -> Plant:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a planted bug: words in lower case with hyphens between them")
        if name in BUGS:
            raise ValueError(f"there are two planted bugs of the name {name}")
        if not checker or not words:
            raise ValueError(f"the planted bug {name} names no checker or no words of its report")
        summary, _, breaks = (" ".join(part.split()) for part in (plant.__doc__ or "").partition("Breaks:"))
        if not summary or not breaks:
            raise ValueError(f"the planted bug {name} has no docstring that says what it is and what it breaks")
        unmodified = workload if isinstance(workload, type) else typing.get_type_hints(workload)["return"]
        BUGS[name] = PlantedBug(name, summary, breaks, workload, plant, checker, words, unmodified)
        return plant

    return register


def measured(path: Path = MEASURED) -> dict[str, Measured]:
    """Read how bugs were found; a bug that was not measured yet is missing."""
    return {name: Measured(**values) for name, values in tomllib.loads(path.read_text()).items()}


def of_day(day: datetime.date, costs: Iterable[tuple[float, str]]) -> list[str]:
    """Return the bugs whose turn it is: ten a day at most, cheap and dear ones on each, all within as few days as go.

    `costs`: seconds and name of each bug.
    """
    ordered = [name for _, name in sorted(costs)]
    days = -(-len(ordered) // PER_DAY)
    return ordered[day.toordinal() % days :: days]
