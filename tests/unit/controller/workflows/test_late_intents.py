"""Calls about groups, tables and scopes whose intent is written after they failed, or after their controller died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from harness.interception import Call, Intercepted
from tailrace.common.errors import ConnectionLostError, DeadlineError, UnavailableError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, SCOPES_TABLE
from tailrace.rpc import controller_pb2 as pb

GROUP_ID = "11111111-2222-3333-4444-555555555555"
STRANGER = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID.replace("1", "9"))
GROUP = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID)
TABLE = pb.KeyValueTableInfo(scope="scope", kvtName="table")
REQUESTS_S = 2.0
"""For how long an intent may be written after its call failed."""
DEADLINE_S = 120.0


class Late:
    """Fails one write that matches, whose effect comes when it is let go."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.due: Callable[[str, bytes], bool] | None = None
        self.lands = asyncio.Event()
        self.landing: asyncio.Future[Any] | None = None
        self.answers = False
        """Whether the call waits for the effect and succeeds, in place of failing before."""

    def wrap(self, target: Any) -> Any:
        """The store with the failure in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if name != "put" or self.due is None or not self.due(arguments[0], arguments[1][0].key):
            return await call()
        self.due = None
        self.landing = asyncio.ensure_future(self._land(call))
        if self.answers:
            return await self.landing
        raise self._error

    async def _land(self, call: Call) -> Any:
        await self.lands.wait()
        return await call()

    async def land(self) -> None:
        """Let the effect come."""
        assert self.landing is not None
        self.lands.set()
        await self.landing


class Case(NamedTuple):
    """A call, its write of an intent, and what its workflow comes to."""

    rpc: str
    request: Any
    writes: Callable[[str, bytes], bool]
    has_ended: Callable[[Any, Any], Awaitable[bool]]


async def subscribers(api: Any, stream: str = "stream") -> list[str]:
    found = await api.call("listSubscribers", pb.StreamInfo(scope="scope", stream=stream))
    return list(found.subscribers)


async def group_is_gone(api: Any, world: Any) -> bool:
    return not await subscribers(api) and world.segments.names("scope/_RGgroup") == []


async def group_reads_other(api: Any, world: Any) -> bool:
    return (await subscribers(api), await subscribers(api, "other")) == ([], ["scope/group"])


async def new_group_is_there(api: Any, world: Any) -> bool:
    return "scope/new" in await subscribers(api) and world.segments.names("scope/_RGnew") != []


async def table_is_gone(api: Any, world: Any) -> bool:
    return bool(world.segments.names("scope/table") == [])


async def scope_is_gone(api: Any, world: Any) -> bool:
    exists = (await api.call("checkScopeExists", pb.ScopeInfo(scope="scope"))).exists
    return not exists and world.segments.names("scope/") == []


def group(stream: str = "stream", **fields: Any) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream))]
    named = {"readerGroupName": "group", "readerGroupId": GROUP_ID, "retentionType": 1, **fields}
    return pb.ReaderGroupConfiguration(scope="scope", startingStreamCuts=cuts, endingStreamCuts=cuts, **named)


def names_entry(entry: bytes) -> Callable[[str, bytes], bool]:
    return lambda table, key: table not in (PENDING_TABLE, SCOPES_TABLE) and key == entry


CASES = {
    "group deleted": Case("deleteReaderGroup", GROUP, names_entry(b"g/group"), group_is_gone),
    "group updated": Case("updateReaderGroup", group("other"), names_entry(b"g/group"), group_reads_other),
    "group created": Case("createReaderGroup", group(readerGroupName="new"), names_entry(b"g/new"), new_group_is_there),
    "table deleted": Case("deleteKeyValueTable", TABLE, names_entry(b"k/table"), table_is_gone),
    "scope deleted": Case(
        "deleteScopeRecursive", pb.ScopeInfo(scope="scope"), lambda table, _: table == SCOPES_TABLE, scope_is_gone
    ),
}


async def start(world: Any, make_api: Any, late: Late, **settings: Any) -> Any:
    """A controller whose writes may be late, with two streams, a group and a table. Its API."""
    api = make_api(await world.start(late, **{"sole": True, "requests_deadline_s": REQUESTS_S, **settings}))
    await api.setup()
    other = make_api(api.controller, stream="other")
    assert (await other.call("createStream", other.config())).status == pb.CreateStreamStatus.SUCCESS
    assert (await api.call("createReaderGroup", group())).status == pb.CreateReaderGroupResponse.SUCCESS
    table = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=4)
    assert (await api.call("createKeyValueTable", table)).status == pb.CreateKeyValueTableStatus.SUCCESS
    return api


def marks(world: Any) -> list[bytes]:
    """Those of groups, tables and scopes."""
    return [key for key in world.metadata.dump_table(PENDING_TABLE) if not key.startswith(b"stream/")]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)


async def until_ended(case: Case, api: Any, world: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await case.has_ended(api, world):  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)
    await until(lambda: not marks(world))


@pytest.mark.parametrize("error", [DeadlineError("no reply"), ConnectionLostError("lost")], ids=["deadline", "lost"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_late_intent_is_carried_out(world: Any, make_api: Any, case: Case, error: Exception) -> None:
    late = Late(error)
    api = await start(world, make_api, late)
    late.due = case.writes
    with pytest.raises(UnavailableError):
        await api.call(case.rpc, case.request)
    await until(lambda: api.controller.load().others == 0)  # it has looked, and found no intent
    await late.land()
    await until_ended(case, api, world)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_late_intent_of_a_dead_controller_is_carried_out(world: Any, make_api: Any, case: Case) -> None:
    late = Late(DeadlineError("no reply"))
    api = await start(world, make_api, late)
    late.due = case.writes
    with pytest.raises(UnavailableError):
        await api.call(case.rpc, case.request)
    await api.controller.close()
    assert len(marks(world)) == 1
    api = make_api(await world.start(seed=2, sole=True, requests_deadline_s=REQUESTS_S))
    await until(lambda: api.controller.load().others == 0)  # it has looked, and found no intent
    await late.land()
    await until_ended(case, api, world)


async def test_calls_go_on_while_an_intent_may_still_be_written(world: Any, make_api: Any) -> None:
    """Also with one place, which the group has; a call that is refused takes no mark away."""
    late = Late(DeadlineError("no reply"))
    api = await start(world, make_api, late, entities_max=1, requests_deadline_s=3600.0, rescan_s=0.01)
    late.due = names_entry(b"g/group")
    with pytest.raises(DeadlineError):
        await api.call("deleteReaderGroup", GROUP)
    refused = await api.call("deleteReaderGroup", STRANGER)
    assert refused.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND
    await asyncio.sleep(0.1)  # for some looks through the pending work
    assert len(marks(world)) == 1
    assert (await api.call("deleteReaderGroup", GROUP)).status == pb.DeleteReaderGroupStatus.SUCCESS
    assert await group_is_gone(api, world)
    assert len(marks(world)) == 1, "the first call's intent may still be written"


async def test_a_group_that_was_marked_long_ago_is_marked_again_before_its_workflow(world: Any, make_api: Any) -> None:
    """Another controller took this one for dead while it wrote the intent, found none, and removed the mark."""
    late = Late(DeadlineError("not raised"))
    late.answers = True
    api = await start(world, make_api, late)
    late.due = names_entry(b"g/group")
    deleting = asyncio.ensure_future(api.call("deleteReaderGroup", GROUP))
    await until(lambda: late.landing is not None)
    assert len(marks(world)) == 1
    other = await world.start(seed=2, sole=True, requests_deadline_s=0.05)
    await until(lambda: not marks(world))
    await other.close()
    seal, goes_on = world.segments.seal_segment, asyncio.Event()

    async def sealing(name: str) -> None:
        await goes_on.wait()
        await seal(name)

    world.segments.seal_segment = sealing
    await late.land()
    await until(lambda: bool(marks(world)))
    goes_on.set()
    assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
    await until(lambda: not marks(world))
