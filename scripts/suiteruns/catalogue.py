"""The suites: what each runs, what it needs, how many cores it keeps busy, and what it must not share."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from suiteruns.scheduler import Job

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "build/suites"
FULL_LIMIT_S = 6 * 3600.0
WAITS = 0.4
"""Cores of a suite that mostly waits: for servers to start, for leases to lapse, for a cluster."""
NICE, NICEST = 5, 10
"""How far suites give way to what measures and to the cluster; and lint, seeds of the simulator and the like to all. On
processors that are busy, a third and a tenth remain to them: enough for the time limits of tests."""
MOUNTS = frozenset({"mounts"})
"""What mounts, or compares what is mounted on the host."""
CLUSTER = frozenset({"cluster"})
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
    """Whether the short form is to have today's part of what only the long form has on Kubernetes."""
    cached_spec: bool = False
    """Whether an unchanged specification that was checked before counts as checked."""
    local_cluster: bool = True
    """Whether tests on Kubernetes run on the local cluster, not on one that E2E_KUBECONFIG names."""
    cluster_built: bool = False
    """Whether the programs of the local cluster are there, so that its tests can start in the first minutes."""
    seed_workers: int = 0
    """``workers`` that share the seeds: one beside what measures, which needs the other cores. 0: all."""
    memory_folder: Path | None = None
    """A folder in memory for the files of tests that need no disk; None: they are on the disk as well."""

    @property
    def is_full(self) -> bool:
        """Whether this is the long form."""
        return self.profile == "full"


@dataclass(frozen=True)
class Suite:
    """Tests in one folder below tests/.

    ``share``: how pytest-xdist gives tests to its workers, with ``loadfile`` by whole files and their servers; empty:
    one process. ``cores``: of each worker. ``bounds``: patterns of files that measure how long clients wait, and fail
    when it is too long: they run apart, beside nothing but what computes, which gives way to them.
    """

    name: str
    needs: tuple[str, ...] = ()
    cores: float = 1.0
    share: str = ""
    takes: frozenset[str] = frozenset()
    later_than: tuple[str, ...] = ()
    on_cluster: bool = False
    """Whether it runs on the cluster that E2E_KUBECONFIG names, else on the local one."""
    bounds: tuple[str, ...] = ()
    computes: bool = False
    """Whether it computes, with small files and servers in its own process at most: it fills what others leave."""
    syncs: bool = False
    """Whether it syncs many files: what measures beside it would wait for the disk."""
    in_memory: bool = False
    """Whether its files are in memory where there is room, so that no sync of them reaches the disk."""
    apart: tuple[str, ...] = ()
    """Folders of its tests that are suites of their own."""
    limits: bool = True
    """Whether a test may take as long as pytest's own limits say, and no longer; in the long form only its own mark."""


MINIO, PYTHON_CLIENT, JAVA_CLIENT, TLC = "MinIO server", "Python client", "Java client", "TLC"
S3_LIBRARIES = "libraries for S3"
LOCAL_CLUSTER, IMAGES = "local cluster", "container images"

PREPARATIONS = {
    MINIO: Job(MINIO, ("tests/support/minio.sh",), cores=1.0),
    PYTHON_CLIENT: Job(PYTHON_CLIENT, ("tests/support/python-client.sh",), cores=0.0),
    JAVA_CLIENT: Job(JAVA_CLIENT, ("tests/support/java-client.sh",), cores=0.0),
    S3_LIBRARIES: Job(S3_LIBRARIES, (sys.executable, "-m", "tailrace.cli", "pipeline", "install-s3"), cores=0.0),
    TLC: Job(TLC, ("tests/support/tlc.sh",), cores=0.0),
    # Where nothing is cached this compiles Kubernetes for a quarter of an hour, beside everything else and after it.
    LOCAL_CLUSTER: Job(LOCAL_CLUSTER, ("tests/support/local-cluster.sh",), cores=0.0, computes=True, nice=19),
    IMAGES: Job(IMAGES, ("tests/support/e2e-images.sh",), cores=1.0, after=(MINIO, JAVA_CLIENT)),
}
"""What takes longer to build or download than a test may last is made ready once, before the suites that need it."""

