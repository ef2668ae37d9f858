"""Where everything lies: sources, cache, state of a running cluster, and the addresses inside its network namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

SOURCES = Path(__file__).resolve().parent.parent
REPOSITORY = SOURCES.parents[2]

NODE_NAME = "node1"
NODE_ADDRESS = "10.250.0.1"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
POD_CIDR = "10.244.0.0/16"
NODE_POD_CIDR = "10.244.0.0/24"
MAX_PODS = 200

# The run folder and the binaries inside the node's mount namespace: short, and the same on every machine.
NODE_RUN = "/run/node"
NODE_BIN = "/run/bin"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

DEFAULT_NAME = "default"
DEFAULT_PORT = 6443
SOCKET_PATH_BYTES = 107  # what a Unix socket's address holds


def cache_folder() -> Path:
    """Binaries and images, by the hash of what they are made from."""
    return _base("XDG_CACHE_HOME", ".cache") / "tailrace" / "cluster"


def _base(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / default


@dataclass(frozen=True)
class Instance:
    """One cluster of this machine: its name, its API server's port and its folder of state."""

    name: str = DEFAULT_NAME
    port: int = DEFAULT_PORT

    @classmethod
    def from_environment(cls) -> Instance:
        """As TAILRACE_CLUSTER (a name) and TAILRACE_CLUSTER_PORT say."""
        port = os.environ.get("TAILRACE_CLUSTER_PORT") or str(DEFAULT_PORT)
        if not port.isdecimal():
            raise ClusterError(f"TAILRACE_CLUSTER_PORT is {port!r}, which is no number")
        return cls(os.environ.get("TAILRACE_CLUSTER") or DEFAULT_NAME, int(port))

    def __post_init__(self) -> None:
        if not (self.name.isascii() and self.name.isalnum() and len(self.name) <= 16):
            raise ClusterError(f"{self.name!r} is no name of a cluster: up to 16 letters and digits")
        if not 1024 <= self.port <= 65535:
            raise ClusterError(f"{self.port} is no port that can be used: 1024 to 65535")
        if len(os.fsencode(self.control_socket)) > SOCKET_PATH_BYTES:
            raise ClusterError(f"the path of {self.control_socket} is too long for a socket; set XDG_STATE_HOME")

    @property
    def state_root(self) -> Path:
        """Folder of all clusters' states."""
        return _base("XDG_STATE_HOME", ".local/state") / "tailrace" / "cluster"

    @property
    def run(self) -> Path:
        """All state of this cluster; gone when it is down."""
        return self.state_root / self.name

    @property
    def control_socket(self) -> Path:
        """Where the node takes requests."""
        return self.run / "control.sock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; it works on the host and inside the node's network namespace."""
        return self.run / "kubeconfig" / "admin"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.run / "logs"

    @property
    def cgroup(self) -> str:
        """The cgroup, below the root of every hierarchy, that holds all pods."""
        return f"tailrace-cluster-{self.name}"
