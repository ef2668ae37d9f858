"""ReaderGroup resources and their groups on a real server: made, joined, measured, edited, deleted."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import uuid
from typing import Any

import cbor2
import pytest

from harness.localobjects import NAMESPACE, Hand
from tailrace.client.async_client import Client
from tailrace.client.group.reader_group import group_config
from tailrace.client.group.rust import state_table
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common import limits
from tailrace.common.errors import NoSuchReaderGroupError
from tailrace.common.stream_cut import parse_stream_cut
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig, StreamDataRetention
from tailrace.wire.tables import TableEntry
from tailrace_operator.connections.controllers import ClusterName
from tailrace_operator.kube.objects import READER_GROUPS, STREAM_CLUSTERS, STREAMS

EVENT_BYTES = 18
"""An event of 10 bytes in a segment."""


class Readers:
    """A ReaderGroup called readers over a stream called events."""

    def __init__(self, hand: Hand, client: Client, scope: str) -> None:
        self.hand = hand
        self.client = client
        self.scope = scope
        self.stream = StreamName(scope, "events")
        self.groups = client.reader_groups(scope)

    async def make_stream(self, events: int = 0) -> None:
        """The stream, with some events."""
        await self.client.streams.create_scope(self.scope)
        await self.client.streams.create_stream(self.stream)
        await self.write(events)

    async def write(self, count: int) -> None:
        """Events of EVENT_BYTES each."""
        async with self.client.writer(self.stream) as writer:
            for _ in range(count):
                await writer.write_event(b"0123456789", "k")

    def make(self, name: str = "readers", **spec: Any) -> str:
        """Apply the resource; its uid."""
        made = self.hand.objects.make(
            READER_GROUPS, name, {"cluster": "main", "scope": self.scope, "streams": ["events"], **spec}
        )
        return str(made["metadata"]["uid"])

    async def look(self, name: str = "readers") -> dict[str, Any]:
        """Reconcile; the status."""
        await self.hand.look(READER_GROUPS, name)
        return self.hand.status(READER_GROUPS, name) if self.hand.objects.exists(READER_GROUPS, name) else {}

    def condition(self, condition: str = "Ready", name: str = "readers") -> tuple[str, str]:
        """Status and reason."""
        return self.hand.condition(READER_GROUPS, name, condition)

    async def stored(self) -> ReaderGroupConfig:
        """What the controller has."""
        return await self.client.context.controller.reader_group_config(self.scope, "readers")

    async def read(self, count: int) -> None:
        """Read so many events as a reader that comes and goes."""
        async with self.client.reader(self.scope, "readers", f"r-{uuid.uuid4().hex[:8]}") as reader:
            for _ in range(count):
                assert await reader.read_event(10_000) is not None

    def is_gone(self) -> bool:
        """Whether the resource is gone."""
        return not self.hand.objects.exists(READER_GROUPS, "readers")

    @property
    def reasons(self) -> list[str]:
        """Events."""
        return self.hand.objects.reasons("readers")


@pytest.fixture
def readers(hand: Hand, client: Client, scope: str, monkeypatch: pytest.MonkeyPatch) -> Readers:
    """Nothing exists yet; every reconcile measures again."""
    monkeypatch.setattr(limits, "OPERATOR_LAG_PERIOD_S", 0.0)
    return Readers(hand, client, scope)


async def test_a_resource_becomes_a_group_that_readers_join(readers: Readers) -> None:
    await readers.make_stream(10)
    uid = readers.make(checkpointIntervalMs=-1, groupRefreshMs=500)
    status = await readers.look()
    assert readers.condition() == ("True", "InStep")
    assert readers.condition("Lagging") == ("False", "NoThreshold")
    assert (status["onlineReaders"], status["unassignedSegments"], status["lagBytes"]) == (0, 1, 10 * EVENT_BYTES)
    assert status["uid"] == uid
    assert "lagSeconds" not in status, "the age of data from before the first measurement is unknown"
    assert "ReaderGroupCreated" in readers.reasons
    stored = await readers.stored()
    assert (stored.group_id, stored.automatic_checkpoint_ms) == (uuid.UUID(uid), -1)
    await readers.read(4)
    assert (await readers.look())["lagBytes"] == 6 * EVENT_BYTES
    async with readers.client.reader(readers.scope, "readers", "stays") as reader:
        assert await reader.read_event(10_000) is not None
        assert (await readers.look())["onlineReaders"] == 1
    assert (await readers.look())["onlineReaders"] == 0
    await readers.read(5)
    status = await readers.look()
    assert (status["lagBytes"], status["lagSeconds"]) == (0, 0)


async def test_lag_counts_what_follows_a_segment_and_not_what_was_dropped(readers: Readers) -> None:
    await readers.make_stream(3)
    readers.make()
    await readers.look()
    await readers.client.streams.scale_to(readers.stream, 3)
    await readers.write(4)
    assert (await readers.look())["lagBytes"] == 7 * EVENT_BYTES
    await readers.client.streams.truncate_stream(readers.stream, await readers.client.streams.tail(readers.stream))
    assert (await readers.look())["lagBytes"] == 0
    await readers.write(2)
    assert (await readers.look())["lagBytes"] == 2 * EVENT_BYTES


async def test_the_age_of_what_is_unread_is_known_from_looks(readers: Readers) -> None:
    await readers.make_stream()
    readers.make(lagThreshold={"bytes": "30", "seconds": 3600})
    await readers.look()
    assert readers.condition("Lagging") == ("False", "KeepsUp")
    await readers.write(1)
    status = await readers.look()
    assert 0 < status["lagSeconds"] < 60
    assert readers.condition("Lagging") == ("False", "KeepsUp")
    await readers.write(1)
    await readers.look()
    assert readers.condition("Lagging") == ("True", "LagBytes")
    assert "LagBytes" in readers.reasons


async def test_a_group_may_begin_at_the_tail(readers: Readers) -> None:
    await readers.make_stream(5)
    readers.make(start="Tail")
    assert (await readers.look())["lagBytes"] == 0
    await readers.write(1)
    assert (await readers.look())["lagBytes"] == EVENT_BYTES


async def test_an_edit_resets_the_group_where_it_was(readers: Readers) -> None:
    await readers.make_stream(10)
    readers.make()
    await readers.look()
    await readers.read(4)
    await readers.client.streams.create_stream(StreamName(readers.scope, "more"))
    readers.hand.objects.edit(READER_GROUPS, "readers", {"streams": ["events", "more"], "checkpointIntervalMs": 5000})
    status = await readers.look()
    assert readers.condition() == ("True", "InStep")
    assert "ReaderGroupReset" in readers.reasons
    assert status["lagBytes"] == 6 * EVENT_BYTES
    stored = await readers.stored()
    assert (stored.generation, stored.automatic_checkpoint_ms, len(stored.starting)) == (1, 5000, 2)
    await readers.look()
    assert (await readers.stored()).generation == 1, "once is enough"
    await readers.read(6)
    assert (await readers.look())["lagBytes"] == 0


async def test_an_edit_that_has_to_wait_for_a_stream_is_carried_out_later(readers: Readers) -> None:
    await readers.make_stream(2)
    readers.make()
    await readers.look()
    readers.hand.objects.edit(READER_GROUPS, "readers", {"streams": ["events", "later"]})
    await readers.look()
    assert readers.condition("Accepted") == ("False", "StreamNotFound")
    await readers.client.streams.create_stream(StreamName(readers.scope, "later"))
    await readers.look()
    assert readers.condition() == ("True", "InStep")
    assert len((await readers.stored()).starting) == 2


async def test_a_reset_by_an_application_is_kept_and_reported(readers: Readers) -> None:
    await readers.make_stream(2)
    readers.make()
    await readers.look()
    group = await readers.groups.open("readers")
    await group.reset(dataclasses.replace((await group.state()).config, automatic_checkpoint_ms=7777))
    await readers.look()
    assert readers.condition() == ("False", "ConfigurationMismatch")
    assert (await readers.stored()).automatic_checkpoint_ms == 7777


async def test_a_reset_that_was_cut_off_is_finished(readers: Readers) -> None:
    """The controller has the configuration of the edit, the state that of before: the operator ended in between."""
    await readers.make_stream(10)
    readers.make()
    await readers.look()
    await readers.read(4)
    readers.hand.objects.edit(READER_GROUPS, "readers", {"groupRefreshMs": 1234})
    group = await readers.groups.open("readers")
    cuts = await group.positions()
    wanted = dataclasses.replace((await group.state()).config, group_refresh_ms=1234, starting=cuts)
    assert await readers.client.context.controller.update_reader_group(readers.scope, "readers", wanted) == 1
    await readers.look()
    assert readers.condition() == ("True", "InStep")
    state = (await group.state()).config
    assert (state.generation, state.group_refresh_ms) == (1, 1234)
    assert readers.reasons.count("ReaderGroupResetFinished") == 1
    assert (await readers.look())["lagBytes"] == 6 * EVENT_BYTES
    assert readers.reasons.count("ReaderGroupResetFinished") == 1, "once is enough"
    await readers.read(6)
    assert (await readers.look())["lagBytes"] == 0


async def test_a_group_of_an_application_is_observed_and_adopted(readers: Readers) -> None:
    await readers.make_stream(2)
    await readers.groups.create("readers", group_config({readers.stream: None}))
    uid = readers.make()
    assert (await readers.look())["uid"] == uid
    assert readers.condition() == ("True", "InStep")
    readers.make("twin", groupName="readers", checkpointIntervalMs=1234)
    status = await readers.look("twin")
    assert status["uid"] == uid
    assert readers.condition("Ready", "twin") == ("False", "ConfigurationMismatch")
    readers.hand.objects.edit(READER_GROUPS, "twin", {"checkpointIntervalMs": 2345})
    await readers.look("twin")
    assert (await readers.stored()).automatic_checkpoint_ms == 30_000, "it belongs to the other resource"
    readers.hand.objects.remove(READER_GROUPS, "readers")
    await readers.look("twin")
    assert readers.condition("Ready", "twin") == ("True", "InStep")
    assert (await readers.stored()).automatic_checkpoint_ms == 2345, "the edit is carried out when the group is left"


async def test_a_group_without_its_first_state_gets_one(readers: Readers) -> None:
    await readers.make_stream(2)
    config = dataclasses.replace(group_config({readers.stream: None}), group_id=uuid.uuid4(), generation=0)
    await readers.client.context.controller.create_reader_group(readers.scope, "readers", config)
    readers.make()
    assert (await readers.look())["lagBytes"] == 2 * EVENT_BYTES
    await readers.read(2)


async def test_published_cuts_are_reported(readers: Readers) -> None:
    await readers.make_stream(3)
    readers.make(retentionType="ManualStreamCut")
    assert "lastPublishedCut" not in await readers.look()
    assert (await readers.stored()).retention == StreamDataRetention.MANUAL
    await readers.read(2)
    group = await readers.groups.open("readers")
    cuts = await group.positions()
    await group.publish_cuts({readers.stream: cuts[str(readers.stream)]})
    (published,) = (await readers.look())["lastPublishedCut"]
    assert published["stream"] == str(readers.stream)
    cut = parse_stream_cut(published["cut"])
    assert cut is not None
    assert list(cut.positions.values()) == [2 * EVENT_BYTES]


async def test_impossible_requests_are_conditions(readers: Readers) -> None:
    await readers.client.streams.create_scope(readers.scope)
    readers.make()
    await readers.look()
    assert readers.condition("Accepted") == ("False", "StreamNotFound")
    assert readers.condition("Lagging")[0] == "Unknown"
    readers.make("lost", cluster="unknown")
    await readers.look("lost")
    assert readers.condition("Accepted", "lost") == ("False", "ClusterNotFound")
    readers.make("bad", flavour="Rust", retentionType="ManualStreamCut")
    await readers.look("bad")
    assert readers.condition("Accepted", "bad") == ("False", "InvalidSpec")
    await readers.make_stream()
    await readers.look()
    assert readers.condition() == ("True", "InStep")


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_deletion_follows_the_policy(readers: Readers, policy: str) -> None:
    await readers.make_stream()
    readers.make(deletionPolicy=policy)
    await readers.look()
    readers.hand.objects.remove(READER_GROUPS, "readers")
    assert readers.is_gone() is (policy == "Retain")
    if policy == "Delete":
        await readers.look()
        assert readers.is_gone()
        assert readers.reasons[-1] == "ReaderGroupDeleted"
        with pytest.raises(NoSuchReaderGroupError):
            await readers.stored()
    else:
        assert await readers.stored()
        uid = readers.make(deletionPolicy="Delete")
        assert (await readers.look())["uid"] == uid, "the next resource of the name adopts it"
        readers.hand.objects.remove(READER_GROUPS, "readers")
        await readers.look()
        with pytest.raises(NoSuchReaderGroupError):
            await readers.stored()


async def test_nothing_holds_a_resource_whose_cluster_is_gone(readers: Readers) -> None:
    await readers.make_stream()
    readers.make(deletionPolicy="Delete")
    await readers.look()
    readers.hand.objects.remove(STREAM_CLUSTERS, "main")
    readers.hand.objects.remove(READER_GROUPS, "readers")
    await readers.look()
    assert readers.is_gone()
    assert await readers.stored()


async def test_a_group_that_is_created_again_is_followed(readers: Readers) -> None:
    await readers.make_stream(3)
    readers.make()
    await readers.look()
    await readers.read(3)
    await readers.groups.delete("readers")
    status = await readers.look()
    status = await readers.look()
    assert (status["lagBytes"], readers.condition()) == (3 * EVENT_BYTES, ("True", "InStep"))


async def test_all_groups_of_a_cluster_are_measured_at_once(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    await readers.make_stream(1)
    for number in range(5):
        readers.make(f"g{number}")
        await readers.look(f"g{number}")
    monkeypatch.setattr(limits, "OPERATOR_LAG_PERIOD_S", 3600.0)
    lag = readers.hand.reconcilers[READER_GROUPS.plural].lag  # type: ignore[attr-defined]
    before = lag.measurements
    for number in range(5):
        await readers.look(f"g{number}")
    assert lag.measurements == before
    readers.hand.reconcilers[READER_GROUPS.plural].invalidate(ClusterName(NAMESPACE, "main"))  # type: ignore[attr-defined]
    for number in range(5):
        await readers.look(f"g{number}")
    assert lag.measurements == before + 1, "their cluster has changed"


class Key(dict[str, Any]):
    """A map that is the key of a map."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def rust_entry(outer: str, inner: str, type_id: str, data: Any) -> TableEntry:
    """A key as the Rust client writes it (docs/protocol/reader-group-state.md#rust-groups)."""
    key = f"{len(outer):02}{outer}" + (f"/{inner}" if inner else "")
    value = {"type_id": type_id, "data": list(cbor2.dumps(data))}
    return TableEntry(cbor2.dumps(key), cbor2.dumps(value))


