"""What a pod uses, as its kubelet counts it, and what its control group has counted."""

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


@dataclass(frozen=True)
class MemoryCount:
    """Of a pod's container since its start, by its control group and by its processes."""

    limit_bytes: int
    oom_kills: int
    """How many of its processes the kernel has killed because the limit was reached."""
    resident_peaks_bytes: int
    """The sum of what each process that runs now once had in memory: at least the peak of all of them together.

    It has no bound: pages of files that processes share count several times, and peaks of different times are added.
    """


# Run in a container, with control groups of version 1 or 2.
COUNT_MEMORY = """
import json, os, pathlib
one, two = pathlib.Path('/sys/fs/cgroup/memory'), pathlib.Path('/sys/fs/cgroup')
limit = two / 'memory.max' if (two / 'memory.max').exists() else one / 'memory.limit_in_bytes'
events = two / 'memory.events' if (two / 'memory.events').exists() else one / 'memory.oom_control'
counts = dict(line.split() for line in events.read_text().splitlines())
peaks = 0
for status in pathlib.Path('/proc').glob('[0-9]*/status'):
    if int(status.parent.name) == os.getpid():
        continue
    try:
        lines = status.read_text().splitlines()
    except OSError:
        continue
    peaks += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith('VmHWM:'))
print(json.dumps([int(limit.read_text()), int(counts['oom_kill']), peaks]))
"""


def memory_of(kube: Kubectl, pod: str) -> MemoryCount:
    """Ask a container of ours, which has Python. Raises KubeError."""
    return MemoryCount(*json.loads(kube.python(pod, COUNT_MEMORY)))


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
