"""The cluster that tests run on: the one that E2E_KUBECONFIG names, else the local one, started when it is down."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.kubectl import Kubectl

REPOSITORY = Path(__file__).resolve().parents[3]
LOCAL = REPOSITORY / "tests/e2e/cluster"
LOADED = REPOSITORY / "build/e2e/loaded.json"
STORAGE_CLASS = "e2e-local"
IMAGES = ("tailrace", "tailrace-test", "tailrace-test-java", "minio")
"""What every test on a cluster needs. The image for pipelines has 1.2 GB, and is made for their tests."""
VOLUME_FOLDER = "/run/node/volumes"
UP_LIMIT_S = 1800.0
IMAGES_LIMIT_S = 1800.0
COMMAND_LIMIT_S = 120.0


class ClusterError(Exception):
    """There is no cluster to test on, or it cannot be used; the message says why."""


@dataclass(frozen=True)
class Image:
    """An image that was made: name with tag, archive, digest."""

    tag: str
    archive: Path
    digest: str

    @property
    def name(self) -> str:
        """Without registry and tag."""
        return self.tag.rpartition("/")[2].partition(":")[0]


def is_local() -> bool:
    """Whether the tests run on the cluster of tests/e2e/cluster."""
    return not os.environ.get("E2E_KUBECONFIG")


def keeps() -> bool:
    """Whether images and an installation that are there are taken as they are (TAILRACE_E2E_KEEP=1)."""
    return os.environ.get("TAILRACE_E2E_KEEP") == "1"


def running() -> Kubectl:
    """A cluster that is up. Raises ClusterError."""
    if not is_local():
        kubeconfig = Path(os.environ["E2E_KUBECONFIG"])
        if not kubeconfig.is_file():
            raise ClusterError(f"E2E_KUBECONFIG is {kubeconfig}, which is no file")
        return Kubectl(kubeconfig, "default")
    kubeconfig = Path(_local("up", limit_s=UP_LIMIT_S).strip().splitlines()[-1])
    return Kubectl(kubeconfig, "default", kubeconfig.parents[1] / "programs")


def ready() -> Kubectl:
    """A cluster that is up, with our images. Raises ClusterError."""
    kube = running()
    load(kube, *IMAGES)
    return kube


def load(kube: Kubectl, *names: str) -> None:
    """Give the local cluster these images, as the repository makes them now. Raises ClusterError."""
    if is_local():
        _load_images(kube.kubeconfig, names)


def images(*names: str) -> dict[str, Image]:
    """Images by name, made of what the repository holds now. Raises ClusterError."""
    script = REPOSITORY / "scripts/make_images.py"
    made = {}
    for line in _run([sys.executable, str(script), *names], IMAGES_LIMIT_S).splitlines():
        tag, archive, *_, digest = line.split()
        image = Image(tag, REPOSITORY / archive, digest)
        made[image.name] = image
    return made


def _load_images(kubeconfig: Path, names: Sequence[str]) -> None:
    """Give the local cluster the images that it does not have in this form."""
    identity = str(kubeconfig.stat().st_mtime_ns)  # a cluster that was started again has none of them
    known = json.loads(LOADED.read_text()) if LOADED.exists() else {}
    loaded = known.get("images", {}) if known.get("cluster") == identity else {}
    if keeps() and all(any(f"/{name}:" in tag for tag in loaded) for name in names):
        return
    for image in images(*names).values():
        if loaded.get(image.tag) == image.digest:
            continue
        _local("load-image", str(image.archive), limit_s=IMAGES_LIMIT_S)
        loaded[image.tag] = image.digest
        LOADED.parent.mkdir(parents=True, exist_ok=True)
        LOADED.write_text(json.dumps({"cluster": identity, "images": loaded}))


def make_volume(kube: Kubectl) -> None:
    """A volume for one claim, in a folder of the local node; volumes of claims that are gone go."""
    for volume in kube.list("persistentvolumes"):
        if volume["status"].get("phase") == "Released":
            kube.delete("persistentvolume", volume["metadata"]["name"])
            _local("shell", "rm", "-rf", volume["spec"]["local"]["path"])
    folder = f"{VOLUME_FOLDER}/{uuid.uuid4().hex[:8]}"
    _local("shell", "mkdir", "-p", folder)
    node = kube.list("nodes")[0]["metadata"]["name"]
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": folder.rpartition("/")[2], "labels": {"app.kubernetes.io/part-of": "tailrace-e2e"}},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        # The scheduler binds the claim itself. It may not look again for five minutes at a pod that it has refused
        # because the claim was not bound yet.
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    kube.apply(storage_class, volume)


def free_bytes() -> int | None:
    """What the disk of the local node has left for volumes; None: the cluster is elsewhere. Raises ClusterError."""
    if not is_local():
        return None
    return int(_local("shell", "df", "--output=avail", "--block-size=1", VOLUME_FOLDER).split()[-1])


def stop_api_server(seconds: float, how: str) -> None:
    """Take the API server away for so long: connections to it hang, or they are refused. Raises ClusterError."""
    if not is_local():
        raise ClusterError("only the local cluster's API server can be taken away; unset E2E_KUBECONFIG for this test")
    _local("pause-api", str(seconds), "--how", how)


# Run inside the node: a signal for every process below the one whose command line names this pod.
SIGNAL_POD = """
import os, pathlib, signal, sys
number, namespace, pod = getattr(signal, sys.argv[1]), *sys.argv[2:]
parents, roots = {}, []
for path in pathlib.Path('/proc').glob('[0-9]*'):
    try:
        parents[int(path.name)] = int((path / 'stat').read_text().rpartition(')')[2].split()[1])
        words = (path / 'cmdline').read_text(errors='replace').split(chr(0))
    except (OSError, ValueError):
        continue
    named = zip(words, words[1:])
    if {('--namespace', namespace), ('--pod', pod)} <= set(named):
        roots.append(int(path.name))
