"""Planted bugs by name: the proof that the checkers can fail (design §12).

A bug changes the code under test for as long as it is planted, and names the workload that must notice it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.violations import Violation
from tailrace.common.errors import DataError

SEEDS_MAX = 200
SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug: ``plant`` puts it in; a run of ``workload(seed)`` that notices it raises one of ``found_by``."""

    name: str
    summary: str
    workload: Callable[[int], Any]
    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed that noticed a bug, and what it said."""

    seed: int
    violation: str
    seconds: float


BUGS: dict[str, PlantedBug] = {}
"""All planted bugs, in the order of their definition."""


def bug(
    name: str,
    workload: Callable[[int], Any],
    *,
    found_by: tuple[type[BaseException], ...] = (Violation, DataError),
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """Register a function that plants a bug; its docstring's first line says what the bug is."""

    def register(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        if name in BUGS:
            raise ValueError(f"there are two planted bugs of the name {name}")
        summary = (plant.__doc__ or "").strip().splitlines()[0]
        BUGS[name] = PlantedBug(name, summary, workload, plant, found_by)
        return plant

    return register


def hunt(planted: PlantedBug, *, first: int = 0, seeds: int = SEEDS_MAX, seconds: float = SECONDS_MAX) -> Found | None:
    """Run seeds with the bug in until one notices it; None: none did within so many seeds and seconds.

    Any other error than the bug is to be found by is an error of the hunt and is raised.
    """
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        planted.plant(patch)
        for seed in range(first, first + seeds):
            try:
                planted.workload(seed).run()
            except planted.found_by as violation:
                said = f"{type(violation).__name__}: {violation}"
                return Found(seed, said, time.monotonic() - began)
            if time.monotonic() - began > seconds:
                return None
    return None
