"""Runs test suites, several at once, and reports seconds, the slowest tests, and what did not run (``make test``).

    run_suites.py ci|full [--extras] [--cached-spec] [--one-by-one] [SUITE...]

SUITE is a folder below tests/ (unit, compat/python), lint, sanitize, spec, a part of the simulator (simulation/seeds,
simulation/bugs), or ``everything``. Without any: all but lint, sanitize, e2e/cluster and e2e/kubernetes. A suite must
run at least one test and skip none. Output of each is in build/suites/, with report.json of the whole run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence

from suiteruns import catalogue, findings
from suiteruns.catalogue import RESULTS, Plan
from suiteruns.findings import Case
from suiteruns.scheduler import Ended, Scheduler

WORKERS_MAX = 2
MEMORY_PER_CORE_MIB = 3072
SPARE_CORES = 0.5
"""What jobs may take beyond the cores there are: most of them wait at some time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 when a suite failed, 2 when a name is unknown, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=("ci", "full"))
    parser.add_argument("suites", metavar="SUITE", nargs="*")
    parser.add_argument("--extras", action="store_true", help="add today's part of what only the long form has")
    parser.add_argument("--cached-spec", action="store_true", help="take the kept result of an unchanged specification")
    parser.add_argument("--one-by-one", action="store_true", help="run one suite at a time")
    options = parser.parse_args(arguments)
    cores = _cores()
    plan = Plan(
        profile=options.profile,
        workers=min(WORKERS_MAX, cores),
        seed=int(os.environ.get("TAILRACE_TEST_SEED", "0")) or secrets.randbelow(2**32),
        day=datetime.datetime.now(datetime.UTC).date(),
        extras=options.extras,
        cached_spec=options.cached_spec,
        local_cluster=not os.environ.get("E2E_KUBECONFIG"),
    )
    try:
        names = catalogue.chosen(options.suites)
    except catalogue.UnknownSuiteError as error:
        print(f"run_suites: {error}", file=sys.stderr)
        return 2
    try:
        return _run(names, plan, 0.0 if options.one_by_one else cores + SPARE_CORES)
    except KeyboardInterrupt:
        return 130


def _cores() -> int:
    """How many jobs of one core each may run at once: as processors and memory allow."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(1, min(catalogue.cores_of_this_machine(), memory_mib // MEMORY_PER_CORE_MIB))


def _run(names: list[str], plan: Plan, cores: float) -> int:
    os.chdir(catalogue.REPOSITORY)
    os.environ["PYTHON"] = sys.executable
    _say(f"{plan.profile} form, {plan.workers} workers, TAILRACE_TEST_SEED={plan.seed} repeats it")
    began_s = time.monotonic()
    ended = Scheduler(catalogue.jobs(names, plan), cores, RESULTS, findings.judge, _say).run()
    seconds = time.monotonic() - began_s
    cases = [case for one in ended for case in _cases(one)]
    missing = findings.not_in_this_run(names, cases, plan)
    passed = all(one.passed for one in ended)
    _print_report(ended, cases, missing, plan, seconds)
    _write_report(ended, cases, missing, plan, seconds)
    return 0 if passed else 1


def _cases(ended: Ended) -> list[Case]:
    """The cases of a job; none of one that ended before it wrote its report."""
    try:
        return findings.cases_of(ended.job)
    except findings.ReportError:
        return []


def _say(words: str) -> None:
    print(words, flush=True)


def _print_report(
    ended: Sequence[Ended], cases: Sequence[Case], missing: Sequence[str], plan: Plan, seconds: float
) -> None:
    if len(ended) > 1 or len(cases) > 30:
        _say("== slowest tests, with their fixtures")
        for case in findings.slowest(cases):
            _say(f"{case.seconds:7.1f} s  {case.title}")
    _say(f"== not in this run ({plan.profile} form)")
    for line in missing or ["everything ran"]:
        _say(f"not in this run: {line}")
    _say(f"== suites ({plan.profile} form)")
    for one in ended:
        _say(f"{one.job.name:<22} {one.seconds:6.0f} s  {one.cpu_s:6.0f} s of processor  {one.verdict}")
    _say(f"{'all':<22} {seconds:6.0f} s  {sum(one.cpu_s for one in ended):6.0f} s of processor")


def _write_report(
    ended: Sequence[Ended], cases: Sequence[Case], missing: Sequence[str], plan: Plan, seconds: float
) -> None:
    report = {
        "profile": plan.profile,
        "day": plan.day.isoformat(),
        "seed": plan.seed,
        "seconds": round(seconds, 1),
        "passed": all(one.passed for one in ended),
        "suites": [
            {
                "name": one.job.name,
                "seconds": round(one.seconds, 1),
                "processor_seconds": round(one.cpu_s, 1),
                "verdict": one.verdict,
                "tests": sum(case.suite == one.job.suite for case in cases) if one.job.report else None,
            }
            for one in ended
        ],
        "slowest": [{"test": case.title, "seconds": case.seconds} for case in findings.slowest(cases)],
        "failed": [case.title for case in cases if case.outcome == "failed"],
        "not_in_this_run": list(missing),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "report.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
