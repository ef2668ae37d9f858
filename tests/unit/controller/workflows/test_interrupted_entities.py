"""Calls about scopes, groups and streams that fail half-way, race each other, or can never succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    ConnectionLostError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
)
from tailrace.controller.calls import convert
from tailrace.controller.managers import groups
from tailrace.controller.managers.subscribers import subscribe, subscriber, unsubscribe
from tailrace.controller.metadata.epochs import Cut
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, SCOPES_TABLE
from tailrace.controller.metadata.records import StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

GROUP_ID = "11111111-2222-3333-4444-555555555555"
OTHER_ID = "99999999-2222-3333-4444-555555555555"
DEADLINE_S = 120.0
REQUESTS_S = 2.0
"""For how long an intent may be written after its call failed."""


def group(streams: tuple[str, ...] = ("stream",), **fields: Any) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=name), cut={0: 0}) for name in streams]
    ends = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=name)) for name in streams]
    return pb.ReaderGroupConfiguration(
        **{
            "scope": "scope",
            "readerGroupName": "group",
            "groupRefreshTimeMillis": 3000,
            "automaticCheckpointIntervalMillis": -1,
            "maxOutstandingCheckpointRequest": 3,
            "retentionType": 2,
            "readerGroupId": GROUP_ID,
            "startingStreamCuts": cuts,
            "endingStreamCuts": ends,
            **fields,
        }
    )


GROUP = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID)


async def subscribers(api: Any, stream: str = "stream") -> list[str]:
    found = await api.call("listSubscribers", pb.StreamInfo(scope="scope", stream=stream))
    return list(found.subscribers)


async def still_current() -> None:
    """The step that subscribes is not late."""


async def as_published(root: StreamRecord, published: Cut) -> Cut:
    """The group was not reset."""
    return published


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():  # noqa: ASYNC110 - the stores are plain data
            await asyncio.sleep(0.001)


async def nothing_pending(world: Any) -> None:
    """Streams aside: their tasks end by themselves after a time without work."""

    async def settled() -> bool:
        entries, _ = await world.metadata.entries(PENDING_TABLE, 100, b"")
        return all(entry.key.startswith(b"stream/") for entry in entries)

    await until(settled)


class Losing:
    """Loses one chosen call to the metadata, before or after its effect."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.chosen: Callable[[str, Any], bool] = lambda method, table: False
        self.after_effect = False
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(table: Any, *args: Any, **keywords: Any) -> Any:
            due = self.chosen(name, table)
            if due:
                self.chosen = lambda method, table: False
                self.lost += 1
            if due and not self.after_effect:
                raise ConnectionLostError("call lost")
            result = await method(table, *args, **keywords)
            if due:
                raise ConnectionLostError("answer lost")
            return result

        return call


@pytest.mark.parametrize("after_effect", [False, True], ids=["call lost", "answer lost"])
async def test_a_scope_whose_deletion_was_interrupted(api: Any, world: Any, after_effect: bool) -> None:
    """It is there as if nothing had happened, or the deletion goes on by itself; never does it go at the next start."""
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    losing = Losing(world.metadata)
    real, world.metadata = world.metadata, losing
    other = type(api)(await world.start(requests_deadline_s=REQUESTS_S))
    losing.after_effect = after_effect
    losing.chosen = lambda method, table: method == "put" and table == SCOPES_TABLE
    with pytest.raises(UnavailableError):
        await other.call("deleteScope", pb.ScopeInfo(scope="scope"))
    assert losing.lost == 1
    world.metadata = real
    await nothing_pending(world)
    found = await api.call("checkScopeExists", pb.ScopeInfo(scope="scope"))
    assert found.exists is not after_effect
    await world.start()
    await nothing_pending(world)
    assert (await api.call("checkScopeExists", pb.ScopeInfo(scope="scope"))).exists is not after_effect


async def test_a_refused_call_leaves_the_mark_of_another_controllers_workflow(api: Any, world: Any) -> None:
    await api.setup()
    await api.call("createReaderGroup", group())
    other = type(api)(await world.start(seed=2))
    held = asyncio.Event()
    real = world.segments.seal_segment

    async def seal_segment(name: str) -> None:
        await held.wait()
        await real(name)

    world.segments.seal_segment = seal_segment
    deleting = asyncio.ensure_future(api.call("deleteReaderGroup", GROUP))

    async def leaving() -> bool:
        found = await other.call("getReaderGroupConfig", GROUP)
        return bool(found.status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND)

    await until(leaving)
    stranger = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=OTHER_ID)
    refused = await other.call("deleteReaderGroup", stranger)
    assert refused.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND
    keys = [entry.key for entry in (await world.metadata.entries(PENDING_TABLE, 100, b""))[0]]
    assert f"group/scope/group/{api.controller.instance}".encode() in keys, "the deletion is not done"
    held.set()
    assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
    await nothing_pending(world)


@pytest.mark.parametrize(
    "error", [PermissionDeniedError("the token was refused"), RuntimeError("unforeseen")], ids=["refused", "unforeseen"]
)
async def test_a_call_whose_workflow_has_ended_succeeds_without_the_removal_of_its_mark(
    api: Any, world: Any, error: Exception
) -> None:
    await api.setup()
    refused = 0
    real = world.metadata.remove

    async def remove(table: str, keys: Any) -> None:
        nonlocal refused
        if table == PENDING_TABLE and keys[0][0].startswith(b"group/") and not refused:
            refused += 1
            raise error
        await real(table, keys)

    world.metadata.remove = remove
    made = await api.call("createReaderGroup", group())
    assert made.status == pb.CreateReaderGroupResponse.SUCCESS
    assert refused == 1
    assert (await api.call("deleteReaderGroup", GROUP)).status == pb.DeleteReaderGroupStatus.SUCCESS
    await nothing_pending(world)


