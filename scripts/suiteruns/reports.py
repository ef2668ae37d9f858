"""What is printed and written at the end of a run: a summary, JSON, and a page for people (``make nightly``)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suiteruns import findings
from suiteruns.catalogue import REPOSITORY, Plan, cores_of_this_machine
from suiteruns.findings import Case
from suiteruns.scheduler import Ended

FIGURES = REPOSITORY / "build/e2e/figures.json"
TAIL_LINES = 40
FAILURES_SHOWN = 10
"""Tests of one job that are reported with their errors on the terminal."""
GIT_LIMIT_S = 20


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    plan: Plan
    ended: Sequence[Ended]
    cases: Sequence[Case]
    missing: Sequence[str]
    """What the whole long form has and this run had not."""
    seconds: float
    began_unix_s: float
    complete: bool = True
    """Whether it is known what did not run."""

    @property
    def passed(self) -> bool:
        """Whether every job did what it should, and it is known what did not run."""
        return self.complete and all(one.passed for one in self.ended)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor of all jobs."""
        return sum(one.cpu_s for one in self.ended)

    def tests_of(self, one: Ended) -> int | None:
        """How many tests a job ran; None: it is no run of pytest."""
        return None if one.job.report is None else sum(case.job == one.job.name for case in self.cases)


def lines(run: Run, logs: Path) -> list[str]:
    """The summary on the terminal; what failed comes last, because the end of a long output is what people see."""
    made = []
    if len(run.cases) > findings.SLOWEST or len(run.ended) > 1:
        made.append("== slowest tests, with their fixtures")
        made += [f"{case.seconds:7.1f} s  {case.title}" for case in findings.slowest(run.cases)]
    made += [f"not in this run: {what}" for what in run.missing]
    made.append(f"== suites ({run.plan.profile} form)")
    for one in run.ended:
        made.append(f"{one.job.name:<22} {one.seconds:6.0f} s  {one.cpu_s:6.0f} s of processor  {one.verdict}")
    made.append(f"{'all':<22} {run.seconds:6.0f} s  {run.cpu_s:6.0f} s of processor")
    for one in run.ended:
        if not one.passed:
            made += _failures(run, one, logs)
    return made


def _failures(run: Run, one: Ended, logs: Path) -> list[str]:
    """What failed in a job: its tests with their errors, or its last lines where no test says what it was."""
    failed = [case for case in run.cases if case.job == one.job.name and case.outcome == "failed"]
    made = [f"== {one.job.name}: {one.verdict}"]
    for case in failed[:FAILURES_SHOWN]:
        made += [f"FAILED {case.title}", *(f"    {line}" for line in case.trouble)]
    if len(failed) > FAILURES_SHOWN:
        made.append(f"and {len(failed) - FAILURES_SHOWN} more: see {one.job.log_in(logs)}")
    if not failed and one.code is not None:
        made += [f"    {line}" for line in _tail(one.job.log_in(logs))]
    return made


def as_json(run: Run) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "commit": _commit(),
        "machine": _machine(),
        "profile": run.plan.profile,
        "day": run.plan.day.isoformat(),
        "seed": run.plan.seed,
        "seconds": round(run.seconds, 1),
        "processor_seconds": round(run.cpu_s, 1),
        "passed": run.passed,
        "suites": [
            {
                "name": one.job.name,
                "seconds": round(one.seconds, 1),
                "processor_seconds": round(one.cpu_s, 1),
                "verdict": one.verdict,
                "tests": run.tests_of(one),
            }
            for one in run.ended
        ],
        "failed": [case.title for case in run.cases if case.outcome == "failed"],
        "slowest": [{"test": case.title, "seconds": case.seconds} for case in findings.slowest(run.cases)],
        "not_in_this_run": list(run.missing),
        "measured_on_the_cluster": _figures(run),
    }


def as_page(run: Run, logs: Path) -> str:
    """All of it in Markdown, with the last lines of each job that failed."""
    report = as_json(run)
    made = [
        f"# Tailrace, {report['day']}: {'passed' if run.passed else 'FAILED'}",
        "",
        f"Commit {report['commit']}, {run.plan.profile} form, on {report['machine']}.",
        f"It took {run.seconds / 60:.0f} min, and {run.cpu_s / 60:.0f} min of processor.",
        f"`TAILRACE_TEST_SEED={run.plan.seed}` repeats it.",
        "",
        *_table(("suite", "tests", "seconds", "of processor", "result"), _rows(run)),
        "",
    ]
    for one in run.ended:
        if not one.passed:
            made += [f"## {one.job.name}: {one.verdict}", "", "```", *_tail(one.job.log_in(logs)), "```", ""]
    if report["measured_on_the_cluster"]:
        figures = [
            (item["what"], item["of"], f"{item['value']:.1f} {item['unit']}", _bound(item))
            for item in report["measured_on_the_cluster"]
        ]
        made += ["## Measured on the cluster", "", *_table(("what", "of", "value", "bound"), figures), ""]
    slowest = [(case.title.replace("|", "\\|"), f"{case.seconds:.1f}") for case in findings.slowest(run.cases)]
    made += ["## Slowest tests, with their fixtures", "", *_table(("test", "seconds"), slowest), ""]
    made += ["## Not in this run", "", *(f"- {what}" for what in run.missing or ["Everything ran."]), ""]
    return "\n".join(made)


def write(run: Run, folder: Path, logs: Path) -> None:
    """Write ``report.json`` and ``report.md`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(as_json(run), indent=2) + "\n")
    (folder / "report.md").write_text(as_page(run, logs))


def _rows(run: Run) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in run.ended:
        tests = run.tests_of(one)
        counted = "" if tests is None else str(tests)
        rows.append((one.job.name, counted, f"{one.seconds:.0f}", f"{one.cpu_s:.0f}", one.verdict))
    return rows


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def _bound(item: dict[str, Any]) -> str:
    return "" if item.get("bound") is None else f"{item['bound']:.1f} {item['unit']}"


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if log.exists() else []


def _figures(run: Run) -> list[dict[str, Any]]:
    """What the tests on a cluster measured in this run."""
    if not FIGURES.exists() or FIGURES.stat().st_mtime < run.began_unix_s:
        return []
    found: list[dict[str, Any]] = json.loads(FIGURES.read_text())
    return found


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{cores_of_this_machine()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"
