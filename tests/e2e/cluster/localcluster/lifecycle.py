"""Starting a cluster and ending it. Both may be called in any state; one of them runs at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import configs, host, node, pki, system
from localcluster.access import LocalCluster
from localcluster.build import binaries
from localcluster.errors import ClusterError
from localcluster.layout import SOURCES, Instance, cache_folder
from localcluster.progress import say

LOCK_LIMIT_S = 300
START_LIMIT_S = 180
END_LIMIT_S = 20
KUBECTL_GRACE_S = 10
POLL_S = 0.2
MANIFESTS = SOURCES / "manifests"


def up(instance: Instance) -> LocalCluster:
    """A cluster whose node, DNS and default ServiceAccount are ready. Keeps one that runs already."""
    host.check()
    programs = binaries()
    started = time.monotonic()
    cluster = LocalCluster(instance)
    with _lock():
        if cluster.node is None or cluster.programs != programs or _has_failed(instance):
            _remove(instance)
            _start(instance, programs)
    try:
        _await_ready(cluster, started)
    except ClusterError as error:
        raise ClusterError(f"{error}; logs are in {instance.logs}") from error
    say(f"ready after {time.monotonic() - started:.0f} s")
    return cluster


def down(instance: Instance) -> None:
    """End the cluster and remove all of it; nothing happens where there is none."""
    if instance.state_root.is_dir():
        with _lock():
            _remove(instance)


@contextmanager
def _lock() -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lifecycle.lock").open("w") as file:

        def taken() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        _wait(taken, LOCK_LIMIT_S, "another command is starting or ending a cluster")
        yield


def _start(instance: Instance, programs: Path) -> None:
    instance.state_root.mkdir(parents=True, exist_ok=True)
    host.check_file_system(instance.state_root)
    say("starting")
    for folder in (instance.run, instance.logs, instance.run / "config", instance.run / "config" / "cni"):
        folder.mkdir(mode=0o700)
    os.symlink(programs, instance.run / "programs")
    pki.make(instance.run / "pki", instance.kubeconfig.parent, instance.port)
    for name, text in configs.files(instance.cgroup).items():
        (instance.run / "config" / name).write_text(text)
    system.save_kernel_settings(_settings_note(instance))
    system.make_cgroup(instance.cgroup)
    with (instance.logs / "node.log").open("w") as log:
        begun = subprocess.run(
            [sys.executable, str(SOURCES), "--name", instance.name, "--port", str(instance.port), "node"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            timeout=START_LIMIT_S,
            check=False,
        )
    if begun.returncode != 0:
        raise ClusterError(f"the node did not start: {_last_line(instance)}")


def _has_failed(instance: Instance) -> bool:
    """Whether a node runs that did not get its components to run."""
    try:
        return bool(node.ask(instance, {"do": "status"})["stage"] == "failed")
    except OSError:
        return False  # it has not come so far yet


def _settings_note(instance: Instance) -> Path:
    """The machine's settings before the first of its clusters; the last one to go restores them."""
    return instance.state_root / "kernel-settings.json"


def _last_line(instance: Instance) -> str:
    lines = (instance.logs / "node.log").read_text().strip().splitlines() or ["no message"]
    return lines[-1].removeprefix("cluster: ")


def _remove(instance: Instance) -> None:
    identity = system.ProcessIdentity.read(instance.run / "node.json")
    if identity is not None and identity.alive:
        os.kill(identity.pid, signal.SIGKILL)  # the kernel ends all the rest of its namespaces
        _wait(lambda: not identity.alive, END_LIMIT_S, f"process {identity.pid}, the node, does not end")
    system.remove_cgroup(instance.cgroup)
    if instance.run.exists():
        shutil.rmtree(instance.run)
    if instance.state_root.exists() and not any(other.is_dir() for other in instance.state_root.iterdir()):
        system.restore_kernel_settings(_settings_note(instance))


def _await_ready(cluster: LocalCluster, started: float) -> None:
    def remaining() -> float:
        return START_LIMIT_S - (time.monotonic() - started)

    def node_running() -> bool:
        if cluster.node is None:
            raise ClusterError(f"the node has ended: {_last_line(cluster.instance)}")
        try:
            answer = node.ask(cluster.instance, {"do": "status"})
        except OSError:
            return False
        if answer["stage"] == "failed":
            raise ClusterError(f"the node failed: {answer['failure']}")
        return bool(answer["stage"] == "running")

    _wait(node_running, remaining(), "the components do not start")
    say(f"API server ready after {time.monotonic() - started:.0f} s")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(MANIFESTS))
    for what, condition in ((f"node/{cluster.node_name}", "Ready"), ("deployment/coredns", "Available")):
        _await_condition(cluster, what, condition, remaining())
        say(f"{what} {condition.lower()} after {time.monotonic() - started:.0f} s")
    _wait(
        lambda: cluster.exists("serviceaccount/default", "--namespace", "default"), remaining(), "no service accounts"
    )


def _await_condition(cluster: LocalCluster, what: str, condition: str, limit_s: float) -> None:
    namespace = ("--namespace", "kube-system")
    _wait(lambda: cluster.exists(what, *namespace), limit_s, f"{what} does not appear")
    limit = max(1, int(limit_s))
    cluster.kubectl(
        "wait", *namespace, f"--for=condition={condition}", f"--timeout={limit}s", what, limit_s=limit + KUBECTL_GRACE_S
    )


def _wait(condition: Callable[[], bool], limit_s: float, complaint: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{complaint} (waited {limit_s:.0f} s)")
        time.sleep(POLL_S)
