"""The metrics of the operator, as Prometheus gets them (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import httpx

from harness.localobjects import LocalObjects
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.readergroup.history import Age
from tailrace_operator.readergroup.measure import Sample
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.runtime.health import Health
from tailrace_operator.runtime.metrics import metrics_of_groups, metrics_of_loop

PAGE = Path(__file__).resolve().parents[4] / "docs/operations/observe.md"


class Idle:
    """A reconciler that is not asked for anything."""

    kind = STREAMS
    period_s = 30.0


def stream(name: str, **statuses: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "a", "uid": name, "generation": 1, "resourceVersion": "1"}
    conditions = [{"type": kind, "status": status, "reason": f"Is{status}"} for kind, status in statuses.items()]
    return {"metadata": metadata, "spec": {"cluster": "main"}, "status": {"conditions": conditions}}


async def scrape(health: Health) -> str:
    transport = httpx.ASGITransport(app=health.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://operator:8080") as client:
        return (await client.get("/metrics")).raise_for_status().text


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("tailrace_")]
    return {name: float(value) for name, _, value in lines}


async def test_a_standby_says_only_that_it_does_not_lead() -> None:
    assert samples(await scrape(Health())) == {"tailrace_operator_leads": 0.0}


async def test_conditions_are_counted_and_the_lag_of_groups_is_reported() -> None:
    loop = ReconcileLoop(LocalObjects(), None, SystemClock(), SystemEntropy())
    loop.add(Idle())  # type: ignore[arg-type]
    for number in range(3):
        loop.on_event(STREAMS, "ADDED", stream(f"good{number}", Ready="True", RetentionEnforced="True"))
    loop.on_event(STREAMS, "ADDED", stream("bad", Ready="False", RetentionEnforced="True"))
    loop.on_event(STREAMS, None, stream("new"))
    lag = Sample(
        online_readers=2, unassigned_segments=0, lag_bytes=1000, age=Age(12.5, None), published={}, group_id=None
    )
    health = Health()
    health.leads = True
    health.metrics = lambda: itertools.chain(metrics_of_loop(loop), metrics_of_groups([("a/g", lag)]))
    text = await scrape(health)
    condition = 'tailrace_operator_conditions{{kind="Stream",reason="Is{0}",status="{0}",type="{1}"}}'
    group = 'tailrace_operator_group_{}{{resource_name="g",resource_namespace="a"}}'
    assert samples(text) == {
        "tailrace_operator_leads": 1.0,
        "tailrace_operator_objects": 5.0,
        "tailrace_operator_reconciled_total": 0.0,
        "tailrace_operator_failed_total": 0.0,
        "tailrace_operator_reconcile_seconds_total": 0.0,
        condition.format("True", "Ready"): 3.0,
        condition.format("False", "Ready"): 1.0,
        condition.format("True", "RetentionEnforced"): 4.0,
        group.format("lag_bytes"): 1000.0,
        group.format("lag_seconds"): 12.5,
        group.format("readers"): 2.0,
    }
    described = re.findall(r"`([a-z_]+)(?:\{[^`]*\})?`", PAGE.read_text())
    for name in re.findall(r"^# TYPE tailrace_operator_(\w+)", text, re.MULTILINE):
        assert name in described

    loop.on_event(STREAMS, "MODIFIED", stream("bad", Ready="True", RetentionEnforced="True"))
    loop.on_event(STREAMS, "DELETED", stream("good0"))
    assert condition.format("False", "Ready") not in samples(await scrape(health))
    assert samples(await scrape(health))[condition.format("True", "Ready")] == 3.0
