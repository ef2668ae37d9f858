"""A real cluster with an installed Tailrace for all tests of this folder, and what is kept of a test that fails.

E2E_KUBECONFIG names a cluster that runs and has the images (`make kind-up IMAGES=all`); without it the cluster of
tests/e2e/cluster is used, started when it is down, and given the images. TAILRACE_E2E_KEEP=1 leaves the installation
behind, and takes images and an installation that are there.

What the short form leaves out has its turn by the day: TAILRACE_TEST_DAY=DATE adds some files to it;
TAILRACE_TEST_FAULT_OF=DATE runs one fault of test_failover.py alone.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import daily, kubechart, kubecluster
from harness.figures import Figures
from harness.kubectl import Kubectl, KubeError
from harness.kubeload import Images, Load, Programs, programs_manifest
from harness.kubesystem import StreamSystem, gather, stream

REPOSITORY = Path(__file__).resolve().parents[3]
RESULTS = REPOSITORY / "build/e2e"
PROFILE = os.environ.get("TAILRACE_TEST_PROFILE", "ci")
NAMESPACE = "tailrace-e2e"
TEST_DEADLINE_S = 900
FIRST_WRITE_DEADLINE_S = 240.0
GONE_DEADLINE_S = 120.0

# What a short run leaves out as a whole; the other files choose by their parameters.
# The long ones are apart, so that no day has all of them.
DAILY = [
    "test_uninstall.py",
    "test_clients_in_pods.py",
    "test_namespace_deletion.py",
    "test_bad_clusters.py",
    "test_reader_group_resources.py",
    "test_upgrade.py",
    "test_stream_deletion.py",
]
DAILY_COUNT = 3
LONG = ["test_many_resources.py", "test_memory_bound.py", "test_pipelines.py", "test_retention_resources.py"]
"""Each takes ten minutes or more: only in the long form."""


def _left_out() -> list[str]:
    if PROFILE == "full":
        return []
    day = daily.today()
    chosen = daily.of_day(day, DAILY, DAILY_COUNT) if day else []
    return [file for file in (*DAILY, *LONG) if file not in chosen]


collect_ignore = _left_out()

KUBE = pytest.StashKey[Kubectl]()
FIGURES = pytest.StashKey[Figures]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a cluster take longer than others."""
    if PROFILE == "full" and float(config.getini("faulthandler_timeout") or 0):
        raise pytest.UsageError("these tests take longer than others may: give -o faulthandler_timeout=0")
    for item in items:
        if item.get_closest_marker("timeout") is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))
    day = os.environ.get("TAILRACE_TEST_FAULT_OF")
    if day:
        faults = [item for item in items if item.path.name == "test_failover.py"]
        chosen = daily.of_day(datetime.date.fromisoformat(day), faults, 1)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep everything that shows why a test failed; end its loads, or they run beside its teardown and later tests."""
    report = yield
    kube = item.config.stash.get(KUBE, None)
    if report.failed and kube is not None:
        folder = RESULTS / "failures" / re.sub(r"[^A-Za-z0-9_.-]+", "-", item.name) / report.when
        gather(kube, folder)
        report.sections.append(("cluster", f"kept in {folder.relative_to(REPOSITORY)}"))
        try:
            _remove_load_pods(kube)
        except KubeError as error:
            report.sections.append(("loads", f"not ended: {error}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The figures that were measured."""
    figures = config.stash.get(FIGURES, None)
    if figures is not None and figures.found:
        terminalreporter.section("measured on the cluster")
        for line in figures.table():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """Where measured values go."""
    made = pytestconfig.stash[FIGURES] = Figures(RESULTS / "figures.json")
    return made


@pytest.fixture(scope="session")
def cluster_kube() -> Kubectl:
    """A cluster that runs and has our images."""
    return kubecluster.ready()


@pytest.fixture(scope="session")
def images() -> Images:
    """Where programs of tests run."""
    return kubechart.test_images()


@dataclass(frozen=True)
class Installed:
    """What installing took."""

    system: StreamSystem
    first_write_s: float | None
    """From ``helm install`` to the first acknowledged event; None when it was installed before."""


@pytest.fixture(scope="session")
def installed(cluster_kube: Kubectl, images: Images, pytestconfig: pytest.Config) -> Iterator[Installed]:
    """Tailrace with a trial MinIO and a small StreamCluster, in a namespace of its own."""
    kube = cluster_kube.within(NAMESPACE)
    keep = kubecluster.keeps()
    pytestconfig.stash[KUBE] = kube
    system = StreamSystem(kube, kubechart.CLUSTER)
    if keep and kubechart.is_installed(kube):
        system.until_ready()
        kube.apply(programs_manifest())
        yield Installed(system, None)
        return
    remove_namespace(kube)
    kube("create", "namespace", NAMESPACE)
    kube("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(programs_manifest())
    began_s = time.time()
    kubechart.install(kube)
    first_s = _first_write(system, images)
    system.until_ready()
    yield Installed(system, first_s - began_s)
    if not keep:
        kubechart.uninstall(kube)
        remove_namespace(kube)


def remove_namespace(kube: Kubectl) -> None:
    """Delete a namespace with all that is in it; nothing in it may hold that up."""
    kube("delete", "namespace", kube.namespace, "--ignore-not-found", "--timeout=180s", deadline_s=200)


def _first_write(system: StreamSystem, images: Images) -> float:
    """When the first event was acknowledged, by the clock of its writer."""
    with stream(system, "first", "install", 2) as name:
        load = Load(system.kube, images, system.controller_uri, name, keys=2)
        load.start()
        progress = load.writer.until("acknowledged", 1, FIRST_WRITE_DEADLINE_S)
        load.finish()
    return float(progress["first"])


@pytest.fixture(scope="session")
def system(installed: Installed) -> StreamSystem:
    """The installed system."""
    return installed.system


@pytest.fixture
def healthy(system: StreamSystem) -> Iterator[StreamSystem]:
    """The installed system, whole before the test and after it; pods of an earlier load are gone."""
    _remove_loads(system.kube)
    system.until_ready()
    yield system
    system.until_ready()


@pytest.fixture
def programs(healthy: StreamSystem, images: Images) -> Programs:
    """Programs beside the system."""
    return Programs(healthy.kube, images, healthy.controller_uri)


@pytest.fixture
def kube(healthy: StreamSystem) -> Iterator[Kubectl]:
    """kubectl; streams that a test leaves are deleted."""
    yield healthy.kube
    names = [item["metadata"]["name"] for item in healthy.kube.list("streams")]
    if names:
        healthy.kube.delete("stream", *names, deadline_s=GONE_DEADLINE_S)


def _remove_load_pods(kube: Kubectl) -> None:
    left = [pod["metadata"]["name"] for pod in kube.list("pods", "app.kubernetes.io/name=load")]
    if left:
        kube.kill_pod(*left)
        for name in left:
            kube("wait", "--for=delete", f"pod/{name}", "--timeout=60s", deadline_s=70)


def _remove_loads(kube: Kubectl) -> None:
    _remove_load_pods(kube)
    streams = [item["metadata"]["name"] for item in kube.list("streams")]
    if streams:
        try:
            kube.delete("stream", *streams, deadline_s=120)
        except KubeError as error:
            raise AssertionError(f"streams of an earlier test cannot be deleted: {error}") from error
