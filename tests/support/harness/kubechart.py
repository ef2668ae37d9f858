"""The chart as tests install it: a small cluster over a trial MinIO, with images that were made here."""

from __future__ import annotations

import json
import time
from typing import Any

from harness import kubecluster
from harness.kubectl import Kubectl, KubeError, until
from harness.kubeload import Images

CHART = kubecluster.REPOSITORY / "charts/tailrace"
RELEASE = "tailrace"
CLUSTER = "main"
MINIO = "tailrace-minio"
STORE_MEMORY, STORE_MEMORY_BYTES = "1536Mi", 1536 << 20
FOREIGN_SECRETS = ("half", "wrong", "no-such-secret")
"""Secrets that tests name in StreamClusters of their own; the operator may read those that its release names."""
INSTALL_DEADLINE_S = 300.0
UNINSTALL_DEADLINE_S = 180.0
MINIO_DEADLINE_S = 120.0
TEST_DEADLINE_S = 240.0
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def values(*, store_memory: str = STORE_MEMORY, small: bool = False, adopt: str | None = None) -> dict[str, Any]:
    """Values of the release. ``small``: as few processes as make a system. ``adopt``: the id of the data's cluster."""
    size = {
        "containers": 4 if small else 16,
        "segmentStore": {"replicas": 1 if small else 2, "workers": 1 if small else 2, "memory": store_memory},
        "controller": {"replicas": 1 if small else 2},
    }
    identity = {"adoptClusterId": adopt} if adopt else {}
    made: dict[str, Any] = {
        "cluster": {"enabled": True, "name": CLUSTER, "spec": {**size, **identity, "tier2": {"prefix": "trial"}}},
        "minio": {"enabled": True, "resources": {"limits": {"memory": "2Gi"}}},
        "pipelines": {"enabled": not small},
        "operator": {"replicas": 1 if small else 2, "credentialsSecrets": list(FOREIGN_SECRETS)},
    }
    if kubecluster.is_local():
        made["minio"]["persistence"] = {"storageClass": kubecluster.STORAGE_CLASS}
    return made


def install(kube: Kubectl, *, store_memory: str = STORE_MEMORY, small: bool = False, adopt: str | None = None) -> None:
    """Install the release, or upgrade it; returns when the API server has taken it. Raises KubeError."""
    if kubecluster.is_local() and not is_installed(kube):
        kubecluster.make_volume(kube)
    text = json.dumps(values(store_memory=store_memory, small=small, adopt=adopt))
    kube.helm("upgrade", "--install", RELEASE, str(CHART), "--values", "-", stdin=text, deadline_s=INSTALL_DEADLINE_S)


def uninstall(kube: Kubectl) -> None:
    """Take the release away; its resources stay, and nothing holds them. Raises KubeError."""
    kube.helm("uninstall", RELEASE, "--ignore-not-found", deadline_s=UNINSTALL_DEADLINE_S)


def is_installed(kube: Kubectl) -> bool:
    """Whether there is a release. Raises KubeError."""
    return bool(json.loads(kube.helm("list", "--filter", f"^{RELEASE}$", "--output", "json")))


def test(kube: Kubectl) -> str:
    """``helm test``. Raises KubeError: it failed."""
    return kube.helm("test", RELEASE, "--logs", "--timeout", f"{TEST_DEADLINE_S:.0f}s", deadline_s=TEST_DEADLINE_S + 20)


def test_images() -> Images:
    """The images of programs of tests, with the tag of the product's own."""
    version = _app_version()
    return Images(f"localhost/tailrace-test:{version}", f"localhost/tailrace-test-java:{version}")


def spark_image() -> str:
    """The image of pipelines."""
    return f"localhost/tailrace-spark:{_app_version()}"


def _app_version() -> str:
    lines = (CHART / "Chart.yaml").read_text().splitlines()
    return next(line.split(":", 1)[1].strip().strip('"') for line in lines if line.startswith("appVersion:"))


def bytes_of(quantity: str) -> int:
    """Of a memory limit as Kubernetes writes it."""
    for unit, factor in UNITS.items():
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    return int(quantity)


def stop_minio(kube: Kubectl) -> None:
    """Take the object store away; its data stays. Raises KubeError, NotInTimeError."""
    kube("scale", "statefulset", MINIO, "--replicas=0")
    kube.kill_pod(f"{MINIO}-0")
    until("MinIO is gone", lambda: kube.find("pod", f"{MINIO}-0") is None, MINIO_DEADLINE_S)


def start_minio(kube: Kubectl) -> float:
    """Give it back; return when the last look that found it away began, in seconds of the epoch.

    Raises KubeError, NotInTimeError.
    """
    away_s = time.time()
    kube("scale", "statefulset", MINIO, "--replicas=1")

    def is_ready() -> bool:
        nonlocal away_s
        looked_s = time.time()
        try:
            if int(kube.get("statefulset", MINIO)["status"].get("readyReplicas", 0)) == 1:
                return True
        except KubeError:
            return False
        away_s = looked_s
        return False

    until("MinIO is ready", is_ready, MINIO_DEADLINE_S)
    return away_s
