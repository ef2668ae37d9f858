"""The cluster that other tests run on: that it is a real one, and that nothing of it stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from localcluster import lifecycle, system
from localcluster.access import LocalCluster
from localcluster.errors import ClusterError
from localcluster.layout import REPOSITORY, Instance

HERE = Path(__file__).resolve().parent
NAME, PORT = "selftest", 16443
IMAGE = "localhost/probe:1"
WAIT = "--timeout=60s"
RETURN_LIMIT_S = 60.0
HOST_PYTHON = {
    "volumeMounts": [
        {"name": "usr", "mountPath": "/usr", "readOnly": True},
        {"name": "lib", "mountPath": "/lib", "readOnly": True},
        {"name": "lib64", "mountPath": "/lib64", "readOnly": True},
    ],
    "volumes": [
        {"name": "usr", "hostPath": {"path": "/usr"}},
        {"name": "lib", "hostPath": {"path": "/lib"}},
        {"name": "lib64", "hostPath": {"path": "/lib64"}},
    ],
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsGroup": 65532,  # else it is 0: Kubernetes takes the user from the image, but not the group
    "seccompProfile": {"type": "RuntimeDefault"},
}
FETCH = """
import socket, time, urllib.request

def soon(ask, *words):  # name servers and proxies hear of a new Service a moment after it was made
    ends_at_s = time.monotonic() + 20
    while True:
        try:
            return ask(*words)
        except OSError:
            if time.monotonic() > ends_at_s:
                raise
            time.sleep(0.1)

print(soon(socket.gethostbyname, "web.default.svc"))
print(soon(lambda: urllib.request.urlopen("http://web.default.svc/", timeout=20)).status)
try: socket.gethostbyname("www.example.com")
except socket.gaierror: print("unknown")
"""

pytestmark = pytest.mark.timeout(300)


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """The cluster's command line."""
    whole = [sys.executable, str(HERE), "--name", NAME, "--port", str(PORT), *map(str, words)]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=240)


