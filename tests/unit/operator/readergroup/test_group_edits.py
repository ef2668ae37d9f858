"""Edits of a ReaderGroup whose group belongs to another resource."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.localobjects import CountingObjects, Hand, LocalObjects
from sim import SimWorld
from tailrace.client.model import ReaderGroupConfig
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, IllegalStateError, NoSuchReaderGroupError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace_operator.connections.controllers import ClusterName, ClusterState, Controllers
from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup import reconcile
from tailrace_operator.readergroup.history import NOTHING_UNREAD
from tailrace_operator.readergroup.measure import Sample
from tailrace_operator.readergroup.plan import wanted_config
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.schema.specs import ReaderGroupSpec

SPEC: dict[str, Any] = {"cluster": "main", "scope": "scope", "groupName": "readers", "streams": ["events"]}


class FakeGroup:
    """One group of a controller, and the `Controllers` that lead to it. ``resets``: how often it was reset."""

    def __init__(self) -> None:
        self.stored: ReaderGroupConfig | None = None
        self.resets = 0
        self.is_readable = True
        self.cluster = ClusterState.EXISTS

    async def state(self, cluster: ClusterName) -> ClusterState:
        """See Controllers.state."""
        return self.cluster

    @asynccontextmanager
    async def use(self, cluster: ClusterName) -> AsyncIterator[Any]:
        """See Controllers.use."""
        yield SimpleNamespace(context=SimpleNamespace(controller=self))

    async def reader_group_config(self, scope: str, name: str) -> ReaderGroupConfig:
        """What the controller has."""
        if self.stored is None:
            raise NoSuchReaderGroupError(f"{scope}/{name}")
        return self.stored

    async def stream_exists(self, stream: object) -> bool:
        """Every stream exists."""
        return True

    async def create(self, client: object, spec: ReaderGroupSpec, group_id: uuid.UUID) -> ReaderGroupConfig:
        """In place of the reconciler's calls."""
        self.stored = dataclasses.replace(wanted_config(spec, {}), group_id=group_id)
        return self.stored

    async def reset(self, client: object, spec: ReaderGroupSpec) -> None:
        """In place of the reconciler's calls."""
        assert self.stored is not None
        self.resets += 1
        self.stored = dataclasses.replace(wanted_config(spec, {}), group_id=self.stored.group_id)

    async def sample(self, cluster: object, group: object) -> Sample:
        """A group that has read everything."""
        if not self.is_readable:
            raise IllegalStateError("no snapshot")
        return Sample(0, 1, 0, NOTHING_UNREAD, {}, None)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    """No group exists yet."""
    made = FakeGroup()
    monkeypatch.setattr(reconcile, "_create", made.create)
    monkeypatch.setattr(reconcile, "_reset", made.reset)
    return made


