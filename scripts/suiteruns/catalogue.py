"""The suites: what each runs, what it needs, how many cores it keeps busy, and what it must not share."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suiteruns.scheduler import Job

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "build/suites"
FULL_LIMIT_S = 6 * 3600.0
WAITS = 0.4
"""Cores of a suite that mostly waits: for servers to start, for leases to lapse, for a cluster."""
MOUNTS = frozenset({"mounts"})
"""What mounts, or compares what is mounted on the host."""
CLUSTER = frozenset({"cluster", *MOUNTS})
"""The local Kubernetes cluster, which also changes settings of the host's kernel."""


@dataclass(frozen=True)
class Plan:
    """What a run is asked for."""

    profile: str
    """``ci``: short forms; ``full``: long ones."""
    workers: int
    """Processes that share the tests of one suite, or the seeds of the simulator."""
    seed: int
    """Where tests and the long form's simulator draw their random cases from."""
    day: datetime.date
    """Chooses what has its turn today."""
    extras: bool = False
    """Whether the short form is to have today's part of what only the long form has."""
    cached_spec: bool = False
    """Whether an unchanged specification that was checked before counts as checked."""
    local_cluster: bool = True
    """Whether tests on Kubernetes run on the local cluster, not on one that E2E_KUBECONFIG names."""

    @property
    def is_full(self) -> bool:
        """Whether this is the long form."""
        return self.profile == "full"


@dataclass(frozen=True)
class Suite:
    """Tests in one folder below tests/.

    ``share``: how pytest-xdist gives tests to its workers; empty: one process. Tests of a file stay together
    (``loadfile``) where a server belongs to the file.
    """

    name: str
    needs: tuple[str, ...] = ()
    cores: float = 1.0
    share: str = ""
    takes: frozenset[str] = frozenset()
    alone: bool = False
    later_than: tuple[str, ...] = ()


MINIO, PYTHON_CLIENT, JAVA_CLIENT, TLC = "MinIO server", "Python client", "Java client", "TLC"
LOCAL_CLUSTER, IMAGES = "local cluster", "container images"

PREPARATIONS = {
    MINIO: Job(MINIO, ("tests/support/minio.sh",), cores=1.0),
    PYTHON_CLIENT: Job(PYTHON_CLIENT, ("tests/support/python-client.sh",), cores=0.0),
    JAVA_CLIENT: Job(JAVA_CLIENT, ("tests/support/java-client.sh",), cores=0.0),
    TLC: Job(TLC, ("tests/support/tlc.sh",), cores=0.0),
    # Where nothing is cached this compiles Kubernetes for a quarter of an hour, beside everything else and after it.
    LOCAL_CLUSTER: Job(LOCAL_CLUSTER, ("nice", "-n", "19", "tests/support/local-cluster.sh"), cores=0.0),
    IMAGES: Job(IMAGES, ("tests/support/e2e-images.sh",), cores=1.0, after=(MINIO, JAVA_CLIENT)),
}
"""What takes longer to build or download than a test may last is made ready once, before the suites that need it."""

# In the order in which they are started: long ones first, so that short ones fill the gaps in the end.
SUITES = (
    Suite("crash", (MINIO, JAVA_CLIENT, PYTHON_CLIENT), cores=1.0, takes=MOUNTS),
    Suite("unit", share="worksteal"),
    Suite("e2e/pods", (MINIO,), cores=1.0),
    Suite("simulation", share="worksteal"),
    Suite("cli", (MINIO,), cores=1.0),
    Suite("compat/python", (PYTHON_CLIENT,), cores=WAITS),
    Suite("compat/java", (JAVA_CLIENT,), cores=1.0),
    Suite("contract", (MINIO,), cores=1.0),
    Suite("compat/wire", cores=WAITS),
    Suite("e2e/local", (JAVA_CLIENT,), cores=1.0),
    Suite("images", (IMAGES,), cores=1.0, takes=MOUNTS),
    Suite("e2e/cluster", (LOCAL_CLUSTER,), cores=WAITS, takes=CLUSTER),
    Suite("e2e/kubernetes", (IMAGES,), alone=True, takes=CLUSTER, later_than=("e2e/cluster",)),
)
COMMANDS = ("lint", "sanitize", "spec")
"""Suites that are no folder of tests."""
SIMULATOR = ("simulation/seeds", "simulation/bugs")
"""Parts of the suite ``simulation`` that run beside its tests."""
NEED_A_HOST = ("e2e/cluster", "e2e/kubernetes")
"""Run only where they are named: they need root or a cluster (docs/testing-on-kubernetes.md)."""
GROUPS = {
    "tests": (*(suite.name for suite in SUITES if suite.name not in NEED_A_HOST), "spec"),
    "everything": (*COMMANDS, *(suite.name for suite in SUITES)),
}


