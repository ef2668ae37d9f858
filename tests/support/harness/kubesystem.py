"""An installed Tailrace on a cluster: its parts, its workers, and every way to break one of them."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.kubectl import POLL_INTERVAL_S, Kubectl, KubeError, Manifest, condition_of, until
from tailrace.cluster.segment_mapping import container_of

API_VERSION = "tailrace.io/v1alpha1"
READY_DEADLINE_S = 180.0
GONE_DEADLINE_S = 120.0
PLACED_DEADLINE_S = 120.0
FORCED_END_S = 4.0

ASK_WORKERS = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:6061/v1/workers', timeout=10).read().decode())"
)


@dataclass(frozen=True)
class Worker:
    """A worker process of a pod."""

    pod: str
    number: int

    @property
    def name(self) -> str:
        """As in the container map."""
        return f"{self.pod}-{self.number}"


@dataclass(frozen=True)
class StreamSystem:
    """A StreamCluster in a namespace, and the operator beside it."""

    kube: Kubectl
    cluster: str

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def controller_uri(self) -> str:
        """What clients in pods connect to."""
        return f"tcp://{self.cluster}-controller.{self.kube.namespace}.svc:9090"

    def resource(self) -> Manifest:
        """The StreamCluster."""
        return self.kube.get("streamcluster", self.cluster)

    def pods(self, component: str) -> list[str]:
        """Names of the pods of a component that are not on their way out, in order."""
        return sorted(pod["metadata"]["name"] for pod in self.pod_manifests(component))

    def pod_manifests(self, component: str) -> list[Manifest]:
        """The pods of a component that are not on their way out."""
        chosen = f"app.kubernetes.io/name=tailrace,app.kubernetes.io/component={component}"
        if component != "operator":
            chosen += f",app.kubernetes.io/instance={self.cluster}"
        found = self.kube.list("pods", chosen)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def leading_operator(self) -> str:
        """The operator's active pod."""
        holder = str(self.kube.get("lease", "tailrace-operator")["spec"]["holderIdentity"])
        pods = self.pods("operator")
        named = [pod for pod in pods if pod in holder]
        assert named, f"the Lease is held by {holder!r}, and the operator's pods are {pods}"
        return named[0]

    def owners(self) -> dict[int, str]:
        """The container map: which worker is to have which container."""
        listed = self.resource().get("status", {}).get("containers") or []
        return {item["id"]: item["worker"] for item in listed}

    def epochs(self) -> dict[int, tuple[str, int]]:
        """Who took each container last, and with which epoch, by the Leases."""
        leases = self.kube.list("leases", f"tailrace.io/cluster={self.cluster},tailrace.io/role=container")
        found = {}
        for lease in leases:
            notes = lease["metadata"]["annotations"]
            holder = lease["spec"].get("holderIdentity", "")
            found[int(notes["tailrace.io/container"])] = (holder, int(notes["tailrace.io/epoch"]))
        return found

    def busiest_worker(self, *streams: str, segments: int) -> Worker:
        """The worker that has most of these streams' first segments; so its loss is felt."""
        count = int(self.resource()["spec"].get("containers", 16))
        owners = self.owners()
        names = [f"{stream}/{number}.#epoch.0" for stream in streams for number in range(segments)]
        tally = Counter(owners[container_of(name, count)] for name in names)
        pod, _, number = tally.most_common(1)[0][0].rpartition("-")
        return Worker(pod, int(number))

    # -- waiting -------------------------------------------------------------------------------------------------

    def until_ready(self, deadline_s: float = READY_DEADLINE_S, *, interval_s: float = POLL_INTERVAL_S) -> None:
        """All is as it should be, and every container is where the map says."""
        self.kube.until_condition("streamcluster", self.cluster, "Ready", "True", deadline_s, interval_s=interval_s)
        settled = f"all containers of {self.cluster} are placed and taken"
        until(settled, self._is_settled, PLACED_DEADLINE_S, interval_s=interval_s)

    def _is_settled(self) -> bool:
        resource = self.resource()
        owners = self.owners()
        if len(owners) != int(resource["spec"].get("containers", 16)):
            return False
        if condition_of(resource, "Ready").get("status") != "True":
            return False
        handed_over = [item for item in resource["status"]["containers"] if item.get("handedOverBy")]
        shares = Counter(owners.values())
        sizes = [shares[worker["name"]] for worker in resource["status"]["workers"]]
        if not sizes or max(sizes) - min(sizes) > 1:
            return False  # they are evened out some time after the last change, and would move during a test
        return not handed_over and {key: holder for key, (holder, _) in self.epochs().items()} == owners

    # -- breaking ------------------------------------------------------------------------------------------------

    def kill_pods(self, *names: str) -> None:
        """Delete pods by force, at the same time; they are replaced. SIGTERM comes at once, SIGKILL 2 s later."""
        self.kube.kill_pod(*names)

    def without_controllers(self) -> contextlib.AbstractContextManager[None]:
        """No controller runs while the block does: none can be placed."""
        return _without_pods(self, "controller")

    def signal_worker(self, worker: Worker, signal_name: str) -> int:
        """Send a signal to a worker process; returns its process id."""
        pid = next(int(item["pid"]) for item in self.workers(worker.pod) if item["worker"] == worker.number)
        self.signal_process(worker.pod, pid, signal_name)
        return pid

    def signal_process(self, pod: str, pid: int, signal_name: str) -> None:
        """Send a signal to a process of a pod."""
        self.kube.python(pod, f"import os, signal; os.kill({pid}, signal.{signal_name})")

    def wake(self, pod: str, pid: int) -> None:
        """SIGCONT to a stopped process of a pod, unless it is gone by now, with its pod perhaps."""
        with contextlib.suppress(KubeError):
            self.signal_process(pod, pid, "SIGCONT")

    def delete_pod(self, name: str) -> None:
        """Ask a pod to leave in peace; returns when it is gone."""
        self.kube("delete", "pod", name, f"--timeout={GONE_DEADLINE_S:.0f}s", deadline_s=GONE_DEADLINE_S + 10)

    def wipe_status(self) -> None:
        """Take everything out of the StreamCluster's status: map, workers, conditions."""
        self.kube(
            "patch",
            "streamcluster",
            self.cluster,
            "--subresource=status",
            "--type=json",
            "--patch",
            '[{"op": "remove", "path": "/status"}]',
        )

    def workers(self, pod: str) -> list[dict[str, Any]]:
        """What the main process of a segment store pod knows of each of its workers. Raises KubeError."""
        found: list[dict[str, Any]] = json.loads(self.kube.python(pod, ASK_WORKERS))
        return found

    def restarts(self) -> dict[str, int]:
        """How often each pod's containers were started again; without pods that are on their way out."""
        found = {}
        for pod in self.kube.list("pods", "app.kubernetes.io/name=tailrace"):
            if "deletionTimestamp" in pod["metadata"]:
                continue
            for status in pod["status"].get("containerStatuses", []):
                found[f"{pod['metadata']['name']}/{status['name']}"] = int(status["restartCount"])
        return found


