"""What a run found: cases and their times from pytest's reports, and what of the long form a short run left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from suiteruns.catalogue import FUZZ_RUNS, FUZZ_SECONDS, GROUPS, REPOSITORY, SEEDS_SECONDS, SIMULATOR, Plan
from suiteruns.scheduler import Job

COLLECT_LIMIT_S = 300
SLOWEST = 30
TESTS = REPOSITORY / "tests"
TROUBLE_LINES, TROUBLE_CHARACTERS = 12, 400
"""How much of an error is reported, and of a line of it."""
CHOOSES_CASES = ("cli", "compat/python", "crash", "e2e/kubernetes", "e2e/pods", "images", "spark")
"""Suites whose long form has more cases, by files that are left out or by parameters."""
_READS_PROFILE = re.compile(r"\btest_profile\b|TAILRACE_TEST_PROFILE|\bharness\.FULL\b")


class ReportError(Exception):
    """A report of pytest cannot be used."""


@dataclass(frozen=True)
class Case:
    """One test that ran."""

    job: str
    file: str
    """Below tests/, with dots, without ending."""
    name: str
    seconds: float
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    trouble: tuple[str, ...] = ()
    """What pytest printed as the error of a test that failed, and where it was."""

    @property
    def title(self) -> str:
        """How pytest calls it, nearly."""
        return f"{self.file.replace('.', '/')}.py::{self.name}"


def cases_of(job: Job) -> list[Case]:
    """The cases of a suite by its report. Raises ReportError."""
    if job.report is None:
        return []
    try:
        root = ElementTree.parse(job.report).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ReportError(f"{job.report.name} cannot be read: {error}") from error
    return [_case(job.name, element) for element in root.iter("testcase")]


def _case(job: str, element: ElementTree.Element) -> Case:
    kinds = {child.tag for child in element}
    outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    place = element.get("classname", "").removeprefix("tests.")
    trouble = [line for child in element if child.tag in ("failure", "error") for line in _trouble(child.text or "")]
    return Case(job, place, element.get("name", ""), float(element.get("time", "0")), outcome, tuple(trouble))


def _trouble(text: str) -> list[str]:
    """The lines of a failure that say what was wrong and where, without the code around it."""
    lines = text.rstrip().splitlines()
    found = [line for line in lines if line.startswith("E ")][:TROUBLE_LINES]
    return [line[:TROUBLE_CHARACTERS] for line in (*found, *lines[-1:])]


def judge(job: Job) -> str:
    """Why a suite whose program ended well failed nevertheless: it ran nothing, or skipped; "" when it did neither."""
    if job.report is None:
        return ""
    try:
        cases = cases_of(job)
    except ReportError as error:
        return str(error)
    skipped = sum(case.outcome == "skipped" for case in cases)
    if skipped:
        return f"{skipped} tests were skipped"
    return "" if cases else "no test ran"


def slowest(cases: Iterable[Case], count: int = SLOWEST) -> list[Case]:
    """The cases that took longest, with their fixtures, the slowest first."""
    return sorted(cases, key=lambda case: -case.seconds)[:count]


# ---- what did not run


def not_in_this_run(names: Sequence[str], cases: Sequence[Case], plan: Plan) -> list[str]:
    """What the whole long form has and this run had not, or had in a shorter form: a line each."""
    lines = []
    away = [suite for suite in (*GROUPS["everything"], *SIMULATOR) if suite not in names]
    if away:
        lines.append(f"suites: {', '.join(away)}")
    if plan.is_full:
        return lines
    lines += _cases_left_out([name for name in CHOOSES_CASES if name in names], cases)
    if "simulation/bugs" in names:
        lines.append("planted bugs of other days (make simulate-bugs: all of them)")
    if "simulation/seeds" in names:
        which = " of half of the workloads, the other half tomorrow" if plan.extras else ""
        lines.append(f"15 minutes of fresh seeds of the simulator; here {SEEDS_SECONDS} s from seed 0{which}")
    if "fuzz" in names:
        minutes = FUZZ_SECONDS // 60
        lines.append(f"{minutes} minutes of fuzzing from a fresh seed; here {FUZZ_RUNS} inputs of each target")
    shorter = list(dict.fromkeys(path for name in names for path in _shorter_inside(TESTS / name)))
    if shorter:
        lines.append(f"long forms within cases of {', '.join(shorter)}")
    if any(name in names for name in ("unit", "contract", "simulation")):
        lines.append("1000 examples of each property (hypothesis); here 100")
    return lines


def _cases_left_out(suites: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Cases of the long form that are no case of this run, counted by file."""
    if not suites:
        return []
    ran = {(case.file, case.name) for case in cases}
    all_of, left = Counter[str](), Counter[str]()
    for file, name in _collected(suites):
        all_of[file] += 1
        left[file] += (file, name) not in ran
    lines = []
    for file, count in left.items():
        if count:
            part = "the whole file" if count == all_of[file] else f"{count} of {all_of[file]} cases"
            lines.append(f"{file.replace('.', '/')}.py: {part}")
    return lines


def _collected(suites: Sequence[str]) -> list[tuple[str, str]]:
    """File and name of each case in the long form. Raises ReportError."""
    options = ["--collect-only", "-q", "-o", "faulthandler_timeout=0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{suite}" for suite in suites)],
        env={**os.environ, "TAILRACE_TEST_PROFILE": "full"},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        timeout=COLLECT_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ReportError(f"the cases of the long form cannot be listed: {done.stdout[-2000:]}")
    found = []
    for line in done.stdout.splitlines():
        path, separator, name = line.partition("::")
        if separator:
            found.append((path.removeprefix("tests/").removesuffix(".py").replace("/", "."), name))
    return found


def _shorter_inside(suite: Path) -> list[str]:
    """Files of a suite that read the profile, below tests/."""
    files = sorted(path for path in suite.rglob("*.py") if path.name != "conftest.py")
    return [str(path.relative_to(TESTS)) for path in files if _READS_PROFILE.search(path.read_text())]