async def test_a_group_of_the_rust_flavour_is_only_watched(readers: Readers) -> None:
    await readers.make_stream(4)
    readers.make(flavour="Rust", deletionPolicy="Delete")
    await readers.look()
    assert readers.condition() == ("False", "GroupNotFound")
    scoped = {"scope": {"name": readers.scope}, "stream": {"name": "events"}}
    config = {"V1": {"group_refresh_time_millis": 3000, "starting_stream_cuts": {Key(scoped): "Unbounded"}}}
    segment = Key({**scoped, "segment": {"number": 0, "tx_id": None}})
    table = state_table(readers.scope, "readers")
    await readers.client.context.segments.create_table(table)
    await readers.client.context.segments.table_update(
        table,
        [
            rust_entry("config", "default", "ReaderGroupConfigVersioned", config),
            rust_entry("unassigned_segments", "x", "tombstone", {}),
            rust_entry("assigned_segments", "", "blob", [0]),
            rust_entry("assigned_segments", "r1", "HashMap", {segment: {"read": EVENT_BYTES}}),
            rust_entry("assigned_segments", "gone", "tombstone", {}),
        ],
    )
    status = await readers.look()
    assert readers.condition() == ("True", "Observed")
    assert (status["onlineReaders"], status["lagBytes"]) == (1, 3 * EVENT_BYTES)
    readers.hand.objects.remove(READER_GROUPS, "readers")
    assert readers.is_gone(), f"{NAMESPACE}: what is only watched is not deleted"


