"""Children are written a few at a time: what needs another comes after it, and failures are those of the order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from harness.localobjects import NAMESPACE, LocalObjects
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, UnavailableError, WriteConflictError
from tailrace_operator.cluster import names
from tailrace_operator.cluster.child_writer import ChildWriter
from tailrace_operator.cluster.plan import Plan
from tailrace_operator.cluster.render import Child, children
from tailrace_operator.kube.objects import DEPLOYMENTS, ROLE_BINDINGS, ROLES, SERVICES, STATEFUL_SETS
from tailrace_operator.schema.specs import SegmentStoreSpec, StreamClusterSpec, Tier2Spec

REPLICAS = 40
TIER2 = Tier2Spec("data", "http://minio:9000", "minio")


class BusyApi(LocalObjects):
    """An API server that takes its time, longer for some calls than for others, and refuses some children.

    ``refused``: names of children by plural. ``after``: calls that succeed before all others are answered with 429.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, set[str]] = {}
        self.under_way = self.most = self.calls = 0
        self.after = 10**9
        self.applied: list[tuple[str, str]] = []
        self.existed: dict[str, int] = {}
        """How many children existed when a StatefulSet or Deployment was applied."""

    async def _last(self) -> None:
        self.calls += 1
        number = self.calls
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(1 + number * 7 % 5):
                await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if number > self.after:
            raise UnavailableError("apply: the Kubernetes API answers 429 Too Many Requests")

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        if kind != STREAM_CLUSTERS:
            await self._last()
        return await super().get(kind, namespace, name)

    async def apply(self, kind: Kind, namespace: str, manifest: Manifest, *, only_new: bool = False) -> Manifest:
        name = str(manifest["metadata"]["name"])
        self.existed.setdefault(kind.plural, len(self._objects) - 1)
        if kind is ROLE_BINDINGS:
            assert self.exists(ROLES, manifest["roleRef"]["name"]), "the API server compares their rights"
        self.applied.append((kind.plural, name))
        await self._last()
        if name in self.refused.get(kind.plural, ()):
            raise BadRequestError(f"{kind.plural} {name} is refused")
        return await super().apply(kind, namespace, manifest, only_new=only_new)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        await self._last()
        await super().delete(kind, namespace, name, uid)


@pytest.fixture
def api() -> BusyApi:
    return BusyApi()


def plan_of(api: BusyApi, name: str = "main", replicas: int = REPLICAS, **spec: Any) -> Plan:
    if not api.exists(STREAM_CLUSTERS, name):
        api.make(STREAM_CLUSTERS, name, {})
    uid = api._find(STREAM_CLUSTERS, NAMESPACE, name)["metadata"]["uid"]
    store = SegmentStoreSpec(replicas, 1, 2**31, None)
    return Plan(name, NAMESPACE, uid, StreamClusterSpec(TIER2, segment_store=store, **spec), "own:1", "print")


def writer_of(api: BusyApi) -> ChildWriter[Plan]:
    return ChildWriter(api, STREAM_CLUSTERS, children)


async def written(writer: ChildWriter[Plan], plan: Plan, *, pods: bool = True) -> Mapping[str, Manifest]:
    return await writer.apply(plan, await writer.existing(plan), pods=pods)


async def test_hundreds_of_children_are_read_and_applied_a_few_at_a_time(api: BusyApi) -> None:
    writer, plan = writer_of(api), plan_of(api)
    existing = await writer.existing(plan)
    assert not existing
    assert api.most == limits.OPERATOR_CHILD_CALLS_MAX
    api.most = 0
    applied = await writer.apply(plan, existing, pods=True)
    assert api.most == limits.OPERATOR_CHILD_CALLS_MAX
    assert sorted(api.applied) == sorted((child.kind.plural, child.name) for child in children(plan))
    assert applied[STATEFUL_SETS.plural]["metadata"]["name"] == names.store("main")
    assert applied[SERVICES.plural]["metadata"]["name"] == names.controller("main"), "the last of its kind"


async def test_all_owners_together_have_one_bound(api: BusyApi) -> None:
    writer = writer_of(api)
    plans = [plan_of(api, name, 4) for name in ("a", "b", "c", "d")]
    await asyncio.gather(*(written(writer, plan) for plan in plans))
    assert api.most == limits.OPERATOR_CHILD_CALLS_MAX < limits.KUBERNETES_THREADS
    for plan in plans:
        assert all(api.exists(child.kind, child.name) for child in children(plan))


async def test_pods_come_after_what_they_need(api: BusyApi) -> None:
    plan = plan_of(api)
    await written(writer_of(api), plan)
    before = len(children(plan)) - 2
    assert api.existed[STATEFUL_SETS.plural] >= before
    assert api.existed[DEPLOYMENTS.plural] >= before


