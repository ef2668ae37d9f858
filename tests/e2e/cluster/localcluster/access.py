"""What tests and people do with a cluster that is up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from localcluster import layout, node
from localcluster.errors import ClusterError
from localcluster.layout import Instance
from localcluster.system import ProcessIdentity

KUBECTL_LIMIT_S = 60.0
LOAD_LIMIT_S = 600.0
API = "kube-apiserver"


@dataclass
class Cluster:
    """What a kubeconfig leads to, with the programs that speak to it."""

    kubeconfig: Path
    kubectl_program: str
    helm_program: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which kubectl, helm and clients of the API find this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str | None = None, limit_s: float = KUBECTL_LIMIT_S) -> str:
        """Run kubectl and return what it prints; ClusterError has its last line when it fails."""
        return self._run([self.kubectl_program, *arguments], stdin, limit_s)

    def helm(self, *arguments: str, stdin: str | None = None, limit_s: float = KUBECTL_LIMIT_S) -> str:
        """Run helm and return what it prints."""
        return self._run([self.helm_program, *arguments], stdin, limit_s)

    def exists(self, resource: str, *options: str) -> bool:
        """Whether the API server has this resource, named KIND/NAME."""
        return bool(self.kubectl("get", "--ignore-not-found", "--output=name", *options, resource).strip())

    def _run(self, command: Sequence[str], stdin: str | None, limit_s: float) -> str:
        name = Path(command[0]).name
        try:
            done = subprocess.run(
                command,
                env=self.environment,
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{name} {' '.join(command[1:3])} has not ended within {limit_s:.0f} s") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["no message"]
            raise ClusterError(f"{name} {' '.join(command[1:3])} failed: {lines[-1]}")
        return done.stdout


class LocalCluster(Cluster):
    """The cluster of this machine."""

    def __init__(self, instance: Instance) -> None:
        programs = instance.run / "programs"
        super().__init__(instance.kubeconfig, str(programs / "kubectl"), str(programs / "helm"))
        self.instance = instance

    @property
    def node_name(self) -> str:
        """Name of the only node."""
        return layout.NODE_NAME

    @property
    def programs(self) -> Path | None:
        """The build that it was started from."""
        try:
            return (self.instance.run / "programs").readlink()
        except FileNotFoundError:
            return None

    @property
    def node(self) -> ProcessIdentity | None:
        """The node's first process; None when it does not run."""
        identity = ProcessIdentity.read(self.instance.run / "node.json")
        return identity if identity is not None and identity.alive else None

    def inside(self, command: Sequence[str], *, network_only: bool = False) -> list[str]:
        """The command that runs another one inside the node, from the current folder and with the host's files.

        It reaches pods and Services, and resolves their names, such as POD.NAMESPACE.svc. With ``network_only`` it
        stays in the host's mount namespace: the same addresses, but the host's name servers, /run and /var/lib.
        """
        identity = self._running()
        namespaces = ["--net"] if network_only else ["--net", "--mount", "--uts"]
        return ["nsenter", f"--target={identity.pid}", *namespaces, "--", "env", "-C", os.getcwd(), *command]

    def inside_processes(self, command: Sequence[str]) -> list[str]:
        """The same, and processes are numbered as inside the node."""
        return ["nsenter", f"--target={self._running().pid}", "--net", "--mount", "--uts", "--pid", "--", *command]

    def load_image(self, archive: Path) -> str:
        """Give containerd the images of an archive; return the names that it prints."""
        with archive.open("rb") as file:
            return self._containerd("images", "import", "-", stdin=file)

    def images(self) -> list[str]:
        """Names of the images that pods can use."""
        return sorted(name for name in self._containerd("images", "list", "--quiet").split() if "@" not in name)

    def hold(self, component: str, seconds: float, how: str = "hang") -> None:
        """Take a component away for at most ``seconds``: it hangs (stopped) or refuses (killed, not started again)."""
        node.ask(self.instance, {"do": "hold", "component": component, "how": how, "limit_s": seconds})

    def release(self, component: str) -> None:
        """Give it back early."""
        node.ask(self.instance, {"do": "release", "component": component})

    def pause_api(self, seconds: float, how: str = "hang") -> None:
        """An outage of the API server that ends by itself."""
        self.hold(API, seconds, how)

    def resume_api(self) -> None:
        """End the outage now."""
        self.release(API)

    def status(self) -> dict[str, Any]:
        """Stage of the node, and for each component its process inside the node, restarts and hold."""
        self._running()
        return node.ask(self.instance, {"do": "status"})

    def _running(self) -> ProcessIdentity:
        identity = self.node
        if identity is None:
            raise ClusterError("no cluster is up; start it by: make e2e-up")
        return identity

    def _containerd(self, *arguments: str, stdin: BinaryIO | None = None) -> str:
        client = ["ctr", "--address", layout.CONTAINERD_SOCKET, "--namespace", "k8s.io", *arguments]
        done = subprocess.run(
            self.inside_processes(client),
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LOAD_LIMIT_S,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise ClusterError(f"containerd refused: {lines[-1]}")
        return done.stdout
