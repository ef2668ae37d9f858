"""One memory figure for a worker, and every byte budget that follows from it (design §8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.common import limits
from tailrace.common.errors import StartError

# Large frames that are being received, and buffers kept for reuse.
_RECEIVE_BYTES = limits.RECEIVE_BUFFERS_MAX_BYTES + limits.RECEIVE_POOL_IDLE_MAX_BYTES
_PROCESS_BYTES = 96 * limits.MIB  # interpreter, libraries, metadata of idle segments


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds in bytes of what a worker keeps in memory."""

    cache_bytes: int
    in_flight_bytes: int
    connection_in_flight_bytes: int
    send_buffer_bytes: int
    upload_bytes: int
    index_page_bytes: int
    receive_buffer_bytes: int = _RECEIVE_BYTES
    process_bytes: int = _PROCESS_BYTES
    log_put_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """What the process may come to; compared with the memory limit."""
        return (
            self.cache_bytes
            + self.receive_buffer_bytes
            + self.in_flight_bytes  # in log frames
            + self.log_put_bytes
            + self.send_buffer_bytes
            + self.upload_bytes
            + self.index_page_bytes
            + self.process_bytes
        )

    def lines(self) -> list[tuple[str, int]]:
        """Name and bytes of each budget, for the start message and `tailrace inspect`."""
        puts = [("frames on their way to the object store", self.log_put_bytes)] if self.log_put_bytes else []
        return [
            ("cache", self.cache_bytes),
            ("in flight, all connections", self.in_flight_bytes),
            ("in flight, one connection", self.connection_in_flight_bytes),
            *puts,
            ("receive buffers", self.receive_buffer_bytes),
            ("send buffers", self.send_buffer_bytes),
            ("uploads to Tier 2", self.upload_bytes),
            ("attribute index pages", self.index_page_bytes),
            ("process", self.process_bytes),
            ("total", self.total_bytes),
        ]


def budgets_for(cache_bytes: int, containers: int, *, object_logs: bool = False) -> Budgets:
    """Budgets of a worker with a cache of that size. With object logs the frames in flight have a copy each.

    Raises:
        StartError: the cache is too small to hold what is in flight.
    """
    smallest = limits.CACHE_MIN_BYTES
    if cache_bytes < smallest:
        raise StartError(f"cache of {cache_bytes} bytes is too small: at least {smallest} are needed")
    return Budgets(
        cache_bytes=cache_bytes,
        in_flight_bytes=limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES,
        connection_in_flight_bytes=limits.CONNECTION_IN_FLIGHT_MAX_BYTES,
        send_buffer_bytes=limits.SEND_BUFFERS_MAX_BYTES,
        upload_bytes=limits.UPLOADS_MAX * 2 * limits.FLUSH_OBJECT_MAX_BYTES,  # some stores take a copy
        index_page_bytes=containers * limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES,
        log_put_bytes=limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES if object_logs else 0,
    )


def memory_limit(root: Path = Path("/")) -> int | None:
    """What this process may use at most, in bytes: the machine's memory, or what a cgroup leaves of it.

    `root` is where the file system begins. None when nothing can be found out.
    """
    found = [_physical_bytes(root / "proc/meminfo"), *(_limit_in(file) for file in _cgroup_files(root))]
    return min((limit for limit in found if limit is not None), default=None)


def _physical_bytes(meminfo: Path) -> int | None:
    for line in _read(meminfo).splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * limits.KIB
    return None


def _cgroup_files(root: Path) -> Iterator[Path]:
    """Files with the limits of this process's cgroup and of those around it, versions 2 and 1.

    In a container its own cgroup is often the root of what is mounted: the path is then unknown there, the root is not.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth], name)


def _limit_in(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def check_fits(budgets: Budgets, limit_bytes: int | None, workers: int = 1) -> None:
    """Raise StartError, naming both numbers, when the budgets of all workers exceed the memory limit."""
    total_bytes = budgets.total_bytes * workers
    if limit_bytes is not None and total_bytes > limit_bytes:
        raise StartError(
            f"memory budgets add up to {total_bytes // limits.MIB} MiB, "
            f"this machine or its cgroup has {limit_bytes // limits.MIB} MiB: lower --cache or raise the limit"
        )
