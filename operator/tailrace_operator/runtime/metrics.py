"""The metrics of the operator for Prometheus; docs/operations/observe.md#metrics describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from tailrace_operator.readergroup.measure import Sample
    from tailrace_operator.reconcile.loop import ReconcileLoop


def metrics_of_loop(loop: ReconcileLoop) -> Iterator[Metric]:
    """Yield what the reconcile loop did since the start, and the conditions of all objects."""
    yield GaugeMetricFamily("tailrace_operator_objects", "Objects known", value=len(loop))
    about = "Reconciled objects since the start"
    yield CounterMetricFamily("tailrace_operator_reconciled", about, value=loop.reconciled)
    yield CounterMetricFamily("tailrace_operator_failed", "Failed reconciles since the start", value=loop.failed)
    about = "How long all reconciles together took"
    yield CounterMetricFamily("tailrace_operator_reconcile_seconds", about, value=loop.reconcile_s)
    labels = ["kind", "type", "status", "reason"]
    conditions = GaugeMetricFamily("tailrace_operator_conditions", "Objects with this condition", labels=labels)
    for found, count in sorted(loop.conditions().items()):
        conditions.add_metric(list(found), count)
    yield conditions


def metrics_of_groups(samples: Iterable[tuple[str, Sample]]) -> Iterator[Metric]:
    """Yield the lag of reader groups. ``samples``: the newest sample of each group and its resource."""
    labels = ["resource_namespace", "resource_name"]
    about = "Bytes that the group has not read"
    lag_bytes = GaugeMetricFamily("tailrace_operator_group_lag_bytes", about, labels=labels)
    about = "Least age of the oldest event that the group has not read"
    lag_seconds = GaugeMetricFamily("tailrace_operator_group_lag_seconds", about, labels=labels)
    about = "Readers of the group that are online"
    readers = GaugeMetricFamily("tailrace_operator_group_readers", about, labels=labels)
    for resource, sample in samples:
        place = resource.split("/", 1)
        lag_bytes.add_metric(place, sample.lag_bytes)
        lag_seconds.add_metric(place, sample.age.least_s)
        readers.add_metric(place, sample.online_readers)
    yield from (lag_bytes, lag_seconds, readers)