async def test_conditions_say_what_a_subscriber_holds_back_and_what_it_has_lost(readers: Readers) -> None:
    await readers.make_stream()
    retained = StreamConfig(ScalingPolicy.fixed(1), RetentionPolicy.by_size_bytes(2 * EVENT_BYTES, 10 * EVENT_BYTES))
    await readers.client.streams.update_stream(readers.stream, retained)
    readers.make(retentionType="ManualStreamCut")
    await readers.look()
    assert readers.condition("BlockingRetention") == ("False", "NoCutYet")
    group = await readers.groups.open("readers")
    await group.publish_cuts({readers.stream: await readers.client.streams.head(readers.stream)})
    await readers.look()
    assert readers.condition("BlockingRetention") == ("False", "KeepsUp")
    assert readers.condition("DataDropped") == ("False", "NothingLost")
    await readers.write(5)
    await readers.look()
    assert readers.condition("BlockingRetention") == ("True", "HoldsData")
    assert readers.condition("DataDropped") == ("False", "NothingLost")
    await readers.write(3)
    await readers.look()
    assert readers.condition("DataDropped") == ("False", "NearMax")
    await readers.client.streams.truncate_stream(readers.stream, await readers.client.streams.tail(readers.stream))
    await readers.look()
    assert readers.condition("BlockingRetention") == ("False", "KeepsUp")
    assert readers.condition("DataDropped") == ("True", "UnreadDeleted")
    await group.publish_cuts({readers.stream: await readers.client.streams.tail(readers.stream)})
    await readers.look()
    assert readers.condition("DataDropped") == ("False", "NothingLost")