def stream_manifest(name: str, cluster: str, scope: str, **spec: Any) -> Manifest:
    """A Stream."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Stream",
        "metadata": {"name": name},
        "spec": {"cluster": cluster, "scope": scope, **spec},
    }


def fixed(segments: int) -> Manifest:
    """``spec.scaling`` of a Stream with so many segments."""
    return {"type": "Fixed", "minSegments": segments}


def reasons(kube: Kubectl, name: str) -> list[str]:
    """Of the Events about an object, older ones first."""
    return [str(event["reason"]) for event in kube.events(name)]


def until_segments(kube: Kubectl, name: str, count: int, deadline_s: float = READY_DEADLINE_S) -> None:
    """Wait until a Stream has so many segments, and is Ready."""
    until(
        f"{name} has {count} segments",
        lambda: (kube.get("stream", name).get("status") or {}).get("segments") == count,
        deadline_s,
    )
    kube.until_condition("stream", name, "Ready", "True", deadline_s)


def group_manifest(name: str, cluster: str, scope: str, streams: list[str], **spec: Any) -> Manifest:
    """A ReaderGroup."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ReaderGroup",
        "metadata": {"name": name},
        "spec": {"cluster": cluster, "scope": scope, "streams": streams, **spec},
    }


@contextlib.contextmanager
def stream(system: StreamSystem, name: str, scope: str, segments: int) -> Iterator[str]:
    """A stream of so many segments while the block runs; deleted with its data when the block ends well."""
    manifest = stream_manifest(name, system.cluster, scope, scaling=fixed(segments), deletionPolicy="Delete")
    system.kube.apply(manifest)
    system.kube.until_condition("stream", name, "Ready", "True", READY_DEADLINE_S)
    yield f"{scope}/{name}"
    system.kube.delete("stream", name, deadline_s=GONE_DEADLINE_S)


@contextlib.contextmanager
def _without_pods(system: StreamSystem, component: str) -> Iterator[None]:
    with cordoned(system.kube):
        system.kill_pods(*system.pods(component))
        time.sleep(FORCED_END_S)  # the API server forgets such pods before their processes end, without a notice
        yield


@contextlib.contextmanager
def cordoned(kube: Kubectl) -> Iterator[None]:
    """No pod is placed on any node while the block runs; those that run go on."""
    nodes = [node["metadata"]["name"] for node in kube.list("nodes")]
    kube("cordon", *nodes)
    try:
        yield
    finally:
        kube("uncordon", *nodes)


def gather(kube: Kubectl, folder: Path) -> None:
    """Save everything that shows what happened in a namespace: objects, events, logs, also of containers that ended."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = "all,streamclusters,streams,readergroups,pipelines,leases,endpointslices,configmaps,pvc,networkpolicies"
    commands = {
        "objects.yaml": ("get", kinds, "--output", "yaml"),
        "wide.txt": ("get", "pods,streamclusters,streams,readergroups,pipelines,leases", "--output", "wide"),
        "describe.txt": ("describe", "pods,streamclusters,pipelines,statefulsets,deployments"),
        "events.txt": ("get", "events", "--sort-by", ".lastTimestamp"),
    }
    for name, words in commands.items():
        _keep(kube, folder / name, *words)
    try:
        pods = kube.list("pods")
    except KubeError as error:
        (folder / "pods-error.txt").write_text(str(error))
        return
    for pod in pods:
        name = pod["metadata"]["name"]
        _keep(kube, folder / f"{name}.log", "logs", "--all-containers", "--timestamps", name)
        if any(status.get("restartCount") for status in pod["status"].get("containerStatuses", [])):
            _keep(kube, folder / f"{name}.previous.log", "logs", "--all-containers", "--previous", name)


def _keep(kube: Kubectl, file: Path, *words: str) -> None:
    try:
        file.write_text(kube(*words, deadline_s=60))
    except KubeError as error:
        file.write_text(str(error))
