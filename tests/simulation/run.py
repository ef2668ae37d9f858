"""Runs simulated workloads over many seeds, replays one, and hunts planted bugs: see docs/simulation.md.

Exits with 1 when a promise was broken, a planted bug was not found or a fault of a workload never occurred, with 2
when a name is unknown or a number makes no sense, with 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent / "support")]

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sim import document, report
from sim.bugs import BUGS
from sim.bugs.registry import SECONDS_MAX, SEEDS_MAX, hunt, of_day
from sim.catalogue import CI_SEEDS, WORKLOADS
from sim.hunting import hunt_all
from sim.seeds import SeedRun, Totals, never_occurred, run_many, run_seed

SECONDS_WITHOUT_LIMITS = 60.0
UNKNOWN_NAME = 2
ENDED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    try:
        return _done(options)
    except KeyboardInterrupt:  # where it was does not matter to whoever ended it
        return ENDED


def _done(options: argparse.Namespace) -> int:
    if options.document_bugs:
        document.PAGE.write_text(document.with_bugs(document.PAGE.read_text(), BUGS))
        return 0
    if options.bug is not None or options.bugs_of is not None:
        return _bugs(options)
    names = [options.workload] if options.workload else list(WORKLOADS)
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
    parser.add_argument("--ci", action="store_true", help="the seeds of CI: a fixed number of each workload")
    parser.add_argument(
        "--faults-enabled-in",
        type=_at_least_one,
        help="fail when a fault that so many seeds of a workload have (--ci: 1) occurred in none of them",
    )
    parser.add_argument("--workload", help="this workload alone")
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="processes that share the work")
    parser.add_argument("--bug", help="hunt this planted bug; list: print their names; all: hunt all of them")
    parser.add_argument("--bugs-of", type=datetime.date.fromisoformat, help="hunt the two planted bugs of a day")
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
    totals = {name: Totals() for name in names}
    console = report.console()
    seconds = options.seconds
    seeds = {name: CI_SEEDS[name] for name in names} if options.ci else options.seeds
    if seconds is None and seeds is None:
        seconds = SECONDS_WITHOUT_LIMITS
    if not options.json:
        console.print(f"workloads {', '.join(names)} from seed {options.first}")
    with _progress(options, seconds, len(names)) as bar:

        def tell(run: SeedRun) -> None:
            totals[run.workload].add(run)
            bar(run)
            if run.failure and not options.json:
                for line in report.violation_lines(run):
                    console.print(line, markup=False, soft_wrap=True)

        run_many(names, options.first, seeds, seconds, tell, options.jobs)
    _summary(totals, [], options)
    enabled_in = options.faults_enabled_in or (1 if options.ci else None)
    missing = [] if enabled_in is None else never_occurred(totals, enabled_in)
    for line in missing:
        print(f"A FAULT NEVER OCCURRED: {line}", file=sys.stderr)
    return 1 if missing or report.summed(totals).violations else 0


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
def _progress(options: argparse.Namespace, seconds: float | None, workloads: int) -> Iterator[report.Told]:
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

        def told(run: SeedRun) -> None:
            counted.add(run)
            done = counted.seeds if options.seeds is not None else bar.tasks[0].elapsed or 0.0
            violations = f", {len(counted.violations)} violations" if counted.violations else ""
            bar.update(task, completed=done, counted=f"{counted.seeds} seeds, {counted.steps} steps{violations}")

        yield told


# ---- planted bugs


def _bugs(options: argparse.Namespace) -> int:
    """Hunt planted bugs, or list them."""
    if options.bug == "list" and options.json:
        print(report.list_json(BUGS))
        return 0
    if options.bug == "list":
        width = max(map(len, BUGS))
        for name, planted in BUGS.items():
            print(f"{name:{width}}  {planted.summary}")
        return 0
    if options.bugs_of is not None:
        names = of_day(options.bugs_of)
        if not options.json:
            print(f"planted bugs of {options.bugs_of}: {', '.join(names)}")
    else:
        names = list(BUGS) if options.bug == "all" else [options.bug]
    if names[0] not in BUGS:
        print(f"there is no planted bug {names[0]}; BUG=list prints their names", file=sys.stderr)
        return UNKNOWN_NAME
    if options.seed is not None:
        return _replay_bug(names[0], options.seed)
    hunts = hunt_all(
        names,
        options.first,
        options.seeds or SEEDS_MAX,
        options.seconds or SECONDS_MAX,
        options.jobs,
        lambda hunted: None if options.json else print(report.hunted_line(hunted), flush=True),
    )
    if options.json:
        print(report.bugs_json(hunts))
    elif len(hunts) > 1:
        report.console().print(report.bugs_table(hunts))
    return 0 if all(hunted.found for hunted in hunts) else 1


def _replay_bug(name: str, seed: int) -> int:
    """One seed with a bug in, with the traceback of what notices it."""
    hunted = hunt(BUGS[name], first=seed, seeds=1, seconds=float("inf"), verbose=True)
    print(report.hunted_line(hunted))
    return 0 if hunted.found else 1


if __name__ == "__main__":
    sys.exit(main())
