"""A busy stream that a reader group holds back does not write its status with every look (docs/kubernetes.md)."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.control.owners import Holder, StreamDescription
from tailrace.common import limits
from tailrace.common.stream_policies import UNLIMITED, RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from tailrace_operator.kube.manifests import time_text
from tailrace_operator.reconcile.outcome import Changes, Outcome, changes_of
from tailrace_operator.schema.specs import StreamSpec
from tailrace_operator.stream import conditions
from tailrace_operator.stream.owner import Owner

NOW_MS = 1_767_323_045_000
MINUTE_MS = 60_000
ME = Owner("here", "orders", "uid")
SPECS = {
    "Size": {"cluster": "main", "scope": "shop", "retention": {"type": "Size", "min": "1Gi"}},
    "Time": {"cluster": "main", "scope": "shop", "retention": {"type": "Time", "min": "1h"}},
}


def found(kind: str, minute: int) -> StreamDescription:
    """1 % a minute is written, and the group, which is some hours behind, reads as much."""
    sizes = int(10_000_000_000 * 1.01**minute)
    policy = RetentionPolicy(RetentionType[kind.upper()], 1, UNLIMITED)
    config = StreamConfig(ScalingPolicy.fixed(1), retention=policy)
    holder = Holder(
        "shop/billing", unread_bytes=sizes // 2, unread_before_ms=NOW_MS - 4 * 3_600_000 + minute * MINUTE_MS
    )
    return StreamDescription(config, str(ME), 7, "active", 0, 1, 0, sizes, None, (holder,))


def changes(kind: str, minute: int, status: dict[str, Any] | None) -> Changes:
    manifest = {
        "metadata": {"name": "orders", "namespace": "here", "uid": "uid", "generation": 1},
        "status": status or {},
    }
    spec = StreamSpec.parse({**manifest, "spec": SPECS[kind]})
    now_ms = NOW_MS + minute * MINUTE_MS
    one = found(kind, minute)
    moment = conditions.Moment(now_ms)
    said = (
        conditions.accepted(),
        conditions.ready(one),
        conditions.scaling(spec, one),
        conditions.retention(spec, one, moment),
    )
    outcome = Outcome(said, conditions.numbers(one, ME), measured=conditions.measured(spec, one, now_ms))
    return changes_of(manifest, outcome, 1, time_text(now_ms))


@pytest.mark.parametrize("kind", ["Size", "Time"])
def test_what_a_subscriber_holds_back_is_no_reason_to_write_each_minute(kind: str) -> None:
    status: dict[str, Any] = {}
    writes = []
    for minute in range(10):
        made = changes(kind, minute, status)
        if made.status is not None:
            writes.append(minute)
            status = {**status, **made.status}
    held = next(one for one in status["conditions"] if one["type"] == "RetentionEnforced")
    assert held["reason"] == "HeldBySubscriber"
    period = limits.OPERATOR_MEASURED_AGE_S / 60
    assert len(writes) <= 10 / period + 1, f"written in minutes {writes}"


def test_what_is_held_back_is_written_at_once_when_it_begins() -> None:
    status: dict[str, Any] = dict(changes("Size", 0, None).status or {})
    before = [
        {**one, "reason": "Enforced", "status": "True"} if one["type"] == "RetentionEnforced" else one
        for one in status["conditions"]
    ]
    made = changes("Size", 1, {**status, "conditions": before})
    assert made.status is not None
    assert "HeldBySubscriber" in str(made.status["conditions"])
