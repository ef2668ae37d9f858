"""Planted bugs by name: the proof that the checkers can fail (design §12).

A bug changes the code under test for as long as it is planted, and names the workload that must notice it.
"""

from __future__ import annotations

import datetime
import gc
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.knobs import silent_logs
from sim.violations import Violation
from tailrace.common.errors import DataError

SEEDS_MAX = 200
SECONDS_MAX = 60.0
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
"""Two words at least."""
PER_DAY = 2

Workload = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug: ``plant`` puts it in; a run of ``workload(seed)`` that notices it raises one of ``found_by``.

    ``words`` must be in what it says then: they show that it is the planted bug that was noticed.
    """

    name: str
    summary: str
    workload: Workload
    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: tuple[type[BaseException], ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a hunt ended: ``seed`` is the first that noticed the bug, ``said`` what it said.

    None: of the ``seeds`` that were tried none did.
    """

    name: str
    seeds: int
    seconds: float
    seed: int | None = None
    said: str = ""

    @property
    def found(self) -> bool:
        """Whether a seed noticed the bug."""
        return self.seed is not None


BUGS: dict[str, PlantedBug] = {}
"""All planted bugs, in the order of their definition."""


def bug(
    name: str,
    workload: Workload,
    *,
    found_by: tuple[type[BaseException], ...] = (Violation, DataError),
    words: str = "",
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """Register a function that plants a bug; its docstring's first line says what the bug is.

    Raises ValueError when the name is taken or not of words in lower case with hyphens, or when there is no docstring.
    """

    def register(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a planted bug: words in lower case with hyphens between them")
        if name in BUGS:
            raise ValueError(f"there are two planted bugs of the name {name}")
        summary = (plant.__doc__ or "").strip().partition("\n")[0]
        if not summary:
            raise ValueError(f"the planted bug {name} has no docstring that says what it is")
        BUGS[name] = PlantedBug(name, summary, workload, plant, found_by, words)
        return plant

    return register


def hunt(
    planted: PlantedBug,
    *,
    first: int = 0,
    seeds: int = SEEDS_MAX,
    seconds: float = SECONDS_MAX,
    verbose: bool = False,
) -> Hunted:
    """Run seeds with the bug in until one notices it, or there were so many, or the time is over.

    The time is this process's own on a processor: what else the machine does changes nothing about the checkers.

    A seed that breaks a promise without the bug, too, proves nothing and does not count. Any other error than the bug
    is to be found by is an error of the hunt and is raised.
    """
    began = time.process_time()
    tried = 0
    for seed in range(first, first + seeds):
        said = _noticed(planted, seed, verbose)
        tried += 1
        spent = time.process_time() - began
        if spent > seconds:
            break
        if said is not None and _is_kept(planted, seed):
            return Hunted(planted.name, tried, spent, seed, said)
    return Hunted(planted.name, tried, time.process_time() - began)


def _noticed(planted: PlantedBug, seed: int, verbose: bool) -> str | None:
    """What a seed says about the bug, if it notices it."""
    try:
        with pytest.MonkeyPatch.context() as patch, silent_logs():
            planted.plant(patch)
            planted.workload(seed).run()
    except planted.found_by as violation:
        if verbose:
            traceback.print_exc()
        said = f"{type(violation).__name__}: {violation}"
        return said if planted.words in said else None
    finally:
        gc.collect()
    return None


def _is_kept(planted: PlantedBug, seed: int) -> bool:
    """Whether a seed keeps every promise when the bug is not in."""
    try:
        with silent_logs():
            planted.workload(seed).run()
    except planted.found_by:
        return False
    return True


def of_day(day: datetime.date, names: Iterable[str] | None = None) -> list[str]:
    """The bugs whose turn it is: two a day, and each has its turn within half as many days as there are bugs."""
    ordered = sorted(BUGS if names is None else names)
    first = day.toordinal() * PER_DAY
    return sorted({ordered[(first + number) % len(ordered)] for number in range(PER_DAY)})
