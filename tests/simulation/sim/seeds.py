"""Runs seeds of workloads and adds up what happened in them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from sim.catalogue import PLANNED, WORKLOADS
from sim.knobs import silent_logs
from sim.loop import STARTED_S
from sim.swarm import Swarm


@dataclass(frozen=True, slots=True)
class SeedRun:
    """What happened in one seed of one workload; ``failure`` is empty when every promise was kept."""

    workload: str
    seed: int
    steps: int
    turns: int
    virtual_s: float
    seconds: float
    faults: dict[str, int]
    trace: str
    failure: str
    enabled: tuple[str, ...] = ()
    """The kinds of faults that its swarm chose; whether one occurred, `faults` says."""

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        return f"make simulate WORKLOAD={self.workload} SEED={self.seed}"

    @property
    def regression(self) -> str:
        """What keeps it in ``regressions.toml``; the reason is for whoever mends it."""
        return f'[[seed]]\nworkload = "{self.workload}"\nseed = {self.seed}\nreason = "…"'


@dataclass
class Totals:
    """What happened over some seeds."""

    seeds: int = 0
    steps: int = 0
    turns: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    enabled: Counter[str] = field(default_factory=Counter)
    """In how many seeds each kind of fault could occur."""
    violations: list[SeedRun] = field(default_factory=list)

    def add(self, run: SeedRun) -> None:
        """One more."""
        self.seeds += 1
        self.steps += run.steps
        self.turns += run.turns
        self.virtual_s += run.virtual_s
        self.seconds += run.seconds
        self.faults.update(run.faults)
        self.enabled.update(run.enabled)
        if run.failure:
            self.violations.append(run)


def never_occurred(totals: Mapping[str, Totals], enabled_in: int) -> list[str]:
    """Name the faults that a workload has, and that did not occur in any of its seeds.

    A fault that the swarm chooses counts when at least `enabled_in` seeds had it: others are up to chance.
    """
    found = []
    for name, part in totals.items():
        wanted = {kind for kind, seeds in part.enabled.items() if seeds >= enabled_in} | {*PLANNED[name]}
        for kind in sorted(wanted):
            if not part.faults[kind]:
                found.append(f"{kind} in none of {part.seeds} seeds of {name}, {part.enabled[kind]} of which could")
    return found


def run_seed(name: str, seed: int, verbose: bool = False) -> SeedRun:
    """Run one seed of one workload."""
    began = time.monotonic()
    workload = WORKLOADS[name](seed)
    failure = ""
    try:
        with silent_logs():
            workload.run()
    except (Exception, asyncio.CancelledError) as error:
        failure = f"{type(error).__name__}: {error}"
        if verbose:
            traceback.print_exc()
    world = workload.world
    loop = world.loop
    seconds = time.monotonic() - began
    virtual_s = loop.time() - STARTED_S
    swarm: Swarm | None = getattr(workload, "swarm", None)  # some workloads have their faults by plan
    enabled = () if swarm is None else tuple(swarm.kinds)
    run = SeedRun(
        name, seed, workload.steps, loop.turns, virtual_s, seconds, world.faults(), loop.trace_hash, failure, enabled
    )
    del workload, world, loop
    gc.collect()
    return run


def _cases(names: Sequence[str], first: int, seeds: int | Mapping[str, int] | None) -> Iterator[tuple[str, int]]:
    """Seeds round-robin over the workloads; of each workload as many as it is given."""
    most = {name: seeds if seeds is None or isinstance(seeds, int) else seeds[name] for name in names}
    for number in itertools.count():
        names = [name for name in names if (limit := most[name]) is None or number < limit]
        if not names:
            return
        for name in names:
            yield name, first + number


def processes(jobs: int) -> ProcessPoolExecutor:
    """Processes that share work; Ctrl-C, which reaches all of them, ends each without a word."""
    ended = (signal.SIGINT, signal.SIG_DFL)
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=signal.signal, initargs=ended)


def run_many(
    names: Sequence[str],
    first: int,
    seeds: int | Mapping[str, int] | None,
    seconds: float | None,
    report: Callable[[SeedRun], None],
    jobs: int = 1,
) -> None:
    """Run seeds of every workload until there are enough, or the time is over; `report` is told of each.

    With more jobs than one, as many processes share the work.
    """
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
    cases = _cases(names, first, seeds)
    if jobs == 1:
        for name, seed in cases:
            report(run_seed(name, seed))
            if time.monotonic() > deadline:
                return
        return
    with processes(jobs) as pool:
        running: set[Future[SeedRun]] = set()
        while True:
            if time.monotonic() < deadline:
                running |= {pool.submit(run_seed, *case) for case in itertools.islice(cases, jobs + 1 - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                report(future.result())