class UnknownSuiteError(Exception):
    """A suite is named that does not exist; the message says which ones do."""


def chosen(names: Sequence[str]) -> list[str]:
    """The suites that these names and groups mean, each once. Raises UnknownSuiteError."""
    found: dict[str, None] = {}
    known = {*GROUPS["everything"], *SIMULATOR}
    for name in names or ["tests"]:
        for suite in GROUPS.get(name, (name,)):
            if suite not in known:
                raise UnknownSuiteError(f"there is no suite {suite}; there are {', '.join(sorted(known))}, everything")
            found[suite] = None
            if suite == "simulation":
                found.update(dict.fromkeys(SIMULATOR))
    return list(found)


def jobs(names: Sequence[str], plan: Plan) -> list[Job]:
    """The jobs of these suites, in the order in which they are to start, after what they need."""
    suites = [job for job in _suites(plan) if job.suite in names]
    needed = {name for job in suites for name in job.after}
    while more := {name for job in PREPARATIONS.values() if job.name in needed for name in job.after} - needed:
        needed |= more
    return [job for job in PREPARATIONS.values() if job.name in needed] + suites


def _suites(plan: Plan) -> Iterator[Job]:
    yield Job("lint", ("make", "lint"), suite="lint", cores=1.0)
    yield Job("sanitize", ("make", "sanitize"), suite="sanitize", cores=1.0)
    yield _seeds(plan)
    yield _bugs(plan)
    for suite in SUITES:
        yield _by_pytest(suite, plan)
    cached = ("--cached",) if plan.cached_spec else ()
    yield Job("spec", ("make", "spec", f"SPEC_OPTIONS={' '.join(cached)}"), after=(TLC,), suite="spec")


def _by_pytest(suite: Suite, plan: Plan) -> Job:
    report = RESULTS / f"{suite.name.replace('/', '-')}.xml"
    options = ["-q", f"--junit-xml={report}"]
    workers = plan.workers if suite.share else 1
    if workers > 1:
        options += ["-n", str(workers), "--dist", suite.share]
    if suite.name == "e2e/kubernetes":
        options += ["-o", "faulthandler_timeout=0"]  # a test there may take longer than others may
    environment = {"TAILRACE_TEST_PROFILE": plan.profile, "TAILRACE_TEST_SEED": str(plan.seed)}
    if plan.extras:
        environment["TAILRACE_TEST_DAY"] = plan.day.isoformat()
    needs = list(suite.needs)
    if suite.name == "e2e/kubernetes" and plan.local_cluster:
        needs.append(LOCAL_CLUSTER)
    return Job(
        suite.name,
        (sys.executable, "-m", "pytest", *options, f"tests/{suite.name}"),
        cores=suite.cores * workers,
        after=tuple(needs),
        later_than=suite.later_than,
        takes=suite.takes,
        alone=suite.alone,
        environment=environment,
        limit_s=_limit_s(plan),
        suite=suite.name,
        report=report,
    )


def _simulator(part: str, plan: Plan, *options: str) -> Job:
    command = (sys.executable, "tests/simulation/run.py", *options, "--jobs", str(plan.workers))
    return Job(
        part,
        command,
        cores=plan.workers,
        environment={"TAILRACE_TEST_PROFILE": plan.profile},
        limit_s=_limit_s(plan),
        suite=part,
    )


def _seeds(plan: Plan) -> Job:
    """Seeds of the simulator: the same ones in the short form, others in the long one."""
    first, seconds = (plan.seed, 900) if plan.is_full else (0, 120)
    return _simulator("simulation/seeds", plan, "--first", str(first), "--seconds", str(seconds))


def _bugs(plan: Plan) -> Job:
    """Planted bugs, which the simulator must find: some by date in the short form, all in the long one."""
    which = ("--bug", "all") if plan.is_full else ("--bugs-of", plan.day.isoformat())
    return _simulator("simulation/bugs", plan, *which)


def _limit_s(plan: Plan) -> float:
    return FULL_LIMIT_S if plan.is_full else Job.limit_s


def cores_of_this_machine() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))