CLUSTER_ITSELF, API, KUBERNETES, FAULT = "e2e/cluster", "e2e/api", "e2e/kubernetes", "e2e/kubernetes/fault"
PURE = "compat/wire/pure"

# In the order in which they are started: what waits and takes long first, what keeps all cores busy last.
SUITES = (
    Suite(
        "e2e/pods",
        (MINIO,),
        bounds=(
            *("test_pods.py", "test_pods_under_load.py", "test_live_controllers.py", "test_store_cut_off.py"),
            "test_many_streams.py",
        ),
    ),
    Suite(CLUSTER_ITSELF, (LOCAL_CLUSTER,), cores=WAITS, takes=CLUSTER | MOUNTS),
    # Beside the suite below, whose installation looks at other namespaces.
    Suite(API, cores=WAITS, later_than=(CLUSTER_ITSELF,), on_cluster=True, limits=False),
    Suite(
        KUBERNETES,
        (IMAGES,),
        cores=0.5,
        takes=CLUSTER,
        later_than=(CLUSTER_ITSELF,),
        on_cluster=True,
        bounds=(
            *("test_failover.py", "test_upgrade.py", "test_uninstall.py", "test_namespace_deletion.py"),
            *("test_many_resources.py", "test_memory_bound.py", "test_retention_resources.py"),
        ),
        limits=False,
    ),
    Suite("spark", (MINIO, S3_LIBRARIES)),
    Suite("crash", (MINIO, JAVA_CLIENT, PYTHON_CLIENT), cores=0.5, share="loadfile", takes=MOUNTS),
    Suite("compat/python", (PYTHON_CLIENT,), cores=WAITS),
    Suite("cli", (MINIO,), cores=0.5, share="loadfile"),
    Suite("compat/java", (JAVA_CLIENT,), cores=0.5),
    Suite("e2e/local", (JAVA_CLIENT,), cores=0.5),
    Suite("images", (IMAGES,), cores=0.5, takes=MOUNTS),
    Suite("compat/wire", cores=WAITS),
    Suite("contract", (MINIO,), cores=WAITS),
    Suite("unit/storage", computes=True, syncs=True),
    Suite("unit/log", computes=True, syncs=True),
    Suite("unit", cores=0.5, share="worksteal", computes=True, syncs=True, in_memory=True, apart=("storage", "log")),
    Suite("simulation", computes=True),
)
COMMANDS = ("lint", "sanitize", "fuzz", "spec")
"""Suites that are no folder of tests."""
SIMULATOR = ("simulation/seeds", "simulation/bugs")
"""Parts of the suite ``simulation`` that run beside its tests."""
FUZZ_RUNS, FUZZ_SECONDS = 20_000, 600
"""Inputs of each target in the short form, the same ones on any machine; time of all targets in the long form."""
SEEDS_SECONDS = 120
"""How long the simulator runs seeds in the short form, if the least number of them takes less."""
SEEDS_OF_EACH_WORKLOAD = 20
"""Run on any machine, however slow: enough that every kind of fault that a workload enables happens."""
NEED_A_HOST = (CLUSTER_ITSELF, API, KUBERNETES)
"""Run only where they are named: they need root or a cluster (docs/testing-on-kubernetes.md)."""
GROUPS = {
    "tests": (*(suite.name for suite in SUITES if suite.name not in NEED_A_HOST), "fuzz", "spec"),
    "everything": (*COMMANDS, *(suite.name for suite in SUITES)),
    **{suite.name: (suite.name, *(f"{suite.name}/{name}" for name in suite.apart)) for suite in SUITES if suite.apart},
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
    """The jobs of these suites, in the order in which they are to start, after what they need.

    What only computes comes last: it fills the cores that the others leave.
    Raises UnknownSuiteError.
    """
    if any(job.measures for job in _suites(plan) if job.suite in names):
        plan = replace(plan, seed_workers=1)
    suites = sorted((job for job in _suites(plan) if job.suite in names), key=lambda job: job.computes)
    if plan.cluster_built or not plan.local_cluster:
        suites = _measurements_first(suites, plan)
    if idle := set(names) - {job.suite for job in suites}:
        raise UnknownSuiteError(f"nothing runs for {', '.join(sorted(idle))}")
    needed = {name for job in suites for name in job.after}
    while more := {name for job in PREPARATIONS.values() if job.name in needed for name in job.after} - needed:
        needed |= more
    ends = [_cluster_end(suites)] if plan.extras and LOCAL_CLUSTER in needed else []
    return [job for job in PREPARATIONS.values() if job.name in needed] + ends + suites


def _measurements_first(suites: Sequence[Job], plan: Plan) -> list[Job]:
    """Let all wait for what measures, but the making of the cluster, and what computes without many syncs of the disk.

    The latter fills the time for which measurements keep the others away; later there is less of it to hold up the
    others.
    """
    first = {job.name for job in suites if job.measures}
    beside = {CLUSTER_ITSELF, *(job.name for job in suites if job.measures or job.computes)}
    beside -= {suite.name for suite in SUITES if suite.syncs and _folder_in_memory(suite, plan) is None}
    others = {job.name for job in suites} - beside
    ordered = []
    for job in suites:
        kept = tuple(name for name in job.later_than if not (job.measures and name in others))
        added = tuple(sorted(first)) if job.name in others else ()
        ordered.append(replace(job, later_than=tuple(dict.fromkeys((*kept, *added)))))
    return ordered


def _cluster_end(suites: Sequence[Job]) -> Job:
    """End the local cluster after its last tests: an idle installation takes a third of a core from what still runs."""
    users = tuple(job.name for job in suites if job.takes & CLUSTER or LOCAL_CLUSTER in job.after)
    command = (sys.executable, "tests/e2e/cluster", "down")
    return Job("end of the local cluster", command, cores=0.0, later_than=users, takes=CLUSTER)


def _suites(plan: Plan) -> Iterator[Job]:
    yield Job("lint", ("make", "lint"), computes=True, nice=NICEST, suite="lint")
    for suite in SUITES:
        files = {path.name for path in (REPOSITORY / "tests" / suite.name).glob("test_*.py")}
        bounds = {file for file in files if any(fnmatch(file, pattern) for pattern in suite.bounds)}
        if not bounds or files != bounds:
            yield _by_pytest(suite.name, suite, plan, without=bounds)
        if bounds:
            yield _by_pytest(f"{suite.name}/bounds", suite, plan, without=files - bounds, measures=True)
    yield Job("sanitize", ("make", "sanitize"), computes=True, nice=NICEST, suite="sanitize")
    if plan.extras:
        yield _fault(plan)
    yield _pure(plan)
    yield _seeds(plan)
    yield _bugs(plan)
    yield _fuzz(plan)
    cached = ("--cached",) if plan.cached_spec else ()
    command = ("make", "spec", f"SPEC_OPTIONS={' '.join(cached)}")
    yield Job("spec", command, after=(TLC,), computes=True, nice=NICEST, suite="spec")


def _by_pytest(name: str, suite: Suite, plan: Plan, without: Set[str], measures: bool = False) -> Job:
    workers = plan.workers if suite.share else 1
    options = [f"--ignore=tests/{suite.name}/{name}" for name in (*sorted(without), *suite.apart)]
    if workers > 1:
        options += ["-n", str(workers), "--dist", suite.share]
    environment = {}
    if plan.extras:
        environment = {"TAILRACE_TEST_DAY": plan.day.isoformat()}
    if plan.extras and suite.name == KUBERNETES:
        environment["TAILRACE_E2E_KEEP"] = "1"
    return _pytest_job(
        name,
        suite,
        plan,
        options,
        environment,
        cores=suite.cores * workers,
        # Else it is last: it waits until all others are done with the cluster, which may have to be built first.
        later_than=(*suite.later_than, *((suite.name, API) if measures and suite.on_cluster else ())),
        measures=measures,
    )


def _pytest_job(
    name: str,
    suite: Suite,
    plan: Plan,
    options: Sequence[str],
    environment: Mapping[str, str],
    *,
    cores: float,
    later_than: tuple[str, ...],
    measures: bool,
) -> Job:
    report = RESULTS / f"{name.replace('/', '-')}.xml"
    limits = () if suite.limits and not plan.is_full else ("-o", "faulthandler_timeout=0")
    common = ["-q", f"--junit-xml={report}", *limits]
    needs = suite.needs
    if suite.on_cluster and plan.local_cluster:
        needs = (*needs, LOCAL_CLUSTER)
    return Job(
        name,
        (sys.executable, "-m", "pytest", *common, *options, f"tests/{suite.name}"),
        cores=cores,
        after=needs,
        later_than=later_than,
        takes=suite.takes,
        measures=measures,
        computes=suite.computes,
        nice=0 if measures or suite.on_cluster or suite.takes & CLUSTER else NICE,
        environment={
            "TAILRACE_TEST_PROFILE": plan.profile,
            "TAILRACE_TEST_SEED": str(plan.seed),
            **({"TMPDIR": str(folder)} if (folder := _folder_in_memory(suite, plan)) else {}),
            **environment,
        },
        limit_s=_limit_s(plan),
        suite=suite.name,
        report=report,
    )


def _fault(plan: Plan) -> Job:
    """One fault of the installed system in its long form, with strict bounds and the Java client, by the day."""
    return _pytest_job(
        FAULT,
        next(suite for suite in SUITES if suite.name == KUBERNETES),
        replace(plan, profile="full"),
        (),
        {"TAILRACE_TEST_FAULT_OF": plan.day.isoformat(), "TAILRACE_E2E_KEEP": "1"},
        cores=1.0,
        later_than=(KUBERNETES, f"{KUBERNETES}/bounds"),
        measures=True,
    )


def _pure(plan: Plan) -> Job:
    """The wire protocol's tests once more, against a server on the kernel's pure-Python twins."""
    suite = next(suite for suite in SUITES if suite.name == "compat/wire")
    environment = {"TAILRACE_PURE": "1"}
    return _pytest_job(PURE, suite, plan, ("-k", "file"), environment, cores=WAITS, later_than=(), measures=False)


def _seeds(plan: Plan) -> Job:
    """Seeds of the simulator: the same in the short form (in CI of half of the workloads), others in the long one."""
    first, seconds = (plan.seed, 900) if plan.is_full else (0, SEEDS_SECONDS)
    workers = plan.seed_workers or plan.workers
    options: tuple[str, ...] = ("--first", str(first), "--seconds", str(seconds), "--jobs", str(workers))
    if plan.extras and not plan.is_full:
        options += ("--workloads-of", plan.day.isoformat())
    # The long form has other seeds each time: in so many, a fault that is on in an eighth of them happens.
    each = (3 if plan.is_full else 1) * SEEDS_OF_EACH_WORKLOAD
    every_fault = ("--every-fault", str(each))
    return replace(_simulator("simulation/seeds", plan, *options, *every_fault), cores=workers)


def _bugs(plan: Plan) -> Job:
    """Planted bugs, which the simulator must find: some by date in the short form, all in the long one."""
    which = ("--bug", "all") if plan.is_full else ("--bugs-of", plan.day.isoformat())
    return _simulator("simulation/bugs", plan, *which)


def _fuzz(plan: Plan) -> Job:
    """Fuzzing of the decoders: the same inputs in the short form, others in the long one."""
    seed, bound = (plan.seed, f"--seconds={FUZZ_SECONDS}") if plan.is_full else (1, f"--runs={FUZZ_RUNS}")
    command = (sys.executable, "tests/fuzz/fuzz.py", bound, f"--seed={seed}")
    return Job("fuzz", command, computes=True, nice=NICEST, limit_s=_limit_s(plan), suite="fuzz")


def _simulator(part: str, plan: Plan, *options: str) -> Job:
    command = (sys.executable, "tests/simulation/run.py", *options)
    environment = {"TAILRACE_TEST_PROFILE": plan.profile}
    return Job(part, command, computes=True, nice=NICEST, environment=environment, limit_s=_limit_s(plan), suite=part)


def _folder_in_memory(suite: Suite, plan: Plan) -> Path | None:
    return plan.memory_folder if suite.in_memory else None


def _limit_s(plan: Plan) -> float:
    return FULL_LIMIT_S if plan.is_full else Job.limit_s


def cores_of_this_machine() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))