@pytest.fixture
async def hand(group: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """The group of resource ``first``, which resource ``second`` names, too."""
    objects = LocalObjects()
    reconciler = ReaderGroupReconciler(objects, cast("Controllers", group), SystemClock())
    monkeypatch.setattr(reconciler.lag, "sample", group.sample)
    hand = Hand(objects, {READER_GROUPS.plural: reconciler})
    objects.make(STREAM_CLUSTERS, "main", {})
    for name in ("first", "second"):
        objects.make(READER_GROUPS, name, SPEC)
        await hand.look(READER_GROUPS, name)
        assert hand.condition(READER_GROUPS, name, "Ready") == ("True", "InStep")
    return hand


def observed(hand: Hand, name: str) -> object:
    return hand.status(READER_GROUPS, name).get("observedGeneration")


async def test_an_edit_is_carried_out_when_the_group_comes_to_the_resource(hand: Hand, group: FakeGroup) -> None:
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": 1234})
    for _ in range(2):
        await hand.look(READER_GROUPS, "second")
        assert hand.condition(READER_GROUPS, "second", "Ready") == ("False", "ConfigurationMismatch")
        assert (observed(hand, "second"), group.resets) == (1, 0)
    hand.objects.remove(READER_GROUPS, "first")
    await hand.look(READER_GROUPS, "second")
    assert hand.condition(READER_GROUPS, "second", "Ready") == ("True", "InStep")
    assert (observed(hand, "second"), group.resets) == (2, 1)
    assert "ReaderGroupReset" in hand.objects.reasons("second")
    await hand.look(READER_GROUPS, "second")
    assert group.resets == 1, "once is enough"


async def test_an_edit_waits_also_while_the_group_cannot_be_measured(hand: Hand, group: FakeGroup) -> None:
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": 1234})
    group.is_readable = False
    await hand.look(READER_GROUPS, "second")
    assert hand.condition(READER_GROUPS, "second", "Ready") == ("False", "StateUnreadable")
    assert observed(hand, "second") == 1


async def test_an_edit_waits_also_while_the_cluster_leaves(hand: Hand, group: FakeGroup) -> None:
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": 1234})
    group.cluster = ClusterState.DELETING
    await hand.look(READER_GROUPS, "second")
    assert hand.condition(READER_GROUPS, "second", "Accepted") == ("False", "ClusterLeaving")
    group.cluster = ClusterState.EXISTS
    await hand.look(READER_GROUPS, "second")
    assert observed(hand, "second") == 1
    hand.objects.remove(READER_GROUPS, "first")
    await hand.look(READER_GROUPS, "second")
    assert (observed(hand, "second"), group.resets) == (2, 1)


async def test_an_edit_that_is_taken_back_needs_no_reset(hand: Hand, group: FakeGroup) -> None:
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": 1234})
    await hand.look(READER_GROUPS, "second")
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": SPEC.get("groupRefreshMs", 3000)})
    await hand.look(READER_GROUPS, "second")
    assert hand.condition(READER_GROUPS, "second", "Ready") == ("True", "InStep")
    assert (observed(hand, "second"), group.resets) == (3, 0)


async def test_a_new_resource_that_differs_resets_nothing_when_the_group_comes_to_it(
    hand: Hand, group: FakeGroup
) -> None:
    hand.objects.make(READER_GROUPS, "third", {**SPEC, "groupRefreshMs": 1234})
    await hand.look(READER_GROUPS, "third")
    assert (hand.condition(READER_GROUPS, "third", "Ready"), observed(hand, "third")) == (
        ("False", "ConfigurationMismatch"),
        1,
    )
    hand.objects.remove(READER_GROUPS, "first")
    hand.objects.remove(READER_GROUPS, "second")
    await hand.look(READER_GROUPS, "third")
    assert hand.condition(READER_GROUPS, "third", "Ready") == ("False", "ConfigurationMismatch")
    hand.objects.edit(READER_GROUPS, "third", {"groupRefreshMs": 2345})
    await hand.look(READER_GROUPS, "third")
    assert (hand.condition(READER_GROUPS, "third", "Ready"), group.resets) == (("True", "InStep"), 1)


@pytest.mark.parametrize("away", [ClusterState.DELETING, ClusterState.MISSING])
async def test_a_cluster_that_comes_back_resets_no_group_that_an_application_has_reset(
    hand: Hand, group: FakeGroup, away: ClusterState
) -> None:
    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 1234})  # an edit that is carried out
    await hand.look(READER_GROUPS, "first")
    assert group.resets == 1
    assert group.stored is not None
    group.stored = dataclasses.replace(group.stored, max_outstanding_checkpoints=7)
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("False", "ConfigurationMismatch")
    for group.cluster in (away, ClusterState.EXISTS):
        await hand.look(READER_GROUPS, "first")
    assert (group.resets, group.stored.max_outstanding_checkpoints) == (1, 7), "the resource was not edited"
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("False", "ConfigurationMismatch")


@pytest.mark.parametrize("edit", [{"lagThreshold": {"bytes": "2Gi"}}, {"deletionPolicy": "Delete"}], ids=str)
async def test_an_edit_of_other_fields_resets_no_group_that_an_application_has_reset(
    hand: Hand, group: FakeGroup, edit: dict[str, Any]
) -> None:
    assert group.stored is not None
    group.stored = dataclasses.replace(group.stored, automatic_checkpoint_ms=7000)
    await hand.look(READER_GROUPS, "first")
    hand.objects.edit(READER_GROUPS, "first", edit)
    for _ in range(2):
        await hand.look(READER_GROUPS, "first")
        assert hand.condition(READER_GROUPS, "first", "Ready") == ("False", "ConfigurationMismatch")
        assert (group.resets, group.stored.automatic_checkpoint_ms, observed(hand, "first")) == (0, 7000, 2)
    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 1234})
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("True", "InStep")
    assert (group.resets, observed(hand, "first")) == (1, 3)


