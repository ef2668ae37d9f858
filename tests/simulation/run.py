"""Runs simulated workloads over many seeds: `python tests/simulation/run.py --seeds N --seconds S [--seed n]`.

Prints every seed that broke a promise, with the workload and the reason; exits with 1 when there was one.
A failing seed replays with ``--seed n --workload name``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent / "support")]

from sim.workloads.cluster import ClusterWorkload
from sim.workloads.container import ContainerWorkload
from sim.workloads.log import LogWorkload
from sim.workloads.objectcontainer import ObjectContainerWorkload
from sim.workloads.objectlog import ObjectLogWorkload
from sim.workloads.server import ServerWorkload
from sim.workloads.tables import TablesWorkload
from sim.world import SimWorld


class Workload(Protocol):
    """One seed's run."""

    world: SimWorld
    steps: int

    def run(self) -> None:
        """Raises whatever went wrong."""


WORKLOADS: dict[str, Callable[[int], Workload]] = {
    "log": LogWorkload,
    "objectlog": ObjectLogWorkload,
    "objectcontainer": ObjectContainerWorkload,
    "container": ContainerWorkload,
    "tables": TablesWorkload,
    "server": ServerWorkload,
    "cluster": ClusterWorkload,
}


@dataclass
class Totals:
    """What happened over all seeds."""

    seeds: int = 0
    steps: int = 0
    turns: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, int, str]] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The summary."""
        faults = ", ".join(f"{count} × {name}" for name, count in sorted(self.faults.items()))
        return [
            f"{self.seeds} seeds, {self.steps} steps, {self.turns} turns of the loop, {self.virtual_s:.0f} virtual s",
            f"faults: {faults or 'none'}",
            f"violations: {len(self.violations)}",
        ]


def run_seed(name: str, seed: int, totals: Totals, verbose: bool = False) -> bool:
    """Run one seed of one workload; False when it broke a promise."""
    workload = WORKLOADS[name](seed)
    failure = ""
    try:
        workload.run()
    except (Exception, asyncio.CancelledError) as error:
        failure = f"{type(error).__name__}: {error}"
        if verbose:
            traceback.print_exc()
    world = workload.world
    totals.seeds += 1
    totals.steps += workload.steps
    totals.turns += world.loop.turns
    totals.virtual_s += world.loop.time() - 1000
    totals.faults.update(world.faults())
    totals.traces.append(world.loop.trace_hash)
    if failure:
        totals.violations.append((name, seed, failure))
    return not failure


def run_many(names: list[str], first_seed: int, seeds: int, seconds: float, report: Callable[[str], Any]) -> Totals:
    """Run seeds round-robin over the workloads until there are enough, or the time is over."""
    totals = Totals()
    deadline = time.monotonic() + seconds
    for offset in range(seeds):
        for name in names:
            if not run_seed(name, first_seed + offset, totals):
                _, seed, failure = totals.violations[-1]
                report(f"VIOLATION in workload {name}, seed {seed}: {failure}")
        gc.collect()
        if time.monotonic() > deadline:
            break
    return totals


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000, help="how many seeds at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--seed", type=int, help="run this seed alone, with tracebacks")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="this workload alone")
    options = parser.parse_args()
    names = [options.workload] if options.workload else list(WORKLOADS)
    if options.seed is not None:
        totals = Totals()
        for name in names:
            kept = run_seed(name, options.seed, totals, verbose=True)
            print(f"workload {name}, seed {options.seed}: {'kept' if kept else 'BROKEN'}, trace {totals.traces[-1]}")
    else:
        print(f"workloads {', '.join(names)} from seed {options.first}")
        totals = run_many(names, options.first, options.seeds, options.seconds, print)
    print("\n".join(totals.lines()))
    return 1 if totals.violations else 0


if __name__ == "__main__":
    sys.exit(main())
