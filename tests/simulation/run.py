"""Runs simulated workloads over many seeds, replays one, and hunts planted bugs: see docs/simulation.md.

Exits with 1 when a promise was broken, a planted bug was not found, or a fault that was turned on did not happen; with
2 when a name is unknown or a number makes no sense; with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent / "support")]

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sim import document, report
from sim.bugs import BUGS
from sim.bugs.registry import MEASURED, Measured, measured, of_day
from sim.catalogue import RARE_FAULTS, WORKLOADS, workloads_of
from sim.faults import missing
from sim.hunting import SECONDS_MAX, SEEDS_MAX, Bounds, Hunted, found_everywhere, hunt, hunt_all
from sim.seeds import SeedRun, Totals, run_many, run_seed

SECONDS_WITHOUT_LIMITS = 60.0
UNMODIFIED_SEEDS = 10
"""Seeds of the plain workload that count how easily a planted bug is found, as far as their time allows."""
UNMODIFIED_SECONDS = 4.0
MEASURED_SEEDS = 20
MEASURED_SECONDS = 4.0
UNKNOWN_NAME = 2
ENDED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return _done(options)
    except KeyboardInterrupt:
        return ENDED


def _done(options: argparse.Namespace) -> int:
    if options.document_bugs:
        document.PAGE.write_text(document.with_bugs(document.PAGE.read_text(), BUGS, measured()))
        return 0
    if options.measure_bugs:
        return _measure(options)
    if options.bug is not None or options.bugs_of is not None:
        return _bugs(options)
    names = [options.workload] if options.workload else list(WORKLOADS)
    if options.workloads_of is not None:
        names = list(workloads_of(options.workloads_of))
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}", file=sys.stderr)
        return UNKNOWN_NAME
    return _replay(names, options) if options.seed is not None else _seeds(names, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=_at_least_one, help="how many seeds at most, of each workload")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, help="run this seed alone, with tracebacks")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--workload", help="this workload alone")
    by_date = "half of the workloads, by date"
    which.add_argument("--workloads-of", type=datetime.date.fromisoformat, metavar="DATE", help=by_date)
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="processes that share the work")
    parser.add_argument("--bug", help="hunt these planted bugs (with commas); list: print all names; all: hunt all")
    parser.add_argument("--bugs-of", type=datetime.date.fromisoformat, help="hunt at most ten planted bugs, by date")
    every_fault = "run at least so many seeds of each workload; fail when a fault that they turn on does not happen"
    parser.add_argument("--every-fault", type=int, metavar="SEEDS", default=0, help=every_fault)
    measure = f"hunt planted bugs, and write how they were found into {MEASURED.name} and docs/simulation.md"
    parser.add_argument("--measure-bugs", action="store_true", help=measure)
    parser.add_argument("--document-bugs", action="store_true", help="write the planted bugs into docs/simulation.md")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


_at_least_one.__name__ = "number"  # argparse calls it so


# ---- seeds


def _seeds(names: list[str], options: argparse.Namespace) -> int:
    """Many seeds."""
    began = time.monotonic()
    totals = {name: Totals() for name in names}
    first_ones = {name: Totals() for name in names}
    console = report.console()
    seconds = options.seconds
    if seconds is None and options.seeds is None:
        seconds = SECONDS_WITHOUT_LIMITS
    if not options.json:
        console.print(f"workloads {', '.join(names)} from seed {options.first}")
    with _progress(options, seconds, len(names)) as bar:

        def reported(run: SeedRun) -> None:
            totals[run.workload].add(run)
            if run.seed < options.first + options.every_fault:
                first_ones[run.workload].add(run)
            bar(run)
            if run.failure and not options.json:
                for line in report.violation_lines(run):
                    console.print(line, markup=False, soft_wrap=True)

        run_many(names, options.first, options.seeds, seconds, reported, options.jobs, least=options.every_fault)
    _summary(totals, [], options)
    every = report.summed(totals)
    absent = missing(
        {name: part.enabled for name, part in first_ones.items()},
        {name: part.faults for name, part in first_ones.items()},
        RARE_FAULTS,
        options.every_fault,
    )
    if not options.json:
        spent_s = time.monotonic() - began
        print(f"{len(every.pids)} processes used {every.cpu_s:.0f} s of processors in {spent_s:.0f} s")
        for line in absent:
            print(f"FAULT MISSING in the first {options.every_fault} seeds: {line}")
    return 1 if every.violations or absent or not every.seeds else 0


def _replay(names: list[str], options: argparse.Namespace) -> int:
    """One seed."""
    totals = {name: Totals() for name in names}
    runs = []
    for name in names:
        run = run_seed(name, options.seed, verbose=True)
        runs.append(run)
        totals[name].add(run)
        if not options.json:
            print(f"workload {name}, seed {run.seed}: {'BROKEN' if run.failure else 'kept'}, trace {run.trace}")
    _summary(totals, runs, options)
    return 1 if report.summed(totals).violations else 0


def _summary(totals: dict[str, Totals], traces: Sequence[SeedRun], options: argparse.Namespace) -> None:
    if options.json:
        print(report.seeds_json(totals, traces))
        return
    console = report.console()
    for table in report.seeds_tables(totals):
        console.print(table)
        console.print()
    every = report.summed(totals)
    console.print(
        f"{every.seeds} seeds, {every.steps} steps, {every.faults.total()} faults of {len(every.faults)} kinds, "
        f"{len(every.violations)} violations"
    )


@contextlib.contextmanager
def _progress(options: argparse.Namespace, seconds: float | None, workloads: int) -> Iterator[report.Report]:
    """A bar on a terminal: of seeds when they are counted, else of time."""
    console = report.console(stderr=True)
    if not console.is_terminal or options.json:
        yield lambda run: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counted]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        total = seconds if options.seeds is None else options.seeds * workloads
        task = bar.add_task("seeds", total=total, counted="")
        counted = Totals()

        def show(run: SeedRun) -> None:
            counted.add(run)
            done = counted.seeds if options.seeds is not None else bar.tasks[0].elapsed or 0.0
            violations = f", {len(counted.violations)} violations" if counted.violations else ""
            bar.update(task, completed=done, counted=f"{counted.seeds} seeds, {counted.steps} steps{violations}")

        yield show


# ---- planted bugs


def _bugs(options: argparse.Namespace) -> int:
    """Hunt planted bugs, or list them."""
    if options.bug == "list":
        return _list_bugs(options)
    known = measured()
    if options.bugs_of is not None:
        names = of_day(options.bugs_of, ((known.get(name, Measured()).seconds, name) for name in BUGS))
        if not options.json:
            print(f"planted bugs of {options.bugs_of}: {', '.join(names)}")
    else:
        names = _named_bugs(options)
    if unknown := [name for name in names if name not in BUGS]:
        print(f"there is no planted bug {unknown[0]}; BUG=list prints their names", file=sys.stderr)
        return UNKNOWN_NAME
    if options.seed is not None:
        return _replay_bug(names[0], options.seed)
    names.sort(key=lambda name: -known.get(name, Measured()).seconds)  # the longest first: processes end together
    bounds = {name: _bounds(options, known.get(name, Measured()).seed) for name in names}
    hunts = _hunted(bounds, options)
    if options.json:
        print(report.bugs_json(hunts))
    return 0 if found_everywhere(hunts) else 1


def _named_bugs(options: argparse.Namespace) -> list[str]:
    return list(BUGS) if options.bug in (None, "all") else str(options.bug).split(",")


def _list_bugs(options: argparse.Namespace) -> int:
    """A line for each planted bug."""
    if options.json:
        print(report.list_json(BUGS))
        return 0
    width = max(map(len, BUGS))
    for name, planted in BUGS.items():
        print(f"{name:{width}}  {planted.summary}")
    return 0


def _bounds(options: argparse.Namespace, hint: int | None) -> Bounds:
    """What a hunt may take; the seed that found the bug before comes first, unless another first seed is asked for."""
    return Bounds(
        options.first,
        options.seeds or SEEDS_MAX,
        options.seconds or SECONDS_MAX,
        hint=None if options.first else hint,
        unmodified=UNMODIFIED_SEEDS,
        unmodified_seconds=min(UNMODIFIED_SECONDS, options.seconds or SECONDS_MAX),
    )


def _hunted(
    bounds: dict[str, Bounds], options: argparse.Namespace, keep: Callable[[Hunted], None] | None = None
) -> list[Hunted]:
    """Hunt the bugs; print and keep each when its hunt ends, and print a table of all."""
    began = time.monotonic()

    def reported(hunted: Hunted) -> None:
        if keep is not None:
            keep(hunted)
        if not options.json:
            for line in report.hunted_lines(hunted):
                print(line, flush=True)

    hunts = hunt_all(bounds, options.jobs, reported)
    if not options.json and len(hunts) > 1:
        report.console().print(report.bugs_table(hunts))
        print(f"{len(hunts)} planted bugs in {time.monotonic() - began:.0f} s with {options.jobs} processes")
    return hunts


def _measure(options: argparse.Namespace) -> int:
    """Hunt bugs, count the plain seeds that find them, and write down both after each."""
    known = measured()
    names = [name for name in _named_bugs(options) if name in BUGS]
    bounds = Bounds(unmodified=MEASURED_SEEDS, unmodified_seconds=MEASURED_SECONDS)
    hints = {name: known.get(name, Measured()).seed for name in names}

    def keep(hunted: Hunted) -> None:
        known = measured() | {hunted.name: report.measured_of(hunted)}  # another run may have written meanwhile
        MEASURED.write_text(document.measured_text({name: known[name] for name in BUGS if name in known}))
        document.PAGE.write_text(document.with_bugs(document.PAGE.read_text(), BUGS, known))

    hunts = _hunted({name: dataclasses.replace(bounds, hint=seed) for name, seed in hints.items()}, options, keep)
    return 0 if found_everywhere(hunts) else 1


def _replay_bug(name: str, seed: int) -> int:
    """One seed with a bug in, with the traceback of what notices it."""
    hunted = hunt(BUGS[name], Bounds(first=seed, seeds=1, seconds=float("inf")), verbose=True)
    for line in report.hunted_lines(hunted):
        print(line)
    return 0 if hunted.found else 1


if __name__ == "__main__":
    sys.exit(main())
