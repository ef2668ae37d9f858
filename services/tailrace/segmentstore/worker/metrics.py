"""The metrics of a worker for Prometheus: cache, throttle, connections, object store, containers.

docs/operations/observe.md#metrics describes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tailrace.storage.figures import ERRORS, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from tailrace.segmentstore.api import ContainerStatus
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.container.arena_pool import ArenaPool
    from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
    from tailrace.segmentstore.metadata.value_room import ValueRoom
    from tailrace.storage.figures import StoreFigures

_COUNTERS: Final = {
    "appends",
    "appended_bytes",
    "reads",
    "read_bytes",
    "log_frames",
    "log_write_seconds",
    "tier2_bytes_written",
    "tier2_objects_written",
    "flushes",
    "index_flushes",
    "tier2_bytes_compacted",
    "tier2_bytes_moved",
    "orphans_deleted",
    "memory_damages",
    "cache_hits",
    "tier2_fetches",
}
"""Details of a container that only grow while it is open; their metrics end in ``_total``."""


class Measured(Protocol):
    """What the metrics are taken from; a `Worker` is one."""

    @property
    def cache(self) -> CacheManager:
        """Return the worker's cache."""
        ...

    @property
    def store_silent_s(self) -> float | None:
        """Return for how long the object store has not answered; None: that is not followed."""
        ...

    @property
    def store_figures(self) -> StoreFigures | None:
        """Return the figures of requests to the object store; None: nothing counts them."""
        ...

    @property
    def log_buffers(self) -> ArenaPool:
        """Return the buffers of log frames."""
        ...

    @property
    def untiered(self) -> UntieredRoom:
        """Return the room for records of what Tier 2 lacks."""
        ...

    @property
    def attribute_values(self) -> ValueRoom:
        """Return the room for attribute values that the containers share."""
        ...

    def status(self) -> list[ContainerStatus]:
        """Return the status of all owned containers."""
        ...


class Served(Protocol):
    """What the metrics say of connections; a `SegmentStoreServer` is one."""

    connections_max: int
    refused_total: int

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        ...

    @property
    def unanswered(self) -> int:
        """Return the number of requests without a reply."""
        ...


class Metrics(Collector):
    """The current values of a worker and of the server of its protocol."""

    def __init__(self, worker: Measured, server: Served) -> None:
        self._worker = worker
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Return the current values."""
        yield from self._cache()
        yield from self._memory()
        yield from self._throttle()
        yield from self._connections()
        yield from self._store()
        yield from self._containers()

    def _cache(self) -> Iterator[Metric]:
        snapshot = self._worker.cache.cache.snapshot()
        for name in ("max_bytes", "used_bytes", "stored_bytes", "reserved_blocks", "pinned_blocks", "entries"):
            yield GaugeMetricFamily(f"tailrace_cache_{name}", f"Cache: {name}", value=getattr(snapshot, name))

    def _memory(self) -> Iterator[Metric]:
        buffers, untiered = self._worker.log_buffers, self._worker.untiered
        about = "Buffers of log frames in use"
        yield GaugeMetricFamily("tailrace_log_buffers_used_bytes", about, value=buffers.used_bytes)
        about = "Buffers of log frames that are kept for reuse"
        yield GaugeMetricFamily("tailrace_log_buffers_idle_bytes", about, value=buffers.idle_bytes)
        about = "Records of appends and attributes that Tier 2 lacks"
        yield GaugeMetricFamily("tailrace_untiered_records_bytes", about, value=untiered.used_bytes)
        about = "Bound of these records: operations wait above it"
        yield GaugeMetricFamily("tailrace_untiered_records_max_bytes", about, value=untiered.max_bytes)
        values = self._worker.attribute_values
        about = "Attribute values in memory that attribute indexes hold, too"
        yield GaugeMetricFamily("tailrace_attribute_values_bytes", about, value=values.used_bytes)
        about = "Bound of these values: those used least recently leave memory above it"
        yield GaugeMetricFamily("tailrace_attribute_values_max_bytes", about, value=values.max_bytes)

    def _throttle(self) -> Iterator[Metric]:
        throttle = self._worker.cache.throttle
        about = "Appends that wait because Tier 2 lags behind"
        yield GaugeMetricFamily("tailrace_throttle_waiting", about, value=throttle.waiting)
        about = "Appends that had to wait because Tier 2 lagged behind"
        yield CounterMetricFamily("tailrace_throttle_appends", about, value=throttle.throttled)
        about = "How long the admitted appends of them waited, together"
        yield CounterMetricFamily("tailrace_throttle_wait_seconds", about, value=throttle.waited_s)

    def _connections(self) -> Iterator[Metric]:
        server = self._server
        yield GaugeMetricFamily("tailrace_connections", "Open connections", value=server.connections)
        yield GaugeMetricFamily("tailrace_connections_max", "Limit of open connections", value=server.connections_max)
        about = "Connections that were refused above the limit"
        yield CounterMetricFamily("tailrace_connections_refused", about, value=server.refused_total)
        yield GaugeMetricFamily("tailrace_requests_unanswered", "Requests without a reply", value=server.unanswered)

    def _store(self) -> Iterator[Metric]:
        if (silent_s := self._worker.store_silent_s) is not None:
            about = "Seconds for which requests to the object store have had no answer, or only refusals"
            yield GaugeMetricFamily("tailrace_worker_store_silent_seconds", about, value=silent_s)
        if (figures := self._worker.store_figures) is None:
            return
        about = "Requests to the object store"
        requests = CounterMetricFamily("tailrace_store_requests", about, labels=["operation"])
        about = "How long all requests to the object store together took"
        seconds = CounterMetricFamily("tailrace_store_request_seconds", about, labels=["operation"])
        about = "Requests to the object store that failed"
        errors = CounterMetricFamily("tailrace_store_errors", about, labels=["operation", "kind"])
        for operation in OPERATIONS:
            requests.add_metric([operation], figures.requests[operation])
            seconds.add_metric([operation], figures.seconds[operation])
            for kind in ERRORS:  # also those that are 0: a rate needs the value before the first error
                errors.add_metric([operation, kind], figures.errors[operation, kind])
        yield from (requests, seconds, errors)

    def _containers(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: GaugeMetricFamily(f"tailrace_container_{name}", f"Container: {name}", labels=["container"])
            for name in ("running", "segments", "log_bytes", "untiered_bytes", "pending_deletes", "last_sequence")
        }
        for status in self._worker.status():
            label = [str(status.container_id)]
            families["running"].add_metric(label, 1.0 if status.state == "running" else 0.0)
            for name in ("segments", "log_bytes", "untiered_bytes", "pending_deletes", "last_sequence"):
                families[name].add_metric(label, getattr(status, name))
            for name, value in status.details.items():
                kind = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
                family = families.setdefault(
                    name, kind(f"tailrace_container_{name}", f"Container: {name}", labels=["container"])
                )
                family.add_metric(label, value)
        yield from families.values()
