"""One memory figure for a worker, and every byte budget that follows from it (design §8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.common import limits
from tailrace.common.errors import StartError

# Large frames that are being received, and buffers kept for reuse.
_RECEIVE_BYTES = limits.RECEIVE_BUFFERS_MAX_BYTES + limits.RECEIVE_POOL_IDLE_MAX_BYTES
_PROCESS_BYTES = 96 * limits.MIB  # interpreter, libraries, metadata of idle segments
_CGROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


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

    @property
    def total_bytes(self) -> int:
        """What the process may come to; compared with the memory limit."""
        return (
            self.cache_bytes
            + self.receive_buffer_bytes
            + self.in_flight_bytes  # in log frames
            + self.send_buffer_bytes
            + self.upload_bytes
            + self.index_page_bytes
            + self.process_bytes
        )

    def lines(self) -> list[tuple[str, int]]:
        """Name and bytes of each budget, for the start message and `tailrace inspect`."""
        return [
            ("cache", self.cache_bytes),
            ("in flight, all connections", self.in_flight_bytes),
            ("in flight, one connection", self.connection_in_flight_bytes),
            ("receive buffers", self.receive_buffer_bytes),
            ("send buffers", self.send_buffer_bytes),
            ("uploads to Tier 2", self.upload_bytes),
            ("attribute index pages", self.index_page_bytes),
            ("process", self.process_bytes),
            ("total", self.total_bytes),
        ]


def budgets_for(cache_bytes: int, containers: int) -> Budgets:
    """Budgets of a worker with a cache of that size.

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
    )


def memory_limit(files: tuple[Path, ...] = _CGROUP_FILES) -> int | None:
    """The cgroup's memory limit in bytes, or None when there is none."""
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None


def check_fits(budgets: Budgets, limit_bytes: int | None, workers: int = 1) -> None:
    """Raise StartError, naming both numbers, when the budgets of all workers exceed the memory limit."""
    total_bytes = budgets.total_bytes * workers
    if limit_bytes is not None and total_bytes > limit_bytes:
        raise StartError(
            f"memory budgets add up to {total_bytes // limits.MIB} MiB, "
            f"the memory limit is {limit_bytes // limits.MIB} MiB: lower --cache or raise the limit"
        )
