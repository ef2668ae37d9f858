"""The job that deletes segments without a record: what it leaves alone, when it deletes, and what does not stop it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
import structlog

from tailrace.common.errors import UnavailableError
from tailrace.common.names import transaction_segment_name
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table, tag_table
from tailrace.controller.metadata.records import ScopeStreamEntry
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

CONTAINERS = 3
PAGE = 2


class ModelListing:
    """The names of all segments, spread over three containers, in pages of two."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.container_count = CONTAINERS
        self.away: set[int] = set()
        self.extra: list[str] = []
        self._ids: dict[str, int] = {}

    async def page(self, container_id: int, after: int) -> tuple[list[str], int | None]:
        if container_id in self.away:
            raise UnavailableError(f"container {container_id} has no owner")
        for name in (*self._world.segments.segments, *self.extra):
            self._ids.setdefault(name, len(self._ids))
        living = [*self._world.segments.segments, *self.extra]
        ids = sorted(self._ids[name] for name in living if self._ids[name] % CONTAINERS == container_id)
        left = [each for each in ids if each > after]
        names = {each: name for name, each in self._ids.items()}
        return [names[each] for each in left[:PAGE]], left[PAGE - 1] if len(left) > PAGE else None


@pytest.fixture
def source(world: Any) -> ModelListing:
    return ModelListing(world)


@pytest.fixture
async def controller(world: Any, source: ModelListing) -> Any:
    return await world.start(sole=True, listing=source, sweep_period_s=3600.0, sweep_age_s=0.0)


async def rounds(controller: Any, source: ModelListing, count: int = 3) -> None:
    for _ in range(count):
        await controller.sweep.round(source)


async def delete_stream(api: Any) -> None:
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert (await api.call("deleteStream", api.info)).status == pb.DeleteStreamStatus.SUCCESS


async def test_segments_of_a_paused_controller_are_deleted(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api = make_api(controller)
    await api.setup(2)
    await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)])
    transaction = await api.begin()
    await api.abort(transaction.txnId)
    await api.until_state(transaction.txnId, pb.TxnState.ABORTED)
    identity = uuid.UUID(int=((transaction.txnId.highBits & (2**64 - 1)) << 64) + transaction.txnId.lowBits)
    late = [
        "scope/stream/1.#epoch.1",  # a duplicate of a pass that never was: epoch 1 has other segments
        transaction_segment_name(f"scope/stream/1.#epoch.{identity.int >> 96}", identity),
    ]
    before = set(world.segments.segments)
    for name in late:
        await world.segments.create_segment(name)
    with structlog.testing.capture_logs() as logs:
        await rounds(controller, source, 1)
        assert set(world.segments.segments) == before | set(late), "deleted at the first look"
        await rounds(controller, source)
    assert set(world.segments.segments) == before
    assert (controller.sweep.deleted, controller.sweep.nameless, controller.sweep.failures) == (2, 0, 0)
    found = [each["segment"] for each in logs if each["event"] == "segment_without_record_deleted"]
    assert sorted(found) == sorted(late)


async def test_segments_of_a_deleted_stream_are_deleted_and_those_of_its_successor_stay(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api = make_api(controller)
    await api.setup(2)
    await delete_stream(api)
    for name in ("scope/stream/0.#epoch.0", "scope/stream/1.#epoch.7"):
        await world.segments.create_segment(name)
        world.segments.append(name, b"x")
    await world.segments.create_segment("scope/stream/2.#epoch.0")  # the next stream's
    assert (await api.call("createStream", api.config(1))).status == pb.CreateStreamStatus.SUCCESS
    await rounds(controller, source)
    assert world.segments.names("scope/stream/") == ["scope/stream/2.#epoch.0"]
    assert controller.sweep.deleted == 2


async def test_bytes_that_contradict_the_records_stay(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api = make_api(controller)
    await api.setup(2)
    await world.segments.create_segment("scope/stream/1.#epoch.0#transaction." + "0" * 32)
    await api.begin()  # takes the number of that transaction; it is open
    await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)])
    await world.segments.create_segment("scope/stream/1.#epoch.1")
    world.segments.append("scope/stream/1.#epoch.1", b"data")
    before = set(world.segments.segments)
    with structlog.testing.capture_logs() as logs:
        await rounds(controller, source)
    assert set(world.segments.segments) == before
    assert controller.sweep.kept == 2
    assert [each["length_bytes"] for each in logs if each["event"] == "segment_without_record_has_data"] == [4, 4]