async def test_a_group_whose_stream_has_too_many_subscribers(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.setup()
    monkeypatch.setattr(limits, "SUBSCRIBERS_PER_STREAM_MAX", 1)
    await api.call("createReaderGroup", group(readerGroupName="first"))
    with pytest.raises(OverloadedError, match="1 subscribers"):
        await api.call("createReaderGroup", group())
    assert (await api.call("getReaderGroupConfig", GROUP)).status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND
    loose = group(retentionType=0)
    assert (await api.call("createReaderGroup", loose)).status == pb.CreateReaderGroupResponse.SUCCESS
    with pytest.raises(OverloadedError, match="1 subscribers"):
        await api.call("updateReaderGroup", group())
    async with asyncio.timeout(DEADLINE_S):
        assert (await api.call("deleteReaderGroup", GROUP)).status == pb.DeleteReaderGroupStatus.SUCCESS
    assert await subscribers(api) == ["scope/first"]


async def test_two_creations_that_race_for_the_last_place(
    api: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes too late is undone, and holds up nothing."""
    await api.setup()
    monkeypatch.setattr(limits, "SUBSCRIBERS_PER_STREAM_MAX", 1)
    other = type(api)(await world.start(requests_deadline_s=REQUESTS_S))
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(
            api.call("createReaderGroup", group(readerGroupName="one")),
            other.call("createReaderGroup", group(readerGroupName="two")),
            return_exceptions=True,
        )
    made = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(made) == len(await subscribers(api)) == 1
    assert all(isinstance(answer, OverloadedError) for answer in answers if isinstance(answer, BaseException))
    await nothing_pending(world)


async def test_an_update_that_was_interrupted_leaves_no_subscriber(
    api: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next update takes back what the interrupted one did not."""
    await api.setup()
    for name in ("b", "c"):
        api.stream = name
        await api.call("createStream", api.config())
    await api.call("createReaderGroup", group(("b",)))
    dying = await world.start()
    reached = asyncio.Event()

    async def unsubscribe(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(groups, "unsubscribe", unsubscribe)
        first = asyncio.ensure_future(type(api)(dying).call("updateReaderGroup", group(("c",))))
        async with asyncio.timeout(DEADLINE_S):
            await reached.wait()
        await dying.close()
        await asyncio.gather(first, return_exceptions=True)
    last = await api.call("updateReaderGroup", group(("stream",), generation=1))
    assert last.status == pb.UpdateReaderGroupResponse.SUCCESS
    await nothing_pending(world)
    assert await subscribers(api, "b") == await subscribers(api, "c") == []
    assert await subscribers(api, "stream") == ["scope/group"]


async def test_a_late_step_of_an_older_generation_changes_no_subscription(api: Any, world: Any) -> None:
    await api.setup()
    controller = await world.start()
    context = controller._driver._context
    key = StreamKey("scope", "stream")
    await subscribe(context, key, "scope/group", GROUP_ID, 2, still_current, as_published)
    await subscribe(context, key, "scope/group", GROUP_ID, 1, still_current, as_published)
    found = await subscriber(context, key, "scope/group")
    assert found is not None
    assert found.generation == 2
    await unsubscribe(context, key, "scope/group", GROUP_ID, 1)
    assert await subscriber(context, key, "scope/group") == found
    await unsubscribe(context, key, "scope/group", GROUP_ID, 2)
    assert await subscriber(context, key, "scope/group") is None


async def test_a_creation_waits_for_a_deletion_by_another_controller(api: Any, world: Any) -> None:
    await api.setup()
    await api.call("createReaderGroup", group())
    other = type(api)(await world.start())
    held, begun = asyncio.Event(), asyncio.Event()
    real = world.segments.seal_segment

    async def seal_segment(name: str) -> None:
        begun.set()
        await held.wait()
        await real(name)

    world.segments.seal_segment = seal_segment
    deleting = asyncio.ensure_future(api.call("deleteReaderGroup", GROUP))
    await begun.wait()
    creating = asyncio.ensure_future(other.call("createReaderGroup", group(readerGroupId=OTHER_ID)))
    await asyncio.sleep(0.02)
    held.set()
    async with asyncio.timeout(DEADLINE_S):
        assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
        created = await creating
    assert created.status == pb.CreateReaderGroupResponse.SUCCESS
    assert created.config.readerGroupId == OTHER_ID
    await nothing_pending(world)


async def test_a_stream_that_the_segment_store_refuses_is_undone(
    api: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an earlier version, which did not check all fields."""
    await api.call("createScope", pb.ScopeInfo(scope="scope"))
    real = world.segments.create_segment

    async def create_segment(name: str, **fields: Any) -> None:
        if fields["target_rate"] < 0:
            raise BadRequestError("the rate is negative")
        await real(name, **fields)

    world.segments.create_segment = create_segment
    with monkeypatch.context() as unchecked:
        unchecked.setattr(convert, "check_config", lambda config: config)
        bad = api.config()
        bad.scalingPolicy.targetRate = -5
        async with asyncio.timeout(DEADLINE_S):
            await api.call("createStream", bad)
    assert not (await api.call("checkStreamExists", api.info)).exists
    assert (await api.call("createStream", api.config())).status == pb.CreateStreamStatus.SUCCESS
    async with asyncio.timeout(DEADLINE_S):
        deleted = await api.call("deleteScopeRecursive", pb.ScopeInfo(scope="scope"))
    assert deleted.status == pb.DeleteScopeStatus.SUCCESS
    await nothing_pending(world)