async def test_a_group_without_positions_is_no_subscriber(readers: Readers) -> None:
    await readers.make_stream()
    readers.make()
    await readers.look()
    assert readers.condition("BlockingRetention") == ("False", "NotASubscriber")


async def test_a_stream_names_the_resource_that_holds_its_data_back(readers: Readers) -> None:
    """By size and by time. And forgets it once the group has read on; an edit of the policy is applied at once."""
    spec = {"cluster": "main", "scope": readers.scope, "retention": {"type": "Size", "min": "100Gi"}}
    readers.hand.objects.make(STREAMS, "events", spec)

    async def retention() -> dict[str, Any]:
        await readers.hand.look(STREAMS, "events")
        found: dict[str, Any] = readers.hand.status(STREAMS, "events")["retention"]
        return found

    await readers.client.streams.create_scope(readers.scope)
    assert await retention() == {"retainedBytes": 0}
    readers.make(retentionType="ManualStreamCut")
    await readers.look()
    group = await readers.groups.open("readers")
    await group.publish_cuts({readers.stream: await readers.client.streams.head(readers.stream)})
    await readers.write(5)
    spec["retention"] = {"type": "Size", "min": "0"}
    readers.hand.objects.edit(STREAMS, "events", {"retention": spec["retention"]})
    async with asyncio.timeout(120):
        while "lastRun" not in (found := await retention()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    held = found["heldBy"]
    assert (held["subscriber"], held["resource"]) == (f"{readers.scope}/readers", "readers")
    assert held["heldBytes"] == found["retainedBytes"] == 5 * EVENT_BYTES
    assert {"oldestTime", "lastRun"} <= found.keys()
    assert "cutTime" in held
    assert readers.hand.condition(STREAMS, "events", "RetentionEnforced") == ("False", "HeldBySubscriber")

    edits = (f"{days}d" for days in itertools.count(1))
    async with asyncio.timeout(120):
        while True:  # each edit applies the policy, and the second one finds the cut of an earlier time
            by_time = {"type": "Time", "min": "1s", "max": next(edits)}
            readers.hand.objects.edit(STREAMS, "events", {"retention": by_time})
            if "heldBy" in (found := await retention()):
                break
            await asyncio.sleep(0.3)
    assert {**found["heldBy"], "cutTime": ""} == {**held, "cutTime": ""}
    assert readers.hand.condition(STREAMS, "events", "RetentionEnforced") == ("False", "HeldBySubscriber")
    await readers.look()
    assert readers.condition("BlockingRetention") == ("True", "HoldsData")
    await group.publish_cuts({readers.stream: await readers.client.streams.tail(readers.stream)})
    assert "heldBy" not in await retention()


async def test_an_edit_that_also_changes_the_deletion_policy_is_carried_out(readers: Readers) -> None:
    """The finalizer is written first; that must not count as having carried out the edit."""
    await readers.make_stream()
    await readers.client.streams.create_stream(StreamName(readers.scope, "more"))
    readers.make()
    await readers.look()
    edit = {"streams": ["events", "more"], "deletionPolicy": "Delete"}
    readers.hand.objects.edit(READER_GROUPS, "readers", edit)
    await readers.look()
    assert readers.condition() == ("True", "InStep")
    assert len((await readers.stored()).starting) == 2


async def test_an_edit_waits_for_what_it_needs(readers: Readers) -> None:
    await readers.make_stream()
    readers.make()
    await readers.look()
    readers.hand.objects.edit(READER_GROUPS, "readers", {"streams": ["events", "more"]})
    status = await readers.look()
    assert (readers.condition(), status["observedGeneration"]) == (("False", "StreamNotFound"), 1)
    await readers.client.streams.create_stream(StreamName(readers.scope, "more"))
    status = await readers.look()
    assert (readers.condition(), status["observedGeneration"]) == (("True", "InStep"), 2)