async def test_everything_that_is_named_or_not_a_controllers_stays(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api = make_api(controller)
    await api.setup(3)
    await api.scaled([0], [(0.0, 1 / 6), (1 / 6, 1 / 3)])
    opened = await api.begin()
    await api.call(
        "createReaderGroup",
        pb.ReaderGroupConfiguration(scope="scope", readerGroupName="group", readerGroupId=str(uuid.UUID(int=1))),
    )
    table = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=2, primaryKeyLength=4)
    assert (await api.call("createKeyValueTable", table)).status == pb.CreateKeyValueTableStatus.SUCCESS
    for name in (
        "scope/unknown/0.#epoch.0",  # a byte client's
        "scope/stream/0",
        "scope/stream/99.#epoch.0",
        "scope/stream/1.#epoch.9",
        "scope/stream/1.#epoch.0#transient." + "1" * 32 + "." + "2" * 32,
        "scope/stream/1.#epoch.0#transaction." + "0" * 31 + "9",
        "scope/table_kvtable/7.#epoch.0",
    ):
        await world.segments.create_segment(name)
    source.extra = [*world.metadata.dump(), ""]
    before = set(world.segments.segments)
    await rounds(controller, source)
    assert set(world.segments.segments) == before
    assert (controller.sweep.nameless, controller.sweep.failures) == (0, 0)
    await api.commit(opened.txnId)
    await api.until_state(opened.txnId, pb.TxnState.COMMITTED)


async def test_only_own_buckets_are_swept(world: Any, make_api: Any, controller: Any, source: ModelListing) -> None:
    api = make_api(controller)
    await api.setup(1)
    await delete_stream(api)
    await world.segments.create_segment("scope/stream/0.#epoch.0")
    mine = frozenset(range(64)) - {bucket_of("scope", "stream")}
    controller.sweep._membership = type("Owner", (), {"own_buckets": mine})()
    await rounds(controller, source)
    assert world.segments.names("scope/stream/")


async def test_the_age_counts_on_the_own_clock(world: Any, make_api: Any, source: ModelListing) -> None:
    controller = await world.start(sole=True, listing=source, sweep_period_s=3600.0, sweep_age_s=30.0)
    api = make_api(controller)
    await api.setup(1)
    await delete_stream(api)
    await world.segments.create_segment("scope/stream/0.#epoch.0")
    await rounds(controller, source)
    world.clock.ms += 24 * 3_600_000
    await rounds(controller, source)
    assert world.segments.names("scope/stream/"), "the wall clock counted"
    sightings = controller.sweep._sightings
    sightings._first_s = {name: first_s - 31 for name, first_s in sightings._first_s.items()}
    await rounds(controller, source, 1)
    assert not world.segments.names("scope/stream/")