assert roots or number == signal.SIGCONT, f'no process of pod {pod}'
chosen = set(roots)
while more := {pid for pid, parent in parents.items() if parent in chosen} - chosen:
    chosen |= more
for pid in sorted(chosen):
    os.kill(pid, number)
print(len(chosen))
"""


def freeze_pod(namespace: str, pod: str) -> None:
    """SIGSTOP to every process of a pod of segment stores, from outside of it. Raises ClusterError."""
    _signal_pod("SIGSTOP", namespace, pod)


def thaw_pod(namespace: str, pod: str) -> None:
    """SIGCONT to those of them that are still there. Raises ClusterError."""
    _signal_pod("SIGCONT", namespace, pod)


@contextmanager
def no_packets(kube: Kubectl, some: Sequence[str], others: Sequence[str]) -> Iterator[None]:
    """Drop all packets between two sets of pods while the block runs, without an answer. Raises ClusterError."""
    if not is_local():
        raise ClusterError("only the local cluster's network can be cut; unset E2E_KUBECONFIG for this test")
    addresses = {name: str(kube.get("pod", name)["status"]["podIP"]) for name in (*some, *others)}
    with ExitStack() as rules:
        for ends in itertools.product(some, others):
            for source, target in (ends, ends[::-1]):
                rule = ("--source", addresses[source], "--destination", addresses[target], "--jump", "DROP")
                _local("shell", "iptables", "--wait", "10", "--insert", "FORWARD", *rule)
                rules.callback(_local, "shell", "iptables", "--wait", "10", "--delete", "FORWARD", *rule)
        yield


def _signal_pod(signal_name: str, namespace: str, pod: str) -> None:
    if not is_local():
        raise ClusterError("only the local cluster's processes can be reached; unset E2E_KUBECONFIG for this test")
    _local("shell", "python3", "-c", SIGNAL_POD, signal_name, namespace, pod)


def _local(*words: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    return _run([sys.executable, str(LOCAL), *words], limit_s)


def _run(command: list[str], limit_s: float) -> str:
    shown = " ".join(command[1:3])
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise ClusterError(f"{shown} did not end within {limit_s:.0f} s") from late
    if done.returncode != 0:
        raise ClusterError(f"{shown} failed; its lines on standard error say why")
    return done.stdout
