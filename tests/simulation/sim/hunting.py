"""Hunts planted bugs: which seed makes the checker of a bug report it, and in how many seeds of the plain workload."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sim.bugs import BUGS
from sim.bugs.registry import PlantedBug, Workload
from sim.knobs import silent_logs
from sim.seeds import processes

SEEDS_MAX = 200
SECONDS_MAX = 240.0
OTHERS_MAX = 3
SEED_SECONDS_MAX = 30.0
SIM = Path(__file__).resolve().parent
SUPPORT = SIM.parents[1] / "support"
PRODUCT = "the product"
"""In place of a checker: code under test failed, and no checker said why that breaks a promise."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What ended a seed: the file that raised it, and what it said."""

    checker: str
    said: str

    def __str__(self) -> str:
        return f"{self.checker}: {self.said}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a hunt begins and ends. `hint`: the seed to try first. `unmodified`: seeds of the plain workload to count.

    Seconds are this process's own on a processor: what else the machine does changes nothing about the checkers.
    """

    first: int = 0
    seeds: int = SEEDS_MAX
    seconds: float = SECONDS_MAX
    hint: int | None = None
    unmodified: int = 0
    unmodified_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Hunted:
    """How a hunt ended: `seed` is the first that made the bug's checker report it, None: none of `seeds` did."""

    name: str
    seeds: int
    seconds: float
    seed: int | None = None
    seed_seconds: float = 0.0
    """Of that seed alone, with and without the bug."""
    checker: str = ""
    said: str = ""
    others: list[str] = field(default_factory=list)
    """What else ended seeds with the bug in; none of it counts."""
    unmodified_found: int = 0
    unmodified_of: int = 0

    @property
    def found(self) -> bool:
        """Whether a seed found the bug."""
        return self.seed is not None


def checker_of(error: BaseException) -> str:
    """Return the file of the simulator, or of the harness, that raised an error; `PRODUCT` when none of them did."""
    raised_in = Path()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name != "require":
            raised_in = Path(frame.f_code.co_filename)
    for root in (SIM, SUPPORT):
        if raised_in.is_relative_to(root):
            return raised_in.relative_to(root).as_posix()
    return PRODUCT


class SeedTooLongError(KeyboardInterrupt):
    """A seed does not end; a kind of KeyboardInterrupt, because no code under test catches that."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """End the code inside after a time on a processor: with a bug in, a seed may go on for ever. Main thread only."""

    def end(*_: object) -> None:
        raise SeedTooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, SEED_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def notice(planted: PlantedBug, workload: Workload, seed: int, *, verbose: bool = False) -> Notice | None:
    """Run a seed with the bug in. Return what ended it; None when it kept every promise."""
    with pytest.MonkeyPatch.context() as patch, silent_logs():
        planted.plant(patch)
        try:
            with _limited():
                workload(seed).run()
        except SeedTooLongError:
            return Notice("hunting.py", f"no end within {SEED_SECONDS_MAX:g} s on a processor")
        except (Exception, asyncio.CancelledError) as error:
            if verbose:
                traceback.print_exc()
            return Notice(checker_of(error), f"{type(error).__name__}: {error}")
        finally:
            gc.collect()
    return None


def finds(planted: PlantedBug, noticed: Notice | None) -> bool:
    """Whether this is the report that the bug must lead to."""
    return (
        noticed is not None
        and noticed.checker == planted.checker
        and bool(re.search(planted.words, noticed.said, re.DOTALL))
    )


def hunt(planted: PlantedBug, bounds: Bounds | None = None, *, verbose: bool = False) -> Hunted:
    """Count plain seeds; then run seeds with the bug in until its checker reports it, or the bounds are reached.

    A seed that breaks a promise without the bug, too, proves nothing and does not count.
    """
    bounds = bounds or Bounds()
    others: Counter[str] = Counter()
    plain_found, plain_of = _count_unmodified(planted, bounds, others)
    hints = [] if bounds.hint is None else [bounds.hint]
    if not hints and not planted.is_directed:
        hints = plain_found[:1]
    began = time.process_time()
    tried, seed, seed_seconds, found = 0, None, 0.0, None
    rest = (number for number in range(bounds.first, bounds.first + bounds.seeds) if number not in hints)
    for number in itertools.chain(hints, rest):
        seed_began = time.process_time()
        noticed = notice(planted, planted.workload, number, verbose=verbose)
        tried += 1
        if finds(planted, noticed) and is_kept(planted.workload, number):
            seed, found, seed_seconds = number, noticed, time.process_time() - seed_began
            break
        if noticed is not None:
            others[_general(noticed)] += 1
        if time.process_time() - began > bounds.seconds:
            break
    seconds = time.process_time() - began
    seen = [f"{count} times {other}" for other, count in others.most_common(OTHERS_MAX)]
    checker, said = (found.checker, found.said) if found is not None else ("", "")
    return Hunted(planted.name, tried, seconds, seed, seed_seconds, checker, said, seen, len(plain_found), plain_of)


def _count_unmodified(planted: PlantedBug, bounds: Bounds, others: Counter[str]) -> tuple[list[int], int]:
    """The seeds in which the plain workload finds the bug, and of how many."""
    began = time.process_time()
    found: list[int] = []
    tried = 0
    for seed in range(bounds.first, bounds.first + bounds.unmodified):
        tried += 1
        noticed = notice(planted, planted.unmodified, seed)
        if finds(planted, noticed):
            found.append(seed)
        elif noticed is not None:
            others[_general(noticed)] += 1
        if time.process_time() - began > bounds.unmodified_seconds:
            break
    return found, tried


def is_kept(workload: Workload, seed: int) -> bool:
    """Whether a seed keeps every promise when no bug is in."""
    try:
        with silent_logs(), _limited():
            workload(seed).run()
    except (Exception, asyncio.CancelledError, SeedTooLongError):
        return False
    finally:
        gc.collect()
    return True


def _general(noticed: Notice) -> str:
    """A report without its numbers, so that the same one of many seeds counts as one."""
    return re.sub(r"\d+", "N", str(noticed).partition("\n")[0])[:160]


def hunt_named(name: str, bounds: Bounds) -> Hunted:
    """Hunt one bug; when it cannot even be planted, the hunt ends without success and others go on."""
    try:
        return hunt(BUGS[name], bounds)
    except Exception as error:
        traceback.print_exc()
        return Hunted(name, 0, 0.0, said=f"the hunt failed: {type(error).__name__}: {error}")


def hunt_all(bounds: dict[str, Bounds], jobs: int, report: Callable[[Hunted], None]) -> list[Hunted]:
    """Return how the hunts ended, in the order of the names; `report` gets each when it ends."""
    if jobs == 1:
        return [_reported(hunt_named(name, own), report) for name, own in bounds.items()]
    with processes(jobs) as pool:
        running = [pool.submit(hunt_named, name, own) for name, own in bounds.items()]
        hunts = {hunted.name: hunted for hunted in (_reported(done.result(), report) for done in as_completed(running))}
    return [hunts[name] for name in bounds]


def _reported(hunted: Hunted, report: Callable[[Hunted], None]) -> Hunted:
    report(hunted)
    return hunted


def found_everywhere(hunts: Sequence[Hunted]) -> bool:
    """Whether each of the hunts found its bug, and there was one."""
    return bool(hunts) and all(hunted.found for hunted in hunts)