async def test_what_cannot_be_looked_at_stops_nothing_else(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api, other = make_api(controller), make_api(controller, stream="other")
    await api.setup(1)
    await delete_stream(api)
    await other.call("createStream", other.config(1))
    await world.segments.create_segment("scope/stream/0.#epoch.0")
    table = bucket_table(bucket_of("scope", "other"))
    (stored,) = await world.metadata.get(table, [b"scope/other"])
    await world.metadata.put(
        table, [type("Entry", (), {"key": b"scope/other", "value": b"damaged", "version": stored.version})()]
    )
    with structlog.testing.capture_logs() as logs:
        await rounds(controller, source)
    assert not world.segments.names("scope/stream/")
    assert world.segments.names("scope/other/")
    assert controller.sweep.failures == 3
    assert controller.sweep.entries.failures == 0, "the entry of a stream whose record cannot be read stays"
    assert {each["stream"] for each in logs if each["event"] == "segment_sweep_failed"} == {"scope/other"}
    source.away = {0, 1, 2}
    done = controller.sweep.rounds
    await rounds(controller, source, 1)
    assert (controller.sweep.rounds, controller.sweep.failures) == (done, 6)


async def leave_entry(world: Any, controller: Any, stream: str, incarnation: int, tags: tuple[str, ...] = ()) -> None:
    """Put the entry that a controller leaves when it dies between writing it and looking at the stream again."""
    scopes = controller.sweep._context.scopes
    owner, _, version = await scopes.entry("scope", f"s/{stream}", ScopeStreamEntry)
    await scopes.put_entry("scope", owner, f"s/{stream}", ScopeStreamEntry(tags, incarnation), version)
    await controller.sweep._context.tags.put("scope", owner, [(tag, stream) for tag in tags])


async def listed(controller: Any) -> list[str]:
    return await controller.sweep._context.scopes.list_all("scope", "s/")


async def test_the_entry_of_a_deleted_stream_is_removed_with_its_tags(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api, other = make_api(controller), make_api(controller, stream="other")
    await api.setup(1)
    await other.call("createStream", other.config(1))
    root = await controller.sweep._context.store.load(StreamKey("scope", "stream"))
    await delete_stream(api)
    assert await listed(controller) == ["_MARKother", "other"]
    for name in ("stream", "_MARKstream"):
        await leave_entry(world, controller, name, root.incarnation, ("red",))
    owner = await controller.sweep._context.scopes.require("scope")
    with structlog.testing.capture_logs() as logs:
        await rounds(controller, source, 1)
    assert await listed(controller) == ["_MARKother", "other"]
    assert controller.sweep.entries.removed == 2
    assert sorted(each["stream"] for each in logs if each["event"] == "entry_of_deleted_stream_removed") == [
        "scope/_MARKstream",
        "scope/stream",
    ]
    assert not [each for each in world.metadata.dump()[tag_table("scope", owner.nonce)] if b"stream" in each]


async def test_the_entry_of_a_stream_that_is_created_again_stays(
    world: Any, make_api: Any, controller: Any, source: ModelListing
) -> None:
    api = make_api(controller)
    await api.setup(1)
    root = await controller.sweep._context.store.load(StreamKey("scope", "stream"))
    await delete_stream(api)
    await leave_entry(world, controller, "stream", root.incarnation + 1)  # of a creation whose root is read too early
    await rounds(controller, source, 1)
    assert "stream" in await listed(controller)
    assert (await api.call("createStream", api.config(1))).status == pb.CreateStreamStatus.SUCCESS
    await rounds(controller, source, 1)
    assert await listed(controller) == ["_MARKstream", "stream"]
    assert controller.sweep.entries.removed == 0


async def test_a_recursive_deletion_ends_beside_the_entry_of_a_deleted_stream(
    world: Any, make_api: Any, controller: Any
) -> None:
    api = make_api(controller)
    await api.setup(1)
    root = await controller.sweep._context.store.load(StreamKey("scope", "stream"))
    await delete_stream(api)
    for name in ("stream", "_MARKstream"):
        await leave_entry(world, controller, name, root.incarnation)
    reply = await api.call("deleteScopeRecursive", pb.ScopeInfo(scope="scope"))
    assert reply.status == pb.DeleteScopeStatus.SUCCESS


async def test_it_runs_by_itself(world: Any, make_api: Any, source: ModelListing, wait_until: Any) -> None:
    controller = await world.start(sole=True, listing=source, sweep_period_s=0.01, sweep_age_s=0.02)
    api = make_api(controller)
    await api.setup(1)
    await delete_stream(api)
    await world.segments.create_segment("scope/stream/0.#epoch.0")

    async def gone() -> bool:
        await asyncio.sleep(0.01)
        return not world.segments.names("scope/stream/")

    await wait_until(gone)