async def test_an_edit_that_was_refused_in_between_is_carried_out_later(hand: Hand, group: FakeGroup) -> None:
    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 1234, "checkpointIntervalMs": 0})
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Accepted") == ("False", "InvalidSpec")
    assert observed(hand, "first") == 2
    hand.objects.edit(READER_GROUPS, "first", {"checkpointIntervalMs": 30_000})
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("True", "InStep")
    assert group.resets == 1


async def test_what_the_controller_refused_is_carried_out_when_it_takes_it(
    hand: Hand, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise BadRequestError("not now")

    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 1234})
    with monkeypatch.context() as patched:
        patched.setattr(reconcile, "_reset", refuse)
        await hand.look(READER_GROUPS, "first")
        assert hand.condition(READER_GROUPS, "first", "Accepted") == ("False", "Refused")
        assert observed(hand, "first") == 2
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("True", "InStep")
    assert group.resets == 1


async def test_a_status_of_an_earlier_operator_causes_no_reset(hand: Hand, group: FakeGroup) -> None:
    """It does not say which configuration was carried out, so an edit cannot be seen in it."""
    assert group.stored is not None
    group.stored = dataclasses.replace(group.stored, automatic_checkpoint_ms=7000)
    await hand.look(READER_GROUPS, "first")
    former = dict(hand.status(READER_GROUPS, "first"))
    del former["configurationDigest"]
    hand.objects.put_status(READER_GROUPS, "first", former)
    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 1234})
    for _ in range(2):
        await hand.look(READER_GROUPS, "first")
        assert hand.condition(READER_GROUPS, "first", "Ready") == ("False", "ConfigurationMismatch")
        assert (group.resets, observed(hand, "first")) == (0, 2)
    hand.objects.edit(READER_GROUPS, "first", {"groupRefreshMs": 2345})
    await hand.look(READER_GROUPS, "first")
    assert hand.condition(READER_GROUPS, "first", "Ready") == ("True", "InStep")
    assert group.resets == 1


def test_owners_are_found_without_a_list_for_each_group(group: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is an application's, so each of its resources looks for the oldest one, each time."""
    group.stored = dataclasses.replace(
        wanted_config(ReaderGroupSpec.parse({"metadata": {"name": "x"}, "spec": SPEC}), {}), group_id=uuid.uuid4()
    )
    objects = CountingObjects()
    objects.make(STREAM_CLUSTERS, "main", {})
    for number in range(20):
        objects.make(READER_GROUPS, f"group-{number}", SPEC, creationTimestamp=f"2026-01-02T03:04:{number:02}Z")

    async def main() -> None:
        loop = ReconcileLoop(objects, None, SystemClock(), SystemEntropy())
        reconciler = ReaderGroupReconciler(objects, cast("Controllers", group), SystemClock(), loop.list_known)
        monkeypatch.setattr(reconciler.lag, "sample", group.sample)
        loop.add(reconciler)
        work = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(10 * reconciler.period_s)
        work.cancel()
        await asyncio.wait([work])
        assert loop.reconciled >= 20 * 9

    with SimWorld(1) as world:
        world.run(main())
    assert objects.lists[READER_GROUPS.plural] <= 11 + limits.OPERATOR_WORKERS, "the loop's own, and those before it"
    owner = objects._find(READER_GROUPS, "here", "group-0")["metadata"]["uid"]
    items = [item for (plural, *_), item in objects._objects.items() if plural == READER_GROUPS.plural]
    assert {item["status"]["uid"] for item in items} == {owner}


async def test_a_reset_asks_the_api_server_who_owns_the_group(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was last heard may be old, and a reset is not taken back."""
    objects = LocalObjects()

    async def heard_nothing(kind: Kind, namespace: str) -> Sequence[Manifest]:
        return ()

    reconciler = ReaderGroupReconciler(objects, cast("Controllers", group), SystemClock(), heard_nothing)
    monkeypatch.setattr(reconciler.lag, "sample", group.sample)
    hand = Hand(objects, {READER_GROUPS.plural: reconciler})
    objects.make(STREAM_CLUSTERS, "main", {})
    for name in ("first", "second"):
        objects.make(READER_GROUPS, name, SPEC)
        await hand.look(READER_GROUPS, name)
    hand.objects.edit(READER_GROUPS, "second", {"groupRefreshMs": 1234})
    await hand.look(READER_GROUPS, "second")
    assert (observed(hand, "second"), group.resets) == (1, 0)
