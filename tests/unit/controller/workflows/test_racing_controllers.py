"""Two controllers change the same group, table or scope: one is held at a chosen call while the other goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, SCOPES_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import PendingRecord, ScopeStreamEntry, encode
from tailrace.rpc import controller_pb2 as pb

SCOPE = pb.ScopeInfo(scope="scope")
GROUP_ID = "11111111-2222-3333-4444-555555555555"
GROUP = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID)
TABLE = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=4)
DEADLINE_S = 120.0

Match = Callable[[str, tuple[Any, ...]], bool]


class Gate:
    """Holds a controller at its first call that matches, before or after its effect, until it is opened."""

    def __init__(self) -> None:
        self._match: Match = lambda name, arguments: False
        self._after = False
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    def hold(self, match: Match, *, after: bool = False) -> None:
        """Hold at such a call from now on."""
        self._match, self._after = match, after
        self.reached.clear()
        self.open.clear()

    def wrap(self, target: Any) -> Any:
        """The store with the gate in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        await self.at(name, arguments, after=False)
        result = await call()
        await self.at(name, arguments, after=True)
        return result

    async def at(self, name: str, arguments: tuple[Any, ...], *, after: bool) -> None:
        """One call."""
        if after == self._after and not self.reached.is_set() and self._match(name, arguments):
            self.reached.set()
            await self.open.wait()


class Pair:
    """The held controller and the other one."""

    def __init__(self, gate: Gate, held: Any, other: Any) -> None:
        self.gate, self.held, self.other = gate, held, other
        self._tasks: list[asyncio.Task[Any]] = []

    async def until_held(self, call: str, request: Any) -> asyncio.Task[Any]:
        """Begin a call of the held controller, and wait until it is held."""
        task = asyncio.ensure_future(self.held.call(call, request))
        async with asyncio.timeout(DEADLINE_S):
            await self.gate.reached.wait()
        return task


@pytest.fixture
async def pair(world: Any, make_api: Any) -> Pair:
    gate = Gate()
    held = make_api(await world.start(gate, seed=1))
    return Pair(gate, held, make_api(await world.start(seed=2)))


@pytest.fixture(autouse=True)
def opened(pair: Pair) -> Iterator[None]:
    """No controller is held when it is closed."""
    yield
    pair.gate.open.set()


def group(*streams: str, **fields: Any) -> pb.ReaderGroupConfiguration:
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream=stream)) for stream in streams]
    return pb.ReaderGroupConfiguration(
        scope="scope",
        readerGroupName="group",
        readerGroupId=GROUP_ID,
        retentionType=1,
        startingStreamCuts=cuts,
        endingStreamCuts=cuts,
        **fields,
    )


async def listed(api: Any) -> list[str]:
    found = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    return sorted(info.stream for info in found.streams)


async def subscribers(api: Any, stream: str) -> list[str]:
    return list((await api.call("listSubscribers", pb.StreamInfo(scope="scope", stream=stream))).subscribers)


async def quiet(task: asyncio.Task[Any]) -> Any:
    """Wait for a call that may fail."""
    async with asyncio.timeout(DEADLINE_S):
        return (await asyncio.gather(task, return_exceptions=True))[0]


