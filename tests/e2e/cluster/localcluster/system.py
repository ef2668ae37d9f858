"""What the host's kernel is asked for: namespaces, mounts, cgroups, kernel settings, identities of processes."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from localcluster.errors import ClusterError

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 0x1000, 0x4000, 0x40000, 0x100000

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_REMOVAL_LIMIT_S = 15
POD_PROCESSOR_SHARE = 20
"""How much processor time all pods together get, on a busy machine, for each part that another process gets.

Clients' waits are measured on this cluster while other suites compute; on one of its own nothing would be beside it.
"""
NODE_PROCESSOR_SHARE = 2
"""What the node's own processes get beside all pods, which a kubelet gives one part for each core: on other clusters
most of them run on machines without pods."""
_NODE = "node"
"""Their cgroup, beside the one that a kubelet makes for all pods."""
_SHARES = {1: ("cpu.shares", 1024), 2: ("cpu.weight", 100)}
"""The file that says so, by version of cgroups, and what it has by default."""
# Settings of the whole machine that a kubelet changes.
KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces that ``flags`` names for new ones; raises OSError."""
    if _libc.unshare(ctypes.c_int(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2); raises OSError."""
    encoded = [os.fsencode(text) if text else None for text in (source, target, kind)]
    data = os.fsencode(options) if options else None
    if _libc.mount(*encoded, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that a number alone does not name: numbers are used again."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """None when there is no such process, or only what remains of it."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # A thread may go on after the first one of its process: of a node, the one that ends all other processes.
        ended = fields[0] in "ZX" and int(fields[17]) <= 1
        return None if ended else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it is still this process."""
        return ProcessIdentity.of(self.pid) == self

    def write(self, path: Path) -> None:
        """Keep it in a file, replaced at once."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> ProcessIdentity | None:
        """What the file says; None without one."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


def cgroup_version() -> int:
    """1 or 2: the hierarchy that has the controllers."""
    if (CGROUPS / "cgroup.controllers").exists():
        return 2
    if (CGROUPS / "memory").is_dir() and (CGROUPS / "cpu").is_dir():
        return 1
    raise ClusterError(f"{CGROUPS} has neither the controllers memory and cpu (v1) nor cgroup.controllers (v2)")


def make_cgroup(name: str) -> None:
    """Make the cgroup in every hierarchy that has controllers, ready to have children with limits."""
    _make_cgroup(name)
    setting, usual = _SHARES[cgroup_version()]
    for folder in _processor_folders(name):
        (folder / setting).write_text(str(usual * POD_PROCESSOR_SHARE))
        (folder / _NODE).mkdir(exist_ok=True)
        (folder / _NODE / setting).write_text(str(usual * NODE_PROCESSOR_SHARE))


def join_node_cgroup(name: str) -> None:
    """Put this process, and what it starts from now on, beside the pods of that cgroup."""
    for folder in _processor_folders(name):
        (folder / _NODE / "cgroup.procs").write_text(str(os.getpid()))


def node_processes(name: str) -> set[int]:
    """The processes of the node beside the pods of that cgroup, as the host numbers them."""
    texts = [(folder / _NODE / "cgroup.procs").read_text() for folder in _processor_folders(name)]
    return {int(word) for text in texts for word in text.split()}


def _make_cgroup(name: str) -> None:
    if cgroup_version() == 2:
        wanted = (CGROUPS / "cgroup.controllers").read_text().split()
        for folder in (CGROUPS, CGROUPS / name):
            folder.mkdir(exist_ok=True)
            try:
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in wanted))
            except OSError as error:
                raise ClusterError(f"controllers of {folder} cannot be passed on: {error.strerror}") from error
        return
    for folder in _hierarchies(name):
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.mems", "cpuset.cpus"):
            if (folder / setting).exists():
                (folder / setting).write_text((folder.parent / setting).read_text())


def remove_cgroup(name: str) -> None:
    """Remove it with all below it; processes that are ending are waited for."""
    deadline = time.monotonic() + CGROUP_REMOVAL_LIMIT_S
    for folder in _hierarchies(name):
        while folder.exists():
            for inner in sorted(folder.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
                _remove_if_empty(inner)
            _remove_if_empty(folder)
            if folder.exists():
                if time.monotonic() > deadline:
                    raise ClusterError(f"{folder} cannot be removed: it still has processes")
                time.sleep(0.05)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        return  # busy: a process in it is still ending


def _hierarchies(name: str) -> Iterator[Path]:
    if cgroup_version() == 2:
        yield CGROUPS / name
        return
    for root in sorted(CGROUPS.iterdir()):
        if root.is_dir() and not root.is_symlink() and (root / "cgroup.procs").exists():
            yield root / name


def _processor_folders(name: str) -> Iterator[Path]:
    setting, _ = _SHARES[cgroup_version()]
    return (folder for folder in _hierarchies(name) if (folder / setting).exists())


def save_kernel_settings(path: Path) -> None:
    """Note the machine's settings, unless an earlier note is still to be restored."""
    if path.exists():
        return
    found = {setting: _setting(setting).read_text().strip() for setting in _present(KERNEL_SETTINGS)}
    path.write_text(json.dumps(found))


def restore_kernel_settings(path: Path) -> None:
    """Set what was noted, and forget the note."""
    if not path.exists():
        return
    for setting, value in json.loads(path.read_text()).items():
        if _setting(setting).read_text().strip() != value:
            _setting(setting).write_text(value)
    path.unlink()


def _present(settings: Iterable[str]) -> list[str]:
    return [setting for setting in settings if _setting(setting).exists()]


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name
