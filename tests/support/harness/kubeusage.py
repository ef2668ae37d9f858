"""What a pod uses, as its kubelet counts it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from harness.kubectl import Kubectl


@dataclass(frozen=True)
class Usage:
    """Of all containers of a pod: since its start, and now."""

    at_s: float
    cpu_s: float
    working_set_bytes: int


def usage_of(kube: Kubectl, pod: str) -> Usage:
    """The newest numbers. Raises KubeError, AssertionError: the kubelet has none yet."""
    node = kube.get("pod", pod)["spec"]["nodeName"]
    summary = json.loads(kube("get", "--raw", f"/api/v1/nodes/{node}/proxy/stats/summary"))
    found = [
        item
        for item in summary["pods"]
        if (item["podRef"]["namespace"], item["podRef"]["name"]) == (kube.namespace, pod)
    ]
    assert found, f"the kubelet knows no figures of {pod}"
    containers = found[0]["containers"]
    return Usage(
        datetime.fromisoformat(containers[0]["cpu"]["time"]).timestamp(),
        sum(container["cpu"]["usageCoreNanoSeconds"] for container in containers) / 1e9,
        sum(container["memory"]["workingSetBytes"] for container in containers),
    )
