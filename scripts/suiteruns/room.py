"""Whether the disks have room for what suites write in their long form."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from suiteruns.catalogue import Plan

GIB = 1 << 30
TESTS_NEED_BYTES = 10 * GIB
"""What folders of tests grow to: those of failed tests stay until the next runs."""
CLUSTER_NEEDS_BYTES = 45 * GIB
"""What nodes, images and MinIO of the local cluster grow to: 42 GB were measured."""
IN_MEMORY = Path("/dev/shm")
"""Where Linux has a file system in memory."""
IN_MEMORY_NEEDS_BYTES = 4 * GIB
"""Free there and free in memory, before tests have their files there: several times what was measured."""
CLUSTER_STATE = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "tailrace"


def needed(names: Iterable[str], plan: Plan) -> dict[Path, int]:
    """The bytes that the long form of these suites may write, by folder."""
    needs = {Path(tempfile.gettempdir()): TESTS_NEED_BYTES}
    if plan.local_cluster and any(name.startswith("e2e/kubernetes") for name in names):
        needs[CLUSTER_STATE] = CLUSTER_NEEDS_BYTES
    return needs


def free(folder: Path) -> tuple[int, int]:
    """The device of a folder, which need not exist yet, and the bytes that are free there."""
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev, shutil.disk_usage(folder).free


def lacking(needs: Mapping[Path, int], room_of: Callable[[Path], tuple[int, int]]) -> str:
    """One line that names the device without room for these needs and what to do, or nothing."""
    by_device: dict[int, list[Path]] = {}
    for folder in needs:
        by_device.setdefault(room_of(folder)[0], []).append(folder)
    for folders in by_device.values():
        total_bytes = sum(needs[folder] for folder in folders)
        free_bytes = room_of(folders[0])[1]
        if free_bytes < total_bytes:
            return (
                f"the long form may write {total_bytes / GIB:.0f} GiB to {' and '.join(map(str, folders))},"
                f" where {free_bytes / GIB:.0f} GiB are free: make room, or choose suites with SUITES"
            )
    return ""


@contextlib.contextmanager
def folder_in_memory(place: Path = IN_MEMORY, needs_bytes: int = IN_MEMORY_NEEDS_BYTES) -> Iterator[Path | None]:
    """Provide an empty folder in memory, and remove it with all that is in it; None: there is no room for one."""
    room_bytes = min(free(place)[1], psutil.virtual_memory().available)
    if not os.access(place, os.W_OK | os.X_OK) or room_bytes < needs_bytes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-suites-", dir=place, ignore_cleanup_errors=True) as name:
        yield Path(name)
