"""Subscribers of a stream: many of them, records of earlier versions, deletions, and calls that race each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import WriteConflictError
from tailrace.controller.managers.subscribers import (
    PublishResult,
    publish,
    subscribe,
    subscriber,
    subscribers,
    unsubscribe,
)
from tailrace.controller.metadata import records
from tailrace.controller.metadata.epochs import Cut
from tailrace.controller.metadata.metadata_store import bucket_of, bucket_table
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import StreamRecord, Subscriber, SubscribersRecord, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2 as pb_operator

KEY = StreamKey("scope", "stream")
TABLE = bucket_table(bucket_of(*KEY))
GROUP_ID = "11111111-2222-3333-4444-555555555555"
OTHER_ID = "99999999-2222-3333-4444-555555555555"
SEGMENTS = 1000
SUCCESS = pb.UpdateSubscriberStatus.SUCCESS


def context_of(api: Any) -> Any:
    return api.controller.services.core.context


async def still_current() -> None:
    """The step that subscribes is not late."""


async def as_published(root: StreamRecord, published: Cut) -> Cut:
    """The group was not reset."""
    return published


async def publish_by(api: Any, name: str, cut: dict[int, int], group_id: str = GROUP_ID, generation: int = 0) -> int:
    request = pb.SubscriberStreamCut(
        streamCut=pb.StreamCut(streamInfo=api.info, cut=cut),
        subscriber=name,
        readerGroupId=group_id,
        generation=generation,
    )
    return int((await api.call("updateSubscriberStreamCut", request)).status)


async def listed(api: Any) -> list[str]:
    return list((await api.call("listSubscribers", api.info)).subscribers)


async def all_of(api: Any) -> dict[str, Subscriber]:
    return {name: each async for name, each in subscribers(context_of(api), KEY)}


def keys_of_subscribers(world: Any, incarnation: int = 0) -> list[bytes]:
    prefix = KEY.subscriber(incarnation, "")
    return [key for key in world.metadata.dump_table(TABLE) if key.startswith(prefix)]


def earlier_form(found: dict[str, Subscriber]) -> bytes:
    """All subscribers in one record, as programs before version 3 wrote it."""
    payload = records._ENCODER.encode({"subscribers": found})
    return records.HEADER.pack(records.MAGIC, 7, 1, len(payload), records._checksum(7, 1, payload)) + payload


async def store_earlier(world: Any, found: dict[str, Subscriber]) -> None:
    await world.metadata.put(TABLE, [Put(KEY.subscribers, earlier_form(found), UNCONDITIONAL)])


def index_of(world: Any) -> SubscribersRecord:
    return decode(SubscribersRecord, world.metadata.dump_table(TABLE)[KEY.subscribers], "test")


@pytest.mark.timeout(300)
async def test_200_subscribers_with_1000_segments_each(api: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.setup(SEGMENTS)
    for number in range(SEGMENTS):
        world.segments.append(f"scope/stream/{number}.#epoch.0", b"x" * 300)
    names = [f"scope/group-{number:03}" for number in range(200)]
    for number, name in enumerate(names):
        await subscribe(context_of(api), KEY, name, GROUP_ID, 0, still_current, as_published)
        after = Subscriber(GROUP_ID, 0, dict.fromkeys(range(SEGMENTS), number))
        made = await publish(context_of(api), KEY, name, Subscriber(GROUP_ID, 0), after, behind=False)
        assert made is PublishResult.PUBLISHED
    assert await listed(api) == names
    request = pb_operator.SubscriberCutRequest(scope="scope", stream="stream", subscriber=names[42])
    found = await api.call("getSubscriberCut", request)
    assert dict(found.cut) == dict.fromkeys(range(SEGMENTS), 42)
    history = await api.call("streamHistory", pb_operator.StreamHistoryRequest(scope="scope", stream="stream"))
    assert [each.subscriber for each in history.subscribers] == names[:20], "what one message has room for"
    largest = max(len(value) for value in world.metadata.dump_table(TABLE).values())
    assert largest < 100_000
    reads: list[int] = []
    real = world.metadata.get

    async def get(table: str, keys: Any) -> Any:
        reads.append(sum(b"/s/0/" in key for key in keys))
        return await real(table, keys)

    monkeypatch.setattr(world.metadata, "get", get)
    assert len(await all_of(api)) == 200
    assert max(reads) <= limits.SUBSCRIBERS_PER_READ_MAX
    reads.clear()
    assert await publish_by(api, names[7], dict.fromkeys(range(SEGMENTS), 8)) == SUCCESS
    assert sum(reads) < 4, "a publication reads no other subscriber"


async def test_1000_subscribers_of_earlier_versions_move_with_the_first_change(api: Any, world: Any) -> None:
    await api.setup()
    earlier = {
        f"scope/group-{number:04}": Subscriber(GROUP_ID, 0, {0: 0} if number % 2 else None)
        for number in range(limits.SUBSCRIBERS_PER_STREAM_MAX)
    }
    await store_earlier(world, earlier)
    assert await all_of(api) == earlier
    assert await listed(api) == list(earlier)
    assert await subscriber(context_of(api), KEY, "scope/group-0007") == earlier["scope/group-0007"]
    assert keys_of_subscribers(world) == [], "reading changes nothing"
    await unsubscribe(context_of(api), KEY, "scope/group-0001", GROUP_ID)
    del earlier["scope/group-0001"]
    await subscribe(context_of(api), KEY, "scope/new", OTHER_ID, 3, still_current, as_published)
    earlier["scope/new"] = Subscriber(OTHER_ID, 3)
    assert await all_of(api) == earlier
    assert len(keys_of_subscribers(world)) == 1000
    index = index_of(world).index
    assert index is not None
    assert {name: each.published for name, each in index.items()} == {
        name: bool(each.cut) for name, each in earlier.items()
    }


async def test_a_publication_moves_subscribers_of_earlier_versions(api: Any, world: Any) -> None:
    await api.setup()
    await store_earlier(world, {"scope/a": Subscriber(GROUP_ID, 2), "scope/b": Subscriber(OTHER_ID, 0, {0: 0})})
    assert await publish_by(api, "scope/b", {0: 0}, OTHER_ID) == SUCCESS
    assert keys_of_subscribers(world) == [], "it was that cut already"
    assert await publish_by(api, "scope/a", {0: 0}, GROUP_ID, 1) == pb.UpdateSubscriberStatus.GENERATION_MISMATCH
    assert await publish_by(api, "scope/a", {0: 0}, GROUP_ID, 2) == SUCCESS
    first = Subscriber(GROUP_ID, 2, {0: 0}, published_ms=world.clock.ms)
    assert await all_of(api) == {"scope/a": first, "scope/b": Subscriber(OTHER_ID, 0, {0: 0})}
    assert len(keys_of_subscribers(world)) == 2


async def test_two_publications_do_not_rewrite_each_other_nor_the_root(api: Any, world: Any) -> None:
    await api.setup()
    for name in ("scope/a", "scope/b"):
        await subscribe(context_of(api), KEY, name, GROUP_ID, 0, still_current, as_published)
        assert await publish_by(api, name, {0: 0}) == SUCCESS
    world.segments.append("scope/stream/0.#epoch.0", b"0123456789")
    before = {item.key: item.version for item in await world.metadata.get(TABLE, [KEY.root, KEY.subscribers])}
    assert await asyncio.gather(*(publish_by(api, name, {0: 5}) for name in ("scope/a", "scope/b"))) == [SUCCESS] * 2
    after = {item.key: item.version for item in await world.metadata.get(TABLE, [KEY.root, KEY.subscribers])}
    assert after == before
    assert [each.cut for each in (await all_of(api)).values()] == [{0: 5}, {0: 5}]
    assert await publish_by(api, "scope/a", {0: 4}) == pb.UpdateSubscriberStatus.STREAM_CUT_NOT_VALID


async def test_a_deleted_stream_leaves_no_subscriber_to_the_next_of_its_name(api: Any, world: Any) -> None:
    await api.setup()
    for name in ("scope/a", "scope/b"):
        await subscribe(context_of(api), KEY, name, GROUP_ID, 0, still_current, as_published)
    own = await subscriber(context_of(api), KEY, "scope/a")
    await api.call("sealStream", api.info)
    held, let_go = asyncio.Event(), asyncio.Event()
    real = world.metadata.remove

    async def remove(table: str, keys: Any) -> None:
        await real(table, keys)
        if any(key == KEY.subscribers for key, _ in keys):
            held.set()
            await let_go.wait()

    world.metadata.remove = remove
    deleting = asyncio.ensure_future(api.call("deleteStream", api.info))
    await held.wait()
    await subscribe(context_of(api), KEY, "scope/late", GROUP_ID, 0, still_current, as_published)
    after = Subscriber(GROUP_ID, 0, {0: 0})
    late = await publish(context_of(api), KEY, "scope/a", own, after, behind=False)
    assert late is PublishResult.NOT_SUBSCRIBED
    let_go.set()
    assert (await deleting).status == pb.DeleteStreamStatus.SUCCESS
    assert [key for key in world.metadata.dump_table(TABLE) if b"/s" in key[len(KEY.root) :]] == []
    assert (await api.call("createStream", api.config())).status == pb.CreateStreamStatus.SUCCESS
    assert await listed(api) == []


async def test_a_group_that_subscribes_again_while_it_is_removed_stays(api: Any, world: Any) -> None:
    await api.setup()
    context = context_of(api)
    await subscribe(context, KEY, "scope/a", GROUP_ID, 0, still_current, as_published)
    real = world.metadata.remove

    async def remove(table: str, keys: Any) -> None:
        world.metadata.remove = real
        await subscribe(context, KEY, "scope/a", GROUP_ID, 1, still_current, as_published)
        await real(table, keys)

    world.metadata.remove = remove
    await unsubscribe(context, KEY, "scope/a", GROUP_ID, 0)
    assert await all_of(api) == {"scope/a": Subscriber(GROUP_ID, 1)}


async def test_a_late_step_writes_nothing_over_the_subscription_of_another_group(api: Any, world: Any) -> None:
    await api.setup()
    context = context_of(api)
    await subscribe(context, KEY, "scope/a", OTHER_ID, 0, still_current, as_published)
    assert await publish_by(api, "scope/a", {0: 0}, OTHER_ID) == SUCCESS
    before = await all_of(api)

    async def late() -> None:
        raise WriteConflictError("the group was created again")

    with pytest.raises(WriteConflictError, match="created again"):
        await subscribe(context, KEY, "scope/a", GROUP_ID, 0, late, as_published)
    assert await all_of(api) == before
    await subscribe(context, KEY, "scope/a", GROUP_ID, 0, still_current, as_published)
    assert await all_of(api) == {"scope/a": Subscriber(GROUP_ID, 0)}


@pytest.mark.parametrize("earlier", [False, True], ids=["records of their own", "one record"])
async def test_the_group_is_looked_for_again_when_its_subscription_changed_meanwhile(
    earlier: bool, api: Any, world: Any
) -> None:
    await api.setup()
    context = context_of(api)
    if earlier:
        await store_earlier(world, {"scope/a": Subscriber(GROUP_ID, 0)})
    else:
        await subscribe(context, KEY, "scope/a", GROUP_ID, 0, still_current, as_published)
    asked = 0

    async def created_again_after_the_first_look() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise WriteConflictError("the group was created again")
        await unsubscribe(context, KEY, "scope/a", GROUP_ID)
        await subscribe(context, KEY, "scope/a", OTHER_ID, 0, still_current, as_published)

    with pytest.raises(WriteConflictError, match="created again"):
        await subscribe(context, KEY, "scope/a", GROUP_ID, 1, created_again_after_the_first_look, as_published)
    assert asked == 2
    assert await all_of(api) == {"scope/a": Subscriber(OTHER_ID, 0)}


async def test_a_removal_that_was_interrupted_is_finished_by_the_next(api: Any, world: Any) -> None:
    await api.setup()
    context = context_of(api)
    await subscribe(context, KEY, "scope/a", GROUP_ID, 0, still_current, as_published)
    await world.metadata.remove(TABLE, [(KEY.subscriber(0, "scope/a"), UNCONDITIONAL)])
    assert await all_of(api) == {}
    assert await publish_by(api, "scope/a", {0: 0}) == pb.UpdateSubscriberStatus.SUBSCRIBER_NOT_FOUND
    await unsubscribe(context, KEY, "scope/a", GROUP_ID)
    assert index_of(world).index == {}
