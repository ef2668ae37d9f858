"""Runs seeds of workloads and adds up what happened in them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from sim.catalogue import WORKLOADS
from sim.knobs import silent_logs
from sim.loop import STARTED_S


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
    enabled: frozenset[str]
    """The faults that were turned on, by kind."""
    trace: str
    failure: str
    cpu_s: float = 0.0
    """Time on a processor."""
    pid: int = 0
    """The process that ran it."""

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        return f"make simulate WORKLOAD={self.workload} SEED={self.seed}"

    @property
    def regression(self) -> str:
        """What keeps it in ``regressions.toml``; the reason is for the developer who mends it."""
        return f'[[seed]]\nworkload = "{self.workload}"\nseed = {self.seed}\nreason = "…"'


@dataclass
class Totals:
    """What happened over some seeds."""

    seeds: int = 0
    steps: int = 0
    turns: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    enabled: Counter[str] = field(default_factory=Counter)
    """In how many seeds each kind of fault was turned on."""
    pids: set[int] = field(default_factory=set)
    violations: list[SeedRun] = field(default_factory=list)

    def add(self, run: SeedRun) -> None:
        """One more."""
        self.seeds += 1
        self.steps += run.steps
        self.turns += run.turns
        self.virtual_s += run.virtual_s
        self.seconds += run.seconds
        self.cpu_s += run.cpu_s
        self.faults.update(run.faults)
        self.enabled.update(run.enabled)
        self.pids.add(run.pid)
        if run.failure:
            self.violations.append(run)


def run_seed(name: str, seed: int, verbose: bool = False) -> SeedRun:
    """Run one seed of one workload."""
    began, cpu_began = time.monotonic(), time.process_time()
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
    run = SeedRun(
        name,
        seed,
        workload.steps,
        loop.turns,
        virtual_s=loop.time() - STARTED_S,
        seconds=time.monotonic() - began,
        faults=world.faults(),
        enabled=world.enabled_faults(),
        trace=loop.trace_hash,
        failure=failure,
        cpu_s=time.process_time() - cpu_began,
        pid=os.getpid(),
    )
    del workload, world, loop
    gc.collect()
    return run


def _cases(names: Sequence[str], first: int, seeds: int | None, *, skipped: int = 0) -> Iterator[tuple[str, int]]:
    """Return seeds round-robin over the workloads, without the first `skipped` ones."""
    began = first + skipped
    for seed in itertools.count(began) if seeds is None else range(began, first + seeds):
        for name in names:
            yield name, seed


def processes(jobs: int) -> ProcessPoolExecutor:
    """Processes that share work; Ctrl-C, which reaches all of them, ends each without a word."""
    ended = (signal.SIGINT, signal.SIG_DFL)
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=signal.signal, initargs=ended)


def run_many(
    names: Sequence[str],
    first: int,
    seeds: int | None,
    seconds: float | None,
    report: Callable[[SeedRun], None],
    jobs: int = 1,
    *,
    least: int = 0,
) -> None:
    """Run seeds of every workload until there are enough, or the time is over; pass each to `report`.

    Each workload runs `least` seeds even when the time is over. With more jobs than one, as many processes share the
    work; each takes the next seed when it is done with one, so no seed runs twice.
    """
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
    least = least if seeds is None else min(least, seeds)
    cases = itertools.chain(
        _cases(names, first, least),
        itertools.takewhile(lambda _: time.monotonic() <= deadline, _cases(names, first, seeds, skipped=least)),
    )
    if jobs == 1:
        for name, seed in cases:
            report(run_seed(name, seed))
        return
    with processes(jobs) as pool:
        running: set[Future[SeedRun]] = set()
        while True:
            running |= {pool.submit(run_seed, *case) for case in itertools.islice(cases, jobs + 1 - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                report(future.result())
