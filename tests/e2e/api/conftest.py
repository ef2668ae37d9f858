"""A real API server with the resources' definitions, for tests that need nothing else: no image, no installation.

E2E_KUBECONFIG names a cluster that runs; without it the local one of tests/e2e/cluster is used, and started when it is
down. What runs on the cluster besides is left alone: each test has a namespace of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import kubecluster
from harness.kubectl import Kubectl
from tailrace_operator.schema.definitions import DEFINITIONS

REPOSITORY = Path(__file__).resolve().parents[3]
TEST_DEADLINE_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test may have to start the cluster."""
    for item in items:
        if item.get_closest_marker("timeout") is None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))


@pytest.fixture(scope="session")
def definitions() -> Kubectl:
    """A cluster that runs, with the resources' definitions as they are here."""
    kube = kubecluster.running()
    kube("apply", "--server-side", "--force-conflicts", "--filename", str(REPOSITORY / "crds"))
    names = [f"crd/{definition.name}" for definition in DEFINITIONS]
    kube("wait", "--for=condition=Established", "--timeout=30s", *names)
    return kube