class Footprint:
    """What a cluster could leave on a host."""

    def __init__(self) -> None:
        self.mounts = sorted(
            line.split(maxsplit=3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        )
        links = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True, timeout=10).stdout
        self.interfaces = sorted(link["ifname"] for link in json.loads(links))
        self.settings = {
            setting: Path("/proc/sys", setting).read_text()
            for setting in system.KERNEL_SETTINGS
            if Path("/proc/sys", setting).exists()
        }
        self.cgroups = sorted(str(path) for path in Path("/sys/fs/cgroup").glob(f"**/*{NAME}*"))
        self.named_networks = sorted(path.name for path in Path("/run/netns").glob("*"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Footprint) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return str(vars(self))

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(scope="module")
def before() -> Footprint:
    """The host without this cluster."""
    return Footprint()


@pytest.fixture(scope="module")
def instance(before: Footprint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A cluster of these tests alone, with state of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        made = Instance(NAME, PORT)
        yield made
        lifecycle.down(made)


@pytest.fixture(scope="module")
def cluster(instance: Instance) -> LocalCluster:
    """It is up: within `lifecycle.START_LIMIT_S`, and `up` prints after how long."""
    lifecycle.binaries()
    return lifecycle.up(instance)


def pod(name: str, container: dict[str, Any], **spec: Any) -> str:
    """A pod that runs once, as JSON."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": name, "imagePullPolicy": "Never", **container}],
                **spec,
            },
        }
    )


def python_pod(name: str, program: list[str], **container: Any) -> str:
    """A pod whose files are the host's: it has a Python without an image that brings one."""
    image = {"image": "localhost/pause:e2e", "command": ["/usr/bin/python3", *program]}
    volumes = {"volumes": HOST_PYTHON["volumes"]}
    return pod(name, {**image, "volumeMounts": HOST_PYTHON["volumeMounts"], **container}, **volumes)


def until(condition: Callable[[], bool], limit_s: float = RETURN_LIMIT_S) -> float:
    """Seconds until the condition holds; fails after the limit."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s
        time.sleep(0.1)
    return time.monotonic() - started


def printed(cluster: LocalCluster, name: str, namespace: str = "default") -> str:
    """What a pod that runs once has printed; fails with that, too, when the pod failed."""
    get = ("get", "pod", name, f"--namespace={namespace}")
    until(lambda: cluster.kubectl(*get, "--output=jsonpath={.status.phase}") in ("Succeeded", "Failed"))
    words = cluster.kubectl("logs", name, f"--namespace={namespace}")
    assert cluster.kubectl(*get, "--output=jsonpath={.status.phase}") == "Succeeded", words
    return words


def answers(cluster: LocalCluster) -> bool:
    """Whether the API server is ready."""
    try:
        return cluster.kubectl("get", "--raw=/readyz", "--request-timeout=2s", limit_s=20) == "ok"
    except ClusterError:
        return False


@pytest.fixture(scope="module")
def restricted(cluster: LocalCluster) -> str:
    """A namespace that takes only pods of the restricted standard."""
    cluster.kubectl("create", "namespace", "restricted")
    cluster.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    until(lambda: cluster.exists("serviceaccount/default", "--namespace=restricted"))
    return "restricted"


@pytest.fixture(scope="module")
def image(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image made here, known to the cluster alone."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "root").mkdir()
    compiler = [
        "gcc",
        "-static",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(folder / "root" / "probe"),
        str(HERE / "probe.c"),
    ]
    subprocess.run(compiler, check=True, timeout=60)
    (folder / "config.json").write_text(json.dumps({"Entrypoint": ["/probe"], "User": "65532:65532"}))
    pack = [str(REPOSITORY / "scripts" / "pack_image.py"), "--name", IMAGE, "--config", str(folder / "config.json")]
    archive = folder / "probe.tar"
    subprocess.run([sys.executable, *pack, "--out", str(archive), str(folder / "root")], check=True, timeout=60)
    cluster.load_image(archive)
    return IMAGE


def test_a_cluster_that_is_up_is_kept(cluster: LocalCluster) -> None:
    node = cluster.node
    again = command("up")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == str(cluster.kubeconfig)
    assert cluster.node == node is not None


def test_every_component_runs_and_none_was_started_again(cluster: LocalCluster) -> None:
    status = cluster.status()
    assert status["stage"] == "running"
    assert {name for name, component in status["components"].items() if component["restarts"]} == set()
    assert {name for name, component in status["components"].items() if component["pid"]} == {
        *("containerd", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet")
    }
    cluster.kubectl("wait", "--for=condition=Ready", "node/node1", WAIT)


def test_pods_get_the_processor_before_other_processes(cluster: LocalCluster, instance: Instance) -> None:
    folders = [path.parent for path in Path("/sys/fs/cgroup").glob(f"**/{instance.cgroup}/cpu.*") if path.is_file()]
    assert folders, "the cgroup has no settings of the processor"
    found = [int((folder / "cpu.shares").read_text()) // 1024 for folder in folders if (folder / "cpu.shares").exists()]
    found += [int((folder / "cpu.weight").read_text()) // 100 for folder in folders if (folder / "cpu.weight").exists()]
    assert set(found) == {system.POD_PROCESSOR_SHARE}


def _program(pid: int) -> str:
    """The name of its program; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_pods_leave_processor_time_to_the_node(cluster: LocalCluster, instance: Instance) -> None:
    """An API server that waits for pods that compute answers none of them, and leases lapse."""
    cluster.kubectl("wait", "--for=condition=Ready", "node/node1", WAIT)
    found = {_program(pid) for pid in system.node_processes(instance.cgroup)}
    assert found >= {"containerd", "etcd", "kube-apiserver", "kubelet"}


def test_a_service_is_resolved_and_reached_from_a_pod_and_from_the_host(cluster: LocalCluster) -> None:
    listens = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    server = python_pod("web", ["-m", "http.server", "8000", "--directory", "/usr"], readinessProbe=listens)
    cluster.kubectl("apply", "-f-", stdin=server)
    cluster.kubectl("expose", "pod", "web", "--port=80", "--target-port=8000")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/web", WAIT)
    cluster.kubectl("apply", "-f-", stdin=python_pod("client", ["-c", FETCH]))
    address = cluster.kubectl("get", "service", "web", "--output=jsonpath={.spec.clusterIP}")
    expected = [address, "200", "unknown"]
    assert printed(cluster, "client").split() == expected
    on_host = subprocess.run(
        cluster.inside(["/usr/bin/python3", "-c", FETCH]), capture_output=True, text=True, check=True, timeout=60
    )
    assert on_host.stdout.split() == expected


def test_nothing_gets_out(cluster: LocalCluster) -> None:
    shown = subprocess.run(
        cluster.inside(["ip", "-json", "link"], network_only=True), capture_output=True, check=True, timeout=10
    )
    names = {link["ifname"] for link in json.loads(shown.stdout)}
    assert not names & {"eth0"}
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    tried = subprocess.run(
        cluster.inside(["/usr/bin/python3", "-c", connect]), capture_output=True, text=True, check=False, timeout=30
    )
    assert tried.returncode == 1
    assert tried.stderr.splitlines()[-1].startswith(("OSError", "TimeoutError"))


def test_an_image_that_is_in_no_registry_runs_restricted(cluster: LocalCluster, image: str, restricted: str) -> None:
    assert image in cluster.images()
    whoami = {"image": image, "args": ["whoami"], "securityContext": RESTRICTED}
    cluster.kubectl("apply", "-n", restricted, "-f-", stdin=pod("whoami", whoami))
    assert printed(cluster, "whoami", restricted).strip() == "65532:65532"


def test_a_pod_that_is_not_restricted_is_refused(cluster: LocalCluster, image: str, restricted: str) -> None:
    as_root = {"image": image, "args": ["whoami"], "securityContext": {"runAsUser": 0}}
    with pytest.raises(ClusterError, match='violates PodSecurity "restricted'):
        cluster.kubectl("apply", "-n", restricted, "-f-", stdin=pod("root", as_root))


def test_a_memory_limit_is_enforced(cluster: LocalCluster, image: str) -> None:
    limits = {"limits": {"memory": "32Mi", "cpu": "500m"}}
    cluster.kubectl("apply", "-f-", stdin=pod("eater", {"image": image, "args": ["eat"], "resources": limits}))
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/eater", WAIT)
    found = cluster.kubectl("get", "pod", "eater", "--output=jsonpath={.status.containerStatuses[0].state.terminated}")
    terminated = json.loads(found)
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


def test_an_api_server_that_hangs_returns_on_command(cluster: LocalCluster) -> None:
    cluster.pause_api(120, "hang")
    assert not answers(cluster)
    assert cluster.status()["components"]["kube-apiserver"]["held"] == "hang"
    cluster.resume_api()
    until(lambda: answers(cluster))
    cluster.kubectl("wait", "--for=condition=Ready", "node/node1", "pod/web", WAIT)


def test_an_api_server_that_refuses_returns_by_itself(cluster: LocalCluster) -> None:
    connect = f"import socket; socket.create_connection(('10.250.0.1', {PORT}), timeout=5)"
    cluster.pause_api(5, "refuse")

    def refused() -> bool:
        inside = cluster.inside(["/usr/bin/python3", "-c", connect], network_only=True)
        tried = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=30)
        return "ConnectionRefusedError" in tried.stderr

    until(refused, 4)
    until(lambda: answers(cluster))
    assert cluster.status()["components"]["kube-apiserver"]["held"] is None
    restarts = cluster.kubectl("get", "pod", "web", "--output=jsonpath={.status.containerStatuses[0].restartCount}")
    assert restarts == "0"


def test_a_component_that_dies_is_started_again(cluster: LocalCluster) -> None:
    pid = cluster.status()["components"]["kube-scheduler"]["pid"]
    subprocess.run(cluster.inside_processes(["kill", "-KILL", str(pid)]), check=True, timeout=10)
    until(lambda: cluster.status()["components"]["kube-scheduler"]["pid"] not in (pid, None))
    assert cluster.status()["components"]["kube-scheduler"]["restarts"] == 1


def test_errors_are_one_line(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "no-image.tar").write_bytes(b"no image")
    for words in (
        ("load-image", tmp_path / "nothing.tar"),
        ("load-image", tmp_path / "no-image.tar"),
        ("logs", "no-such-component"),
        ("--name", "no/name", "status"),
        ("--name", "no-such-cluster", "status"),
        ("--port", "80", "up"),
        ("--name", "second", "up"),  # its port is this cluster's
    ):
        done = command(*words)
        assert done.returncode == 1, words
        lines = [line for line in done.stderr.splitlines() if line != "cluster: starting"]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("cluster: ")
    assert command("--name", "second", "down").returncode == 0


def test_a_node_that_died_is_replaced(cluster: LocalCluster) -> None:
    node = cluster.node
    assert node is not None
    psutil.Process(node.pid).kill()
    until(lambda: cluster.node is None)
    assert command("status").returncode == 1
    again = command("up")
    assert again.returncode == 0, again.stderr
    assert not cluster.exists("pod/web")  # nothing was kept
    assert answers(cluster)


WITHOUT_FIRST_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


def test_a_process_lives_as_long_as_any_of_its_threads() -> None:
    """The last thread of a node ends all other processes, after the first one may have ended."""
    with subprocess.Popen([sys.executable, "-c", WITHOUT_FIRST_THREAD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        until(lambda: psutil.Process(process.pid).status() == "zombie")
        identity = system.ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.alive
        process.kill()
        until(lambda: not identity.alive)


def test_down_leaves_nothing(cluster: LocalCluster, instance: Instance, before: Footprint) -> None:
    node = cluster.node
    assert node is not None
    processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
    assert len(processes) > 10
    assert Footprint() != before
    assert command("down").returncode == 0
    assert [process for process in processes if process.is_running() and process.status() != "zombie"] == []
    assert Footprint() == before
    assert list(instance.state_root.iterdir()) == []
    assert command("down").returncode == 0
    assert command("status").stderr == "cluster: no cluster is up; start it by: make e2e-up\n"
