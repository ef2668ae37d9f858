"""Runs test suites, several at once, and reports seconds, the slowest tests, and what did not run (``make test``).

    run_suites.py ci|full [--extras] [--cached-spec] [--one-by-one] [SUITE...]

SUITE is a folder below tests/ (unit, compat/python), lint, sanitize, fuzz, spec, a part of the simulator
(simulation/seeds, simulation/bugs), or ``everything``. Without any: all but lint, sanitize, e2e/cluster, e2e/api
and e2e/kubernetes. A suite must run at least one test and skip none. Output of each is in build/suites/, with
report.md and report.json of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suiteruns import catalogue, findings, reports, room
from suiteruns.catalogue import RESULTS, Plan
from suiteruns.findings import Case
from suiteruns.reports import Run
from suiteruns.scheduler import Ended, Scheduler

WORKERS_MAX = 2
MEMORY_PER_CORE_MIB = 3072
CLUSTER_COMMAND_LIMIT_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 when a suite failed, 2 when a name is unknown, 130 after Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=("ci", "full"))
    parser.add_argument("suites", metavar="SUITE", nargs="*")
    parser.add_argument("--extras", action="store_true", help="add today's part of what only the long form has")
    parser.add_argument("--cached-spec", action="store_true", help="take the kept result of an unchanged specification")
    parser.add_argument("--one-by-one", action="store_true", help="run one suite at a time")
    parser.add_argument("--report", type=Path, default=RESULTS, help="where report.md and report.json go")
    options = parser.parse_intermixed_args(arguments)
    cores = _cores()
    plan = Plan(
        profile=options.profile,
        workers=min(WORKERS_MAX, cores),
        seed=int(os.environ.get("TAILRACE_TEST_SEED", "0")) or secrets.randbelow(2**32),
        day=datetime.datetime.now(datetime.UTC).date(),
        extras=options.extras,
        cached_spec=options.cached_spec,
        local_cluster=not os.environ.get("E2E_KUBECONFIG"),
        cluster_built=_cluster_is_built(),
    )
    try:
        names = catalogue.chosen(options.suites)
    except catalogue.UnknownSuiteError as error:
        print(f"run_suites: {error}", file=sys.stderr)
        return 2
    if plan.is_full and (lacking := room.lacking(room.needed(names, plan), room.free)):
        print(f"run_suites: {lacking}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # suites that run are ended also then
    try:
        with contextlib.nullcontext() if plan.is_full else room.folder_in_memory() as folder:
            plan = dataclasses.replace(plan, memory_folder=folder)
            return _run(names, plan, -math.inf if options.one_by_one else float(cores), options.report.resolve())
    except KeyboardInterrupt:
        return 130


def _cluster_is_built() -> bool:
    command = (sys.executable, str(catalogue.REPOSITORY / "tests/e2e/cluster"), "is-built")
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=CLUSTER_COMMAND_LIMIT_S).returncode == 0


def _cores() -> int:
    """How many jobs of one core each may run at once: as processors and memory allow."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(1, min(catalogue.cores_of_this_machine(), memory_mib // MEMORY_PER_CORE_MIB))


def _run(names: list[str], plan: Plan, cores: float, folder: Path) -> int:
    os.chdir(catalogue.REPOSITORY)
    os.environ["PYTHON"] = sys.executable
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the modules of tests again
    _say(f"{plan.profile} form, {plan.workers} workers, TAILRACE_TEST_SEED={plan.seed} repeats it")
    began_unix_s, began_s = time.time(), time.monotonic()
    ended = Scheduler(catalogue.jobs(names, plan), cores, RESULTS, findings.judge, _say).run()
    seconds = time.monotonic() - began_s
    cases = [case for one in ended for case in _cases(one)]
    try:
        missing, complete = findings.not_in_this_run(names, cases, plan), True
    except findings.ReportError as error:  # the rest of the report is wanted all the more
        missing, complete = [f"unknown: {error}"], False
    run = Run(plan, ended, cases, missing, seconds, began_unix_s, complete)
    for line in reports.lines(run, RESULTS):
        _say(line)
    reports.write(run, folder, RESULTS)
    return 0 if run.passed else 1


def _cases(ended: Ended) -> list[Case]:
    """The cases of a job; none of one that ended before it wrote its report."""
    try:
        return findings.cases_of(ended.job)
    except findings.ReportError:
        return []


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    sys.exit(main())
