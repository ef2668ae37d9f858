"""What the host must have: Linux as root, Debian's packages, kernel features. Names what is missing in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from localcluster import system
from localcluster.errors import ClusterError

SEARCHED = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
# A program or file, and the package of Debian that brings it.
NEEDED = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "etcd": "etcd-server",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
BRIDGE_SETTING = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
FILE_SYSTEMS = Path("/proc/filesystems")


def missing_packages() -> list[str]:
    """Names of Debian packages to install."""
    missing = {
        package
        for needed, package in NEEDED.items()
        if not (Path(needed).exists() if needed.startswith("/") else shutil.which(needed, path=SEARCHED))
    }
    return sorted(missing)


def check() -> None:
    """Raise ClusterError when no cluster can run here."""
    if sys.platform != "linux":
        raise ClusterError("a local cluster needs Linux; elsewhere use kind: make kind-up")
    if os.geteuid() != 0:
        raise ClusterError("a local cluster needs root; elsewhere use kind (make kind-up) and E2E_KUBECONFIG")
    check_packages()
    system.cgroup_version()
    if not BRIDGE_SETTING.exists():
        _load_module("br_netfilter")
    if not BRIDGE_SETTING.exists():
        raise ClusterError("the kernel has no br_netfilter: modprobe br_netfilter")
    if "overlay" not in FILE_SYSTEMS.read_text():
        _load_module("overlay")
    if "overlay" not in FILE_SYSTEMS.read_text():
        raise ClusterError("the kernel has no overlay file system: modprobe overlay")


def check_packages() -> None:
    """Raise ClusterError with the command that brings what is missing."""
    missing = " ".join(missing_packages())
    if missing:
        raise ClusterError(f"missing packages: apt-get install --no-install-recommends {missing}")


def check_file_system(folder: Path) -> None:
    """Containers' layers cannot lie on an overlay themselves, as a container's own root does."""
    if file_system(folder) == "overlay":
        raise ClusterError(f"{folder} lies on an overlay; set XDG_STATE_HOME to a folder on a disk or volume")


def file_system(folder: Path) -> str:
    """Kind of the file system that holds a folder, such as ext4."""
    best, kind = "", ""
    path = str(folder.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, device = line.partition(" - ")
        point = mounted.split()[4]
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, device.split()[0]
    return kind


def _load_module(name: str) -> None:
    if shutil.which("modprobe", path=SEARCHED):
        subprocess.run(["modprobe", name], capture_output=True, check=False, timeout=30)
