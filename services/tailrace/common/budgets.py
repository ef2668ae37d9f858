"""Derives all memory budgets of a worker or pod from one figure (docs/design.md#memory-budgets)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.common import limits
from tailrace.common.errors import StartError

# Large frames that are being received, and buffers kept for reuse.
_RECEIVE_BYTES = limits.RECEIVE_BUFFERS_MAX_BYTES + limits.RECEIVE_POOL_IDLE_MAX_BYTES
_FIXED_CONTROLLER_BYTES = limits.CONTROLLER_PROCESS_BYTES + limits.RECENT_RECORDS_MAX_BYTES
_PROCESS_BYTES = 96 * limits.MIB  # interpreter, libraries, metadata of idle segments


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds, in bytes, of a worker's memory by use."""

    cache_bytes: int
    in_flight_bytes: int
    connection_in_flight_bytes: int
    send_buffer_bytes: int
    upload_bytes: int
    attribute_bytes: int
    """Attributes that their indexes hold: `index_page_bytes` and `attribute_value_bytes`."""
    receive_buffer_bytes: int = _RECEIVE_BYTES
    untiered_record_bytes: int = limits.UNTIERED_RECORDS_MAX_BYTES
    process_bytes: int = _PROCESS_BYTES
    log_put_bytes: int = 0

    @property
    def attribute_value_bytes(self) -> int:
        """Return what values in memory may take that indexes hold, too."""
        return min(limits.ATTRIBUTE_VALUES_MAX_BYTES, self.attribute_bytes // 3)

    @property
    def index_page_bytes(self) -> int:
        """Return what index pages in memory may take."""
        return self.attribute_bytes - self.attribute_value_bytes

    @property
    def total_bytes(self) -> int:
        """Return the largest size of the process; it must fit the memory limit."""
        return (
            self.cache_bytes
            + self.receive_buffer_bytes
            + self.in_flight_bytes  # in log frames
            + self.log_put_bytes
            + self.send_buffer_bytes
            + self.upload_bytes
            + self.attribute_bytes
            + self.untiered_record_bytes
            + self.process_bytes
        )

    def lines(self) -> list[tuple[str, int]]:
        """Return name and bytes of each budget, for the start message and `tailrace inspect`."""
        puts = [("frames sent to the object store", self.log_put_bytes)] if self.log_put_bytes else []
        return [
            ("cache", self.cache_bytes),
            ("in flight, all connections", self.in_flight_bytes),
            ("in flight, one connection", self.connection_in_flight_bytes),
            *puts,
            ("receive buffers", self.receive_buffer_bytes),
            ("send buffers", self.send_buffer_bytes),
            ("uploads to Tier 2", self.upload_bytes),
            ("attribute index pages", self.index_page_bytes),
            ("attribute values", self.attribute_value_bytes),
            ("records of what Tier 2 lacks", self.untiered_record_bytes),
            ("process", self.process_bytes),
            ("total", self.total_bytes),
        ]


def budgets_for(cache_bytes: int, containers: int, *, object_logs: bool = False) -> Budgets:
    """Return the budgets of a worker with a cache of that size. Object logs keep a copy of each frame in flight.

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
        attribute_bytes=containers * limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES,
        log_put_bytes=limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES if object_logs else 0,
    )


@dataclass(frozen=True, slots=True)
class PodBudgets:
    """The memory budgets of a segment store pod."""

    memory_bytes: int
    workers: int
    worker: Budgets
    main_bytes: int
    spare_bytes: int
    """For memory outside of the budgets: fragmentation, and the kernel's memory for sockets and files."""

    @property
    def total_bytes(self) -> int:
        """Return the largest size of the pod, spare part included; never above `memory_bytes`."""
        return self.workers * self.worker.total_bytes + self.main_bytes + self.spare_bytes

    def lines(self) -> list[tuple[str, int]]:
        """Return name and bytes of each part for the start message: the pod's, then those of one worker."""
        return [
            ("memory of the pod", self.memory_bytes),
            ("main process", self.main_bytes),
            ("spare", self.spare_bytes),
            ("each worker", self.worker.total_bytes),
            *((f"worker {name}", size) for name, size in self.worker.lines() if name != "total"),
        ]


def pod_budgets(memory_bytes: int, workers: int, containers: int) -> PodBudgets:
    """Return the budgets of a segment store pod with a memory limit of `memory_bytes`; pure.

    See docs/design.md#memory-budgets.

    `containers` is the number of the cluster, because one worker may own all of them after failures. The containers of
    a worker share one budget for attributes. Of the memory left after all fixed parts, attributes get a quarter and the
    cache the rest.

    Raises:
        StartError: it does not fit; the text names the figure and the smallest sufficient one.
    """
    smallest = smallest_pod_bytes(workers, containers)
    if memory_bytes < smallest:
        raise StartError(
            f"memory of {memory_bytes // limits.MIB} MiB is too small for {workers} workers: "
            f"at least {-(-smallest // limits.MIB)} MiB are needed"
        )
    spare = memory_bytes // limits.POD_SPARE_SHARE
    share = (memory_bytes - spare - limits.POD_MAIN_PROCESS_BYTES) // workers
    left = share - _fixed_worker_bytes()
    attributes = max(limits.POD_ATTRIBUTES_MIN_BYTES, left // 4)
    attributes = min(attributes, left - limits.CACHE_MIN_BYTES, containers * limits.ATTRIBUTE_PAGES_CACHED_MAX_BYTES)
    worker = worker_budgets(left - attributes, attributes)
    return PodBudgets(memory_bytes, workers, worker, limits.POD_MAIN_PROCESS_BYTES, spare)


def worker_budgets(cache_bytes: int, attribute_bytes: int) -> Budgets:
    """Return the budgets of a worker with object logs; its containers share `attribute_bytes`. Raises StartError."""
    return dataclasses.replace(budgets_for(cache_bytes, 0, object_logs=True), attribute_bytes=attribute_bytes)


def smallest_pod_bytes(workers: int, containers: int) -> int:
    """Return the smallest memory figure of a pod with these workers in a cluster with these containers.

    Raises:
        StartError: a number is out of range.
    """
    if not 1 <= workers <= limits.WORKERS_MAX:
        raise StartError(f"{workers} workers: the number must be between 1 and {limits.WORKERS_MAX}")
    if not 1 <= containers <= limits.CONTAINERS_MAX:
        raise StartError(f"{containers} containers: the number must be between 1 and {limits.CONTAINERS_MAX}")
    each = _fixed_worker_bytes() + limits.CACHE_MIN_BYTES + limits.POD_ATTRIBUTES_MIN_BYTES
    used = workers * (each + 1) + limits.POD_MAIN_PROCESS_BYTES  # one more each: shares are whole numbers
    # Add the spare share, rounded up to whole MiB.
    share = limits.POD_SPARE_SHARE
    return -(-used * share // ((share - 1) * limits.MIB)) * limits.MIB


def _fixed_worker_bytes() -> int:
    """Return what a worker needs besides cache and attributes."""
    smallest = worker_budgets(limits.CACHE_MIN_BYTES, 0)
    return smallest.total_bytes - limits.CACHE_MIN_BYTES


@dataclass(frozen=True, slots=True)
class ControllerBudgets:
    """Upper bounds of a controller's memory by use, and the numbers that follow from them."""

    memory_bytes: int
    records_bytes: int
    """Records that never change."""
    calls_max: int
    """Calls that run at a time."""
    streams_max: int
    """Streams, groups, tables and scopes that have work at a time."""

    def lines(self) -> list[tuple[str, int]]:
        """Return name and bytes of each budget, and the numbers, for the start message."""
        return [
            ("memory of the pod", self.memory_bytes),
            ("process", limits.CONTROLLER_PROCESS_BYTES),
            ("recent records", limits.RECENT_RECORDS_MAX_BYTES),
            ("records", self.records_bytes),
            ("calls", self.calls_max * limits.CONTROLLER_CALL_BYTES),
            ("streams with work", self.streams_max * limits.CONTROLLER_STREAM_BYTES),
            ("spare", self.memory_bytes // limits.POD_SPARE_SHARE),
            ("calls at a time", self.calls_max),
            ("streams with work at a time", self.streams_max),
        ]


def controller_budgets(memory_bytes: int) -> ControllerBudgets:
    """Return the budgets of a controller pod under a memory limit; pure (docs/design.md#memory-budgets).

    What is left beside the process and the spare part goes to records, a quarter of it at most, then in halves to calls
    and to streams with work.

    Raises:
        StartError: it does not fit; the text names the limit and the smallest sufficient one.
    """
    left = memory_bytes - memory_bytes // limits.POD_SPARE_SHARE - _FIXED_CONTROLLER_BYTES
    records = min(limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES, max(limits.CONTROLLER_RECORDS_MIN_BYTES, left // 4))
    half = (left - records) // 2
    calls, streams = half // limits.CONTROLLER_CALL_BYTES, half // limits.CONTROLLER_STREAM_BYTES
    if calls < limits.CONTROLLER_CALLS_MIN or streams < limits.CONTROLLER_STREAMS_MIN:
        raise StartError(
            f"memory of {memory_bytes // limits.MIB} MiB is too small for a controller: "
            f"at least {smallest_controller_bytes() // limits.MIB} MiB are needed"
        )
    return ControllerBudgets(
        memory_bytes, records, min(limits.RPC_CONCURRENT_MAX, calls), min(limits.WORKFLOW_STREAMS_MAX, streams)
    )


def smallest_controller_bytes() -> int:
    """Return the smallest memory limit of a controller pod, in whole MiB."""
    half = max(
        limits.CONTROLLER_CALLS_MIN * limits.CONTROLLER_CALL_BYTES,
        limits.CONTROLLER_STREAMS_MIN * limits.CONTROLLER_STREAM_BYTES,
    )
    used = _FIXED_CONTROLLER_BYTES + limits.CONTROLLER_RECORDS_MIN_BYTES + 2 * (half + 1)
    share = limits.POD_SPARE_SHARE
    return -(-used * share // ((share - 1) * limits.MIB)) * limits.MIB


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit of this process in bytes: the machine's memory, or a lower limit of a cgroup.

    `root` is the root of the file system. None when the limit is unknown.
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
    """Yield the files with the limits of this process's cgroup and its parents, versions 2 and 1.

    In a container the own cgroup is often the root of the mounted tree: then only the root has a file.
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


def check_pod_fits(memory_bytes: int, limit_bytes: int | None) -> None:
    """Raise StartError, naming both numbers, when a pod's figure exceeds the memory limit that it runs under."""
    if limit_bytes is not None and memory_bytes > limit_bytes:
        raise StartError(
            f"--memory {memory_bytes // limits.MIB} MiB is more than this machine or its cgroup has, "
            f"{limit_bytes // limits.MIB} MiB: lower it or raise the limit"
        )