@pytest.mark.parametrize("first", [0, 3, 17, REPLICAS - 2])
async def test_the_first_failure_in_the_order_is_reported_and_no_more_begins(api: BusyApi, first: int) -> None:
    """Else conditions of an object would change with each attempt."""
    plan = plan_of(api)
    pods = [names.store_pod("main", ordinal) for ordinal in range(REPLICAS)]
    api.refused[SERVICES.plural] = {pods[first], pods[first + 1], *pods[first + 4 :]}
    for _ in range(4):
        api.applied.clear()
        with pytest.raises(BadRequestError, match=rf"services {pods[first]} is refused"):
            await written(writer_of(api), plan)
        assert not api.under_way, "what had begun has ended"
        begun = {name for _, name in api.applied}
        assert begun.isdisjoint(pods[first + limits.OPERATOR_CHILD_CALLS_MAX :])
        assert not api.exists(STATEFUL_SETS, names.store("main"))


async def test_an_attempt_that_ends_early_leaves_the_next_one_less_to_do(api: BusyApi) -> None:
    """As under throttling: each attempt would begin with the first child, and none reach the pods."""
    writer, plan = writer_of(api), plan_of(api)
    total, attempts = len(children(plan)), 0
    while not api.exists(STATEFUL_SETS, names.store("main")):
        attempts += 1
        assert attempts <= 5
        existing = await writer.existing(plan)
        api.after = api.calls + total // 4
        with contextlib.suppress(UnavailableError):
            await writer.apply(plan, existing, pods=True)
        api.after = 10**9


async def test_after_a_failure_only_what_differs_is_applied_again(api: BusyApi) -> None:
    """What others changed meanwhile, and what was not reached. After a success all is applied as before."""
    writer, plan = writer_of(api), plan_of(api)
    api.refused[DEPLOYMENTS.plural] = {names.controller("main")}
    with pytest.raises(BadRequestError):
        await written(writer, plan)
    changed = api._find(SERVICES, NAMESPACE, "main-store-7")
    changed["spec"]["ports"] = []
    api._store(SERVICES, changed)
    api.remove(SERVICES, "main-store-9")
    api.refused.clear()
    api.applied.clear()
    await written(writer, plan)
    expected = {(SERVICES.plural, "main-store-7"), (SERVICES.plural, "main-store-9")}
    assert set(api.applied) == {*expected, (DEPLOYMENTS.plural, names.controller("main"))}
    assert api._find(SERVICES, NAMESPACE, "main-store-7")["spec"]["ports"]

    api.applied.clear()
    await written(writer, plan)
    assert len(api.applied) == len(children(plan))


async def test_another_content_is_applied_after_a_failure(api: BusyApi) -> None:
    writer = writer_of(api)
    api.refused[STATEFUL_SETS.plural] = {names.store("main")}
    with pytest.raises(BadRequestError):
        await written(writer, plan_of(api))
    api.refused.clear()
    api.applied.clear()
    await written(writer, plan_of(api, retention_period_ms=60_000))
    assert (DEPLOYMENTS.plural, names.controller("main")) in api.applied


async def test_many_children_of_a_kind_are_read_at_once(api: BusyApi) -> None:
    """A rollout of hundreds of pods changes the StatefulSet all the time, and each change is looked at."""
    writer, plan = writer_of(api), plan_of(api)
    await written(writer, plan)
    api.calls = 0
    existing = await writer.existing(plan)
    assert len(existing) == len(children(plan))
    assert api.calls == len([child for child in children(plan) if child.kind is not SERVICES])


@pytest.mark.parametrize("labels", [{}, {names.INSTANCE_LABEL: "other"}])
async def test_an_object_of_others_with_the_name_of_a_child_is_found(api: BusyApi, labels: dict[str, str]) -> None:
    """It has no labels of ours, so a list by these does not have it."""
    writer, plan = writer_of(api), plan_of(api)
    foreign = api.make(SERVICES, "main-store-3", {}, labels=labels)
    existing = await writer.existing(plan)
    assert existing == {(SERVICES.plural, "main-store-3"): (SERVICES, foreign)}
    with pytest.raises(WriteConflictError):
        await writer.apply(plan, {}, pods=True)


async def test_children_without_pods(api: BusyApi) -> None:
    applied = await written(writer_of(api), plan_of(api), pods=False)
    assert STATEFUL_SETS.plural not in applied
    assert not api.exists(DEPLOYMENTS, names.controller("main"))


async def test_services_of_removed_pods_are_deleted_a_few_at_a_time(api: BusyApi) -> None:
    writer, plan = writer_of(api), plan_of(api)
    await written(writer, plan)
    api.most = 0
    await writer.delete_services(plan, {names.store("main"), names.store_pod("main", 0)})
    assert api.most == limits.OPERATOR_CHILD_CALLS_MAX
    left = {item["metadata"]["name"] for item in await api.list(SERVICES, NAMESPACE)}
    assert left == {names.store("main"), names.store_pod("main", 0), names.controller("main")}


async def test_a_call_that_is_cancelled_leaves_none_under_way(api: BusyApi) -> None:
    plan, gate = plan_of(api), asyncio.Event()

    def waiting(plan: Plan) -> tuple[Child, ...]:
        return children(plan)

    class Stuck(BusyApi):
        async def _last(self) -> None:
            self.under_way += 1
            gate.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.under_way -= 1

    stuck = Stuck()
    stuck._objects = api._objects
    task = asyncio.ensure_future(ChildWriter(stuck, STREAM_CLUSTERS, waiting).existing(plan))
    await gate.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stuck.under_way
