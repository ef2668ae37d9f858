"""What an operator that is taken away for good leaves behind, in simulated time (ADR 0016)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from harness.localkubernetes import LocalKubernetes
from harness.localobjects import NAMESPACE, LocalObjects
from sim import SimWorld
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    DeadlineError,
    NotFoundError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)
from tailrace_operator.kube.leader_election import LEASE_NAME, LeaderElection
from tailrace_operator.kube.manifests import FINALIZER, Notice
from tailrace_operator.kube.objects import DEPLOYMENTS, READER_GROUPS, STREAMS, Page
from tailrace_operator.uninstall.finalizer_release import ReleaseRefusedError
from tailrace_operator.uninstall.uninstaller import OPERATOR_LABELS, Uninstaller, UninstallTarget

FOREIGN = "other.io/keep"
DEPLOYMENT = "tailrace-operator"
DEADLINE_S = 120.0


class LoopClock:
    """Wall clock by the loop's."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_767_323_045_000


class Place(LocalObjects):
    """Resources, and everything that can be wrong with them.

    ``wrong``: what writes of finalizers are answered with, by name. ``before_release``: called before each of them.
    ``missing``: kinds that are not served.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, TailraceError] = {}
        self.before_release: Callable[[Manifest], None] = lambda _: None
        self.missing: set[str] = set()
        self.wrong_events: TailraceError | None = None
        self.at_a_time = self.most_at_a_time = 0

    async def page(self, kind: Kind, namespace: str | None, rest: str | None = None) -> Page:
        """Two at a time, as of the first of them."""
        await asyncio.sleep(0.01)
        if not self.reachable:
            raise UnavailableError("the API server does not answer")
        if kind.plural in self.missing:
            raise NotFoundError(f"{kind.plural} are not served")
        items = await self.list(kind, namespace)
        first = int(rest or 0)
        return Page(items[first : first + 2], str(first + 2) if first + 2 < len(items) else None)

    async def set_finalizers(self, kind: Kind, manifest: Manifest, finalizers: Sequence[str]) -> Manifest:
        """See Objects.set_finalizers."""
        self.at_a_time += 1
        self.most_at_a_time = max(self.at_a_time, self.most_at_a_time)
        await asyncio.sleep(0.01)
        self.at_a_time -= 1
        self.before_release(manifest)
        if manifest["metadata"]["name"] in self.wrong:
            raise self.wrong[manifest["metadata"]["name"]]
        return await super().set_finalizers(kind, manifest, finalizers)

    async def create_event(self, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
        """See Objects.create_event."""
        if self.wrong_events is not None:
            raise self.wrong_events
        await super().create_event(kind, manifest, notice, now)

    def forget(self, kind: Kind, name: str) -> None:
        """It is gone."""
        self._objects.pop((kind.plural, NAMESPACE, name), None)

    def held(self, kind: Kind, name: str, namespace: str = NAMESPACE, *others: str) -> None:
        """A resource with the operator's finalizer."""
        self.make(
            kind, name, {"cluster": "main", "deletionPolicy": "Delete"}, namespace, finalizers=[*others, FINALIZER]
        )

    def finalizers(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> list[str]:
        """Those of a resource."""
        return list(self._find(kind, namespace, name)["metadata"].get("finalizers", []))

    def operator(self, name: str = DEPLOYMENT, namespace: str = NAMESPACE, replicas: int = 2, *flags: str) -> None:
        """A Deployment of an operator."""
        template = {"spec": {"containers": [{"args": ["--namespace", "$(POD_NAMESPACE)", *flags]}]}}
        spec = {"replicas": replicas, "template": template}
        self.make(DEPLOYMENTS, name, spec, namespace, labels={**OPERATOR_LABELS, "x": name})

    def replicas(self, name: str = DEPLOYMENT) -> int:
        """Pods that a Deployment is asked for."""
        return int(self._find(DEPLOYMENTS, NAMESPACE, name)["spec"]["replicas"])


class Stage:
    """An API server with an operator that may run, and a hook that uninstalls it."""

    def __init__(self) -> None:
        self.objects = Place()
        self.leases = LocalKubernetes()
        self.core = self.leases.core
        self.operator = LeaderElection(LocalKubernetes(self.core), "operator-pod", LoopClock())

    def uninstalling(self, *, all_namespaces: bool = False, deployment: str | None = DEPLOYMENT) -> Uninstaller:
        leaving = UninstallTarget(NAMESPACE, all_namespaces, deployment)
        return Uninstaller(leaving, self.objects, self.leases, "hook-pod", LoopClock())

    async def uninstall(self, **options: Any) -> None:
        await self.uninstalling(**options).run(DEADLINE_S)

    async def operate(self, work: Callable[[], Awaitable[None]] | None = None, ends_after_s: float = 3.0) -> None:
        """The operator's pod: it leads, works every second, and takes its time to end once it is to."""
        await self.operator.acquire()
        keeping = asyncio.create_task(self.operator.keep())
        while self.objects.replicas():
            if work is not None:
                await work()
            await asyncio.sleep(1)
        await asyncio.sleep(ends_after_s)
        keeping.cancel()
        await asyncio.wait([keeping])
        await self.operator.release()

    @property
    def holder(self) -> str:
        return str(self.core.get(LEASES, LEASE_NAME)["spec"]["holderIdentity"])


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario(Stage())

        world.run(main())


def test_all_resources_stay_and_nothing_holds_them() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        for number in range(25):
            objects.held(STREAMS, f"s{number}")
        objects.held(STREAMS, "foreign", NAMESPACE, FOREIGN)
        objects.held(STREAMS, "elsewhere", "elsewhere")
        objects.make(STREAMS, "retained", {"deletionPolicy": "Retain"})
        objects.held(READER_GROUPS, "g")
        objects.held(STREAM_CLUSTERS, "main")
        await stage.uninstall()
        assert all(objects.finalizers(STREAMS, f"s{number}") == [] for number in range(25))
        assert objects.finalizers(STREAMS, "foreign") == [FOREIGN]
        assert objects.finalizers(STREAMS, "elsewhere", "elsewhere") == [FINALIZER]
        assert objects.finalizers(READER_GROUPS, "g") == objects.finalizers(STREAM_CLUSTERS, "main") == []
        assert objects.replicas() == 0
        assert objects.events == [], "nothing became of them"
        assert 1 < objects.most_at_a_time <= limits.KUBERNETES_THREADS
        await stage.uninstall()

    play(scenario)


def test_nothing_is_let_go_while_the_operator_may_put_it_back() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        objects.held(STREAMS, "orders")
        operating = asyncio.create_task(stage.operate())
        await asyncio.sleep(5)
        objects.before_release = lambda _: _require(operating.done() and stage.holder == "hook-pod")
        await stage.uninstall()
        assert objects.finalizers(STREAMS, "orders") == []
        assert stage.holder == "hook-pod", "a pod that is slow to end has to wait until that has lapsed"

    play(scenario)


def test_an_operator_that_died_is_waited_for_until_its_lead_has_lapsed() -> None:
    async def scenario(stage: Stage) -> None:
        stage.objects.held(STREAMS, "orders")
        await stage.operator.acquire()
        began_s = asyncio.get_running_loop().time()
        await stage.uninstall()
        took_s = asyncio.get_running_loop().time() - began_s
        assert limits.LEADER_LAPSE_S <= took_s < limits.LEADER_LAPSE_S + 3

    play(scenario)


def test_what_is_being_deleted_goes_with_its_data_while_its_operator_gets_on() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        names = [f"s{number}" for number in range(3)]
        for name in names:
            objects.held(STREAMS, name)
            objects.remove(STREAMS, name)
        objects.held(STREAMS, "stays")
        deleted: list[str] = []

        async def delete_one() -> None:
            await asyncio.sleep(limits.OPERATOR_RELEASE_TIMEOUT_S / 2)
            if names:
                found = await objects.get(STREAMS, NAMESPACE, names[0])
                await objects.set_finalizers(STREAMS, found, [])
                deleted.append(names.pop(0))

        operating = asyncio.create_task(stage.operate(delete_one))
        await stage.uninstall()
        await operating
        assert deleted == ["s0", "s1", "s2"]
        assert objects.events == []
        assert objects.finalizers(STREAMS, "stays") == []

    play(scenario)


def test_what_cannot_be_deleted_is_released_with_an_event() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        for kind, name in ((STREAMS, "orders"), (READER_GROUPS, "billing")):
            objects.held(kind, name)
            objects.remove(kind, name)
        operating = asyncio.create_task(stage.operate())
        began_s = asyncio.get_running_loop().time()
        await stage.uninstall()
        await operating
        took_s = asyncio.get_running_loop().time() - began_s
        assert limits.OPERATOR_RELEASE_TIMEOUT_S <= took_s < limits.OPERATOR_RELEASE_TIMEOUT_S + 10
        assert not objects.exists(STREAMS, "orders")
        assert objects.reasons("orders") == ["StreamRetained"]
        assert objects.reasons("billing") == ["ReaderGroupRetained"]
        assert "the operator was uninstalled before it deleted it" in objects.events[0][1].message

    play(scenario)


@pytest.mark.parametrize("error", [UnavailableError("403"), WriteConflictError("409"), BadRequestError("422")])
def test_an_event_that_cannot_be_made_stops_nothing(error: TailraceError) -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.wrong_events = error
        objects.held(STREAMS, "orders")
        objects.remove(STREAMS, "orders")
        await stage.uninstall()
        assert not objects.exists(STREAMS, "orders")

    play(scenario)


def test_a_namespace_that_another_operator_serves_is_left_alone() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        objects.operator("other-operator")
        objects.held(STREAMS, "orders")
        await stage.uninstall()
        assert objects.finalizers(STREAMS, "orders") == [FINALIZER]
        assert (objects.replicas(), objects.replicas("other-operator")) == (2, 2)
        objects.edit(DEPLOYMENTS, "other-operator", {"replicas": 0})
        await stage.uninstall()
        assert objects.finalizers(STREAMS, "orders") == []

    play(scenario)


def test_an_operator_of_all_namespaces_lets_go_where_no_other_one_is() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        objects.operator("other-operator", "theirs")
        for namespace in (NAMESPACE, "elsewhere", "theirs"):
            objects.held(STREAMS, "orders", namespace)
        await stage.uninstall(all_namespaces=True)
        found = [objects.finalizers(STREAMS, "orders", each) for each in (NAMESPACE, "elsewhere", "theirs")]
        assert found == [[], [], [FINALIZER]]

    play(scenario)


@pytest.mark.parametrize("namespace", [NAMESPACE, "theirs"])
def test_another_operator_of_all_namespaces_goes_on_with_all_of_them(namespace: str) -> None:
    """In the same namespace it leads in this one's place, and would never let go of the Lease."""

    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator(DEPLOYMENT, NAMESPACE, 2, "--all-namespaces")
        objects.operator("other-operator", namespace, 2, "--all-namespaces")
        objects.held(STREAMS, "orders", "elsewhere")
        other = LeaderElection(LocalKubernetes(stage.core), "other-pod", LoopClock())
        await other.acquire()
        keeping = asyncio.create_task(other.keep())
        await stage.uninstall(all_namespaces=True)
        assert objects.finalizers(STREAMS, "orders", "elsewhere") == [FINALIZER]
        keeping.cancel()

    play(scenario)


def test_without_a_deployment_all_operators_are_others() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.held(STREAMS, "orders")
        objects.operator()
        await stage.uninstall(deployment=None)
        assert objects.finalizers(STREAMS, "orders") == [FINALIZER]
        objects.edit(DEPLOYMENTS, DEPLOYMENT, {"replicas": 0})
        await stage.uninstall(deployment=None)
        assert objects.finalizers(STREAMS, "orders") == []

    play(scenario)


def test_a_server_that_is_away_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.operator()
        objects.held(STREAMS, "orders")
        objects.reachable = False
        work = asyncio.create_task(stage.uninstall())
        await asyncio.sleep(40)
        assert not work.done()
        objects.reachable = True
        await work
        assert objects.finalizers(STREAMS, "orders") == []

    play(scenario)


def test_an_api_outage_is_reported_at_the_deadline() -> None:
    async def scenario(stage: Stage) -> None:
        stage.objects.held(STREAMS, "orders")
        stage.objects.reachable = False
        with pytest.raises(DeadlineError, match=r"within 120 s.*the API server does not answer"):
            await stage.uninstall()

    play(scenario)


def test_an_operator_that_still_leads_is_reported_at_the_deadline() -> None:
    async def scenario(stage: Stage) -> None:
        stage.objects.held(STREAMS, "orders")
        await stage.operator.acquire()
        keeping = asyncio.create_task(stage.operator.keep())
        with pytest.raises(DeadlineError, match="waiting for Lease tailrace-operator, which a running operator holds"):
            await stage.uninstall()
        keeping.cancel()
        assert stage.objects.finalizers(STREAMS, "orders") == [FINALIZER]

    play(scenario)


def test_what_the_server_refuses_delays_nothing_else_and_is_reported_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        for name in ("bad", "good", "worse"):
            objects.held(STREAMS, name)
        objects.wrong = {name: BadRequestError("spec.scaling: Required") for name in ("bad", "worse")}
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(
            ReleaseRefusedError,
            match=r"2 resources: Stream here/bad: spec\.scaling: Required; Stream here/worse: spec",
        ):
            await stage.uninstall()
        assert asyncio.get_running_loop().time() - began_s < 10
        assert objects.finalizers(STREAMS, "good") == []

    play(scenario)


def test_what_the_server_cannot_take_now_keeps_nothing_else() -> None:
    """As with a webhook that does not answer, or a policy that forbids (403): it may pass, and others need not wait."""

    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        for name in ("bad", "good", "later"):
            objects.held(STREAMS, name)
        objects.held(READER_GROUPS, "readers")
        objects.wrong = {"bad": UnavailableError("admission webhook denied the request")}
        with pytest.raises(DeadlineError, match=r"still on 1 resource: Stream here/bad: admission webhook denied"):
            await stage.uninstall()
        assert objects.finalizers(STREAMS, "good") == objects.finalizers(STREAMS, "later") == []
        assert objects.finalizers(READER_GROUPS, "readers") == []
        assert objects.finalizers(STREAMS, "bad") == [FINALIZER]

    play(scenario)


def test_what_others_change_meanwhile_is_looked_at_again() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.held(STREAMS, "orders")
        edits = iter(range(3))

        def edit(manifest: Manifest) -> None:
            if next(edits, None) is not None:
                objects.edit(STREAMS, "orders", {"tags": [manifest["metadata"]["resourceVersion"]]})

        objects.before_release = edit
        await stage.uninstall()
        assert objects.finalizers(STREAMS, "orders") == []
        assert next(edits, None) is None

    play(scenario)


def test_what_goes_meanwhile_is_no_failure() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        objects.held(STREAMS, "orders")
        objects.wrong["orders"] = NotFoundError("it is gone")
        objects.before_release = lambda _: objects.forget(STREAMS, "orders")
        await stage.uninstall()

    play(scenario)


def test_a_lead_that_is_lost_in_the_middle_is_taken_again() -> None:
    async def scenario(stage: Stage) -> None:
        objects = stage.objects
        for number in range(10):
            objects.held(STREAMS, f"s{number}")
        objects.wrong["s1"] = WriteConflictError("it has been modified")
        work = asyncio.create_task(stage.uninstall())
        await asyncio.sleep(2)
        lease = stage.core.get(LEASES, LEASE_NAME)
        stage.core.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "a pod that was slow"}})
        await asyncio.sleep(4)
        assert stage.holder == "a pod that was slow"
        objects.wrong.clear()
        await work
        assert stage.holder == "hook-pod"
        assert objects.finalizers(STREAMS, "s1") == []

    play(scenario)


def test_kinds_that_are_not_there_have_no_resources() -> None:
    async def scenario(stage: Stage) -> None:
        stage.objects.missing = {"streams", "readergroups", "streamclusters"}
        await stage.uninstall()

    play(scenario)


def _require(holds: bool) -> None:
    assert holds
