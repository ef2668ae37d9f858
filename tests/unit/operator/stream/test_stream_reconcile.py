"""What a Stream says of policies that its stream need not have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.localobjects import NAMESPACE, CountingObjects, Idle, LocalObjects
from sim import SimWorld
from tailrace.client.control.owners import Holder, StreamDescription
from tailrace.client.model import StreamName
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.rpc import operator_pb2 as pb
from tailrace_operator.connections.controllers import ClusterName, ClusterState, Controllers
from tailrace_operator.kube.manifests import Notice
from tailrace_operator.kube.objects import READER_GROUPS, STREAMS
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.reconcile.outcome import Status
from tailrace_operator.schema.specs import StreamSpec
from tailrace_operator.stream import conditions, reconcile
from tailrace_operator.stream.owner import Owner
from tailrace_operator.stream.plan import Refuse, Sealed, Step, Wait, wanted_config
from tailrace_operator.stream.reconcile import StreamReconciler

if TYPE_CHECKING:
    from tailrace.client.async_client import Client

SPEC: dict[str, Any] = {
    "cluster": "main",
    "scope": "scope",
    "scaling": {"type": "EventRate", "target": 100},
    "retention": {"type": "Size", "min": "1Ki"},
}


@pytest.fixture
def objects() -> LocalObjects:
    """No resources."""
    return LocalObjects()


@pytest.fixture
async def streams(objects: LocalObjects) -> AsyncIterator[StreamReconciler]:
    """No controller answers."""
    controllers = Controllers(objects, uri=lambda _: "tcp://127.0.0.1:1")
    yield StreamReconciler(objects, controllers, SystemClock())
    await controllers.close()


@pytest.mark.parametrize(("cluster", "reason"), [("missing", "ClusterNotFound"), ("leaving", "ClusterLeaving")])
async def test_policies_are_not_called_enforced_without_a_cluster(
    objects: LocalObjects, streams: StreamReconciler, cluster: str, reason: str
) -> None:
    if cluster == "leaving":
        objects.make(STREAM_CLUSTERS, "main", {}, finalizers=["other.io/slow"])
        objects.remove(STREAM_CLUSTERS, "main")
    objects.make(STREAMS, "orders", SPEC)
    outcome = await streams.reconcile(await objects.get(STREAMS, NAMESPACE, "orders"))
    assert {one.type: (one.status, one.reason) for one in outcome.conditions} == {
        "Accepted": ("False", reason),
        "Ready": ("False", reason),
        "AutoScaling": ("Unknown", "NotCarriedOut"),
        "RetentionEnforced": ("Unknown", "NotCarriedOut"),
    }
    assert not outcome.carried_out, "it waits for a cluster"


async def test_a_stream_that_cannot_be_described_keeps_its_status_and_is_tried_again(
    objects: LocalObjects, streams: StreamReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers for its other streams: that one's error is not that the stream is gone."""
    monkeypatch.setattr(limits, "OPERATOR_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "OPERATOR_RETRY_MAX_S", 0.01)
    link = streams._controllers._link(ClusterName(NAMESPACE, "main"))

    async def scope_exists(_: str) -> bool:
        return True

    asked, tried = itertools.count(1), asyncio.Event()

    async def stream_reports(wanted: list[object]) -> list[pb.StreamReports.Report]:
        if next(asked) > limits.OPERATOR_FAILURES_REPORT:  # then the conditions have been written
            tried.set()
        return [pb.StreamReports.Report(error="container 3 is not open") for _ in wanted]

    monkeypatch.setattr(link.client.context.controller, "scope_exists", scope_exists)
    monkeypatch.setattr(link.client.context.controller, "stream_reports", stream_reports)
    objects.make(STREAM_CLUSTERS, "main", {})
    objects.make(STREAMS, "orders", SPEC)
    objects.put_status(STREAMS, "orders", {"segments": 2, "tailBytes": "7"})
    loop = ReconcileLoop(objects, NAMESPACE, SystemClock(), SystemEntropy())
    loop.add(streams)
    work = asyncio.ensure_future(loop.run([STREAMS]))
    try:
        async with asyncio.timeout(120.0):
            await tried.wait()
    finally:
        work.cancel()
        await asyncio.wait([work])
    status = (await objects.get(STREAMS, NAMESPACE, "orders"))["status"]
    ready = next(one for one in status["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("Unknown", "Unavailable", "container 3 is not open")
    retention = next(one for one in status["conditions"] if one["type"] == "RetentionEnforced")
    assert (retention["status"], retention["reason"]) == ("Unknown", "Unavailable"), "the controllers answer"
    assert retention["message"] == "Whether spec.retention is enforced is not known: container 3 is not open."
    assert (status["segments"], status["tailBytes"]) == (2, "7")
    assert link.silent_until_s is None, "the controller counts as one that answers"


async def test_retention_is_not_enforced_while_no_controller_answers(
    objects: LocalObjects, streams: StreamReconciler
) -> None:
    objects.make(STREAM_CLUSTERS, "main", {})
    stream = objects.make(STREAMS, "orders", SPEC)
    with pytest.raises(UnavailableError) as caught:
        await streams.reconcile(stream)
    (condition,) = streams.away(stream, str(caught.value))
    assert (condition.status, condition.reason) == (Status.FALSE, "ControllerAway")
    assert "the controller of cluster main does not answer" in condition.message


NOW_MS = 1_700_000_000_000
FOUND = StreamDescription(StreamConfig(ScalingPolicy.fixed(1)), "", 0, "scaling", 0, 1, 0, 0, None, ())


@pytest.mark.parametrize(
    ("step", "reason", "carried_out"),
    [
        (None, "InStep", True),
        (Wait("scaling"), "Changing", False),
        (Sealed(), "Sealed", True),
        (Refuse("here/other/uid-other"), "StreamOwnedByAnother", False),
    ],
)
def test_a_generation_is_observed_when_it_was_carried_out(step: Step | None, reason: str, carried_out: bool) -> None:
    spec = StreamSpec.parse({"metadata": {"name": "orders", "namespace": NAMESPACE}, "spec": SPEC})
    me = Owner(NAMESPACE, "orders", "uid-mine")
    outcome = reconcile._outcome(spec, me, FOUND, step, [], conditions.Moment(NOW_MS))
    (ready,) = (one for one in outcome.conditions if one.type == "Ready")
    assert (ready.reason, outcome.carried_out) == (reason, carried_out)


@pytest.mark.parametrize("reason", ["StreamUpdated", "StreamScaled", None])
def test_a_stream_is_measured_again_soon_after_its_policy_was_edited(reason: str | None) -> None:
    """The controllers apply a new policy after their answer: once the status showed the bytes before for a minute."""
    spec = StreamSpec.parse({"metadata": {"name": "orders", "namespace": NAMESPACE}, "spec": SPEC})
    notices = [Notice(reason, "")] if reason else []
    outcome = reconcile._outcome(
        spec, Owner(NAMESPACE, "orders", "uid-mine"), FOUND, None, notices, conditions.Moment(NOW_MS)
    )
    soon = outcome.retry_after_s is not None and outcome.retry_after_s <= limits.OPERATOR_STREAM_BUSY_S
    assert soon == (reason == "StreamUpdated")
    assert outcome.carried_out


async def test_a_generation_is_not_observed_while_other_clients_keep_changing_the_stream(
    objects: LocalObjects, streams: StreamReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def described(*_: object) -> None:
        return None

    async def no_step(*_: object) -> None:
        return None

    monkeypatch.setattr(streams, "_describe", described)
    monkeypatch.setattr(reconcile, "_take_step", no_step)
    spec = StreamSpec.parse({"metadata": {"name": "orders", "namespace": NAMESPACE}, "spec": SPEC})
    me = Owner(NAMESPACE, "orders", "uid-mine")
    client = cast("Client", None)
    outcome = await streams._apply_steps(client, spec, me, conditions.Moment(NOW_MS))
    assert [one.reason for one in outcome.conditions] == ["Accepted", "ChangedByOthers"]
    assert not outcome.carried_out


class HeldBack:
    """Stands in for the controllers of one cluster, whose streams all are held back by ``shop/billing``."""

    async def state(self, cluster: ClusterName) -> ClusterState:
        return ClusterState.EXISTS

    @contextlib.asynccontextmanager
    async def use(self, cluster: ClusterName) -> AsyncIterator[object]:
        yield self

    async def retention_period_ms(self, cluster: ClusterName) -> int:
        return 30_000

    async def describe(self, cluster: ClusterName, stream: StreamName) -> StreamDescription:
        spec = StreamSpec.parse({"metadata": {"name": "x"}, "spec": SPEC})
        holder = Holder("shop/billing", unread_bytes=2048, unread_before_ms=NOW_MS)
        owner = Owner(NAMESPACE, stream.stream, f"uid of {stream.stream}")
        return StreamDescription(wanted_config(spec, None), str(owner), 7, "active", 0, 1, 0, 4096, None, (holder,))


def test_streams_that_are_held_back_do_not_list_reader_groups_each() -> None:
    objects = CountingObjects()
    for number in range(20):
        objects.make(STREAMS, f"s{number}", SPEC)
        made = objects._find(STREAMS, NAMESPACE, f"s{number}")
        objects._store(STREAMS, made | {"metadata": made["metadata"] | {"uid": f"uid of s{number}"}})
    group = {"cluster": "main", "scope": "shop", "streams": ["scope/s0"]}
    for name, named in (("a", "other"), ("c", "billing"), ("b", "billing")):
        objects.make(READER_GROUPS, name, group | {"groupName": named})
    objects.make(READER_GROUPS, "invalid", group | {"groupName": "billing", "start": "Middle"})

    async def main() -> None:
        loop = ReconcileLoop(objects, None, SystemClock(), SystemEntropy())
        reconciler = StreamReconciler(objects, cast("Controllers", HeldBack()), SystemClock(), loop.list_known)
        loop.add(reconciler)
        loop.add(Idle(READER_GROUPS))
        work = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(10 * reconciler.period_s)
        work.cancel()
        await asyncio.wait([work])
        assert loop.reconciled >= 20 * 9

    with SimWorld(1) as world:
        world.run(main())
    assert objects.lists[READER_GROUPS.plural] <= 11 + limits.OPERATOR_WORKERS, "the loop's own, and those before it"
    for number in range(20):
        held = objects._find(STREAMS, NAMESPACE, f"s{number}")["status"]["retention"]["heldBy"]
        assert (held["subscriber"], held["resource"]) == ("shop/billing", "b")
