"""Edits of a ReaderGroup whose group belongs to another resource."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.localobjects import Hand, LocalObjects
from tailrace.client.model import ReaderGroupConfig
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common.errors import IllegalStateError, NoSuchReaderGroupError
from tailrace.common.real_ports import SystemClock
from tailrace_operator.connections.controllers import ClusterName, ClusterState, Controllers
from tailrace_operator.kube.objects import READER_GROUPS
from tailrace_operator.readergroup import reconcile
from tailrace_operator.readergroup.history import NOTHING_UNREAD
from tailrace_operator.readergroup.measure import Sample
from tailrace_operator.readergroup.plan import wanted_config
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
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