def puts(table: str, key: bytes) -> Match:
    def match(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "put" and arguments[0].startswith(table) and any(put.key == key for put in arguments[1])

    return match


@pytest.mark.parametrize(
    ("call", "config", "key"),
    [("createKeyValueTable", TABLE, b"k/table"), ("createReaderGroup", group("stream"), b"g/group")],
)
async def test_an_addition_to_a_deleted_scope_leaves_the_scope_of_that_name_alone(
    pair: Pair, call: str, config: Any, key: bytes
) -> None:
    await pair.held.setup(1)
    pair.gate.hold(puts("_system/_tables/scope/", key), after=True)
    late = await pair.until_held(call, config)
    await pair.other.call("deleteScopeRecursive", SCOPE)
    await pair.other.setup(1)
    assert (await pair.other.call(call, config)).status == 0
    pair.gate.open.set()
    await quiet(late)
    scopes = pair.other.controller.services.core.context.scopes
    assert [name async for name in _entries(scopes, key.decode())] == [key.decode()]


async def _entries(scopes: Any, name: str) -> Any:
    for found in await scopes.list_all("scope", name[:2]):
        yield name[:2] + found


@pytest.mark.parametrize("held_at", ["before its root", "at its segment"])
async def test_a_group_is_deleted_while_its_state_stream_is_created(pair: Pair, held_at: str) -> None:
    await pair.held.call("createScope", SCOPE)

    def at_segment(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "create_segment" and "_RGgroup" in arguments[0]

    at_root = puts("_system/_tables/b", b"scope/_RGgroup")
    pair.gate.hold(at_root if held_at == "before its root" else at_segment)
    late = await pair.until_held("createReaderGroup", group())
    deleted = await pair.other.call("deleteReaderGroup", GROUP)
    assert deleted.status == pb.DeleteReaderGroupStatus.SUCCESS
    late.cancel()
    pair.gate.open.set()
    await quiet(late)
    entities = pair.held.controller._entities
    async with asyncio.timeout(DEADLINE_S):
        while entities.active:  # noqa: ASYNC110 - the step of the call that was cancelled goes on
            await asyncio.sleep(0.001)
    assert await listed(pair.other) == []
    assert (await pair.other.call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS


async def test_a_table_is_created_while_another_controller_deletes_it(pair: Pair) -> None:
    await pair.held.call("createScope", SCOPE)
    await pair.held.call("createKeyValueTable", TABLE)
    pair.gate.hold(lambda name, arguments: name == "delete_table" and "kvtable" in arguments[0])
    deleting = await pair.until_held("deleteKeyValueTable", pb.KeyValueTableInfo(scope="scope", kvtName="table"))
    created = await pair.other.call("createKeyValueTable", TABLE)
    assert created.status == pb.CreateKeyValueTableStatus.SUCCESS
    pair.gate.open.set()
    await quiet(deleting)
    found = await pair.other.call("getKeyValueTableConfiguration", pb.KeyValueTableInfo(scope="scope", kvtName="table"))
    assert found.status == pb.KeyValueTableConfigResponse.SUCCESS


async def test_a_scope_whose_deletion_was_cancelled_is_not_removed(pair: Pair) -> None:
    """The other controller found it in use for a moment, and cancelled the deletion that both ran."""
    await pair.held.call("createScope", SCOPE)
    context = pair.other.controller.services.core.context
    record = await context.scopes.load("scope")
    reads: list[str] = []

    def reads_to_remove(name: str, arguments: tuple[Any, ...]) -> bool:
        if arguments[:1] == (SCOPES_TABLE,) and (name == "put" or reads):
            reads.append(name)
        return len(reads) == 4  # the mark; then the step reads whether it lives and is marked, and what to remove

    pair.gate.hold(reads_to_remove)
    deleting = await pair.until_held("deleteScope", SCOPE)
    assert reads == ["put", "get", "get", "get"]
    version = await context.scopes.put_entry("scope", record, "s/x", ScopeStreamEntry(), -1)
    await pair.other.controller._entities._steps["scope"]("scope", record.nonce.hex())
    await context.scopes.remove_entry("scope", record.nonce, "s/x", version)
    assert (await pair.other.call("checkScopeExists", SCOPE)).exists
    pair.gate.hold(lambda name, arguments: name == "remove" and arguments[0] == SCOPES_TABLE)
    pair.gate.open.set()
    answer = await quiet(deleting)
    assert answer.status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
    assert (await pair.other.call("checkScopeExists", SCOPE)).exists


@pytest.mark.parametrize("then", ["updated", "deleted", "being deleted"])
async def test_a_late_update_of_a_group_leaves_no_subscription(
    pair: Pair, world: Any, make_api: Any, then: str
) -> None:
    await pair.held.setup(1)
    await pair.held.call("createStream", make_api(pair.held.controller, stream="two").config(1))
    await pair.held.call("createReaderGroup", group("stream"))
    pair.gate.hold(puts("_system/_tables/b", b"scope/two/s/0/scope/group"))
    late = await pair.until_held("updateReaderGroup", group("stream", "two"))
    if then == "updated":
        updated = await pair.other.call("updateReaderGroup", group("stream", generation=1))
        assert (updated.status, updated.generation) == (pb.UpdateReaderGroupResponse.SUCCESS, 2)
    else:
        unsubscribed, going_on = asyncio.Event(), asyncio.Event()
        real = world.segments.seal_segment

        async def seal_segment(name: str) -> None:
            unsubscribed.set()
            await going_on.wait()
            await real(name)

        world.segments.seal_segment = seal_segment
        deleting = asyncio.ensure_future(pair.other.call("deleteReaderGroup", GROUP))
        await unsubscribed.wait()
        if then == "deleted":
            going_on.set()
            assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
        else:
            entities = pair.held.controller._entities
            failed = entities.failed_steps
            pair.gate.open.set()
            while entities.failed_steps == failed and entities.active:  # noqa: ASYNC110 - its step is late
                await asyncio.sleep(0.001)
            going_on.set()
            assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
    pair.gate.open.set()
    await quiet(late)
    assert await subscribers(pair.other, "two") == []
    assert await subscribers(pair.other, "stream") == (["scope/group"] if then == "updated" else [])


@pytest.mark.parametrize("marked", ["before it looks", "after it looked"])
async def test_a_refused_call_takes_no_mark_of_a_workflow_that_begins(pair: Pair, world: Any, marked: str) -> None:
    """The refused one is another controller's, and the workflow has not persisted its intent."""
    await pair.held.setup(1)
    await pair.held.call("createReaderGroup", group("stream"))
    gate, pair.gate = pair.gate, Gate()
    other = pair.other
    gate.hold(lambda name, arguments: name == "get" and arguments[0] == PENDING_TABLE, after=True)
    refused = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=GROUP_ID.replace("1", "2"))
    if marked == "after it looked":
        calling = asyncio.ensure_future(pair.held.call("deleteReaderGroup", refused))
        await gate.reached.wait()
    holding, begun = asyncio.Event(), asyncio.Event()
    scopes = other.controller.services.core.context.scopes
    real = scopes.change

    async def change(*arguments: Any) -> Any:
        begun.set()
        await holding.wait()
        return await real(*arguments)

    scopes.change = change
    deleting = asyncio.ensure_future(other.call("deleteReaderGroup", GROUP))
    await begun.wait()
    gate.open.set()
    if marked != "after it looked":
        calling = asyncio.ensure_future(pair.held.call("deleteReaderGroup", refused))
    assert (await calling).status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND
    entities = pair.held.controller._entities
    async with asyncio.timeout(DEADLINE_S):
        while entities.active:  # noqa: ASYNC110 - the refused call may resume what it found
            await asyncio.sleep(0.001)
    assert [key for key in world.metadata.dump_table(PENDING_TABLE) if key.startswith(b"group/")]
    holding.set()
    assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS
    assert not [key for key in world.metadata.dump_table(PENDING_TABLE) if key.startswith(b"group/")]


async def test_a_controller_that_starts_takes_no_mark_of_a_workflow_that_begins(
    pair: Pair, world: Any, wait_until: Any
) -> None:
    await pair.held.setup(1)
    await pair.held.call("createReaderGroup", group("stream"))
    holding, begun = asyncio.Event(), asyncio.Event()
    scopes = pair.other.controller.services.core.context.scopes
    real = scopes.change

    async def change(*arguments: Any) -> Any:
        begun.set()
        await holding.wait()
        return await real(*arguments)

    scopes.change = change
    deleting = asyncio.ensure_future(pair.other.call("deleteReaderGroup", GROUP))
    await begun.wait()
    started = await world.start(seed=5)

    async def adopted() -> bool:
        return not started._entities.active

    await wait_until(adopted)
    assert [key for key in world.metadata.dump_table(PENDING_TABLE) if key.startswith(b"group/")]
    holding.set()
    assert (await deleting).status == pb.DeleteReaderGroupStatus.SUCCESS


async def test_marks_of_dead_controllers_and_of_earlier_versions_end(world: Any, wait_until: Any) -> None:
    """A mark of an earlier version had no controller in its key."""
    left = {b"group/scope/group": "", b"group/scope/other/0000000000000001": "0000000000000001"}
    for key, instance in left.items():
        _, scope, name, *_ = key.decode().split("/")
        record = PendingRecord("group", scope, name, instance)
        await world.metadata.put(PENDING_TABLE, [Put(key, encode(record), UNCONDITIONAL)])
    await world.start(seed=3, sole=True, look_s=0.01, rescan_s=0.02, requests_deadline_s=2.0)

    async def ended() -> bool:
        return not any(key.startswith(b"group/") for key in world.metadata.dump_table(PENDING_TABLE))

    await wait_until(ended)
