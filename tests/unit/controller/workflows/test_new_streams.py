"""A creation takes its stream for a new one, and reads what exists when a write fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.common.errors import BadRequestError
from tailrace.common.names import MARK_PREFIX
from tailrace.common.real_ports import SystemEntropy
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.managers.streams import OtherIncarnationError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE, scope_table
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.scope_store import ScopeStore
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
MARK = StreamKey("scope", f"{MARK_PREFIX}stream")
SCOPE = pb.ScopeInfo(scope="scope")
IDLE_S = 60.0
CALLS_MAX = 100
QUIET = {"idle_s": IDLE_S, "look_s": 3600.0, "beat_s": 3600.0, "lapse_s": 7200.0}
QUICK = {"look_s": 0.01, "beat_s": 0.01, "lapse_s": 0.05, "rescan_s": 0.05, "requests_deadline_s": 0.1}
Status = pb.CreateStreamStatus


async def state_of(controller: Any, key: StreamKey) -> tuple[int, StreamState]:
    root = await controller.services.core.context.store.load(key)
    return root.incarnation, root.state


async def listed(api: Any) -> list[str]:
    found = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    return sorted(info.stream for info in found.streams)


async def test_another_controller_finds_that_the_stream_exists(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    await make_api(first).setup(2)
    api = make_api(second)
    assert (await api.call("createStream", api.config(2))).status == Status.STREAM_EXISTS
    assert (await api.call("createStream", api.config(3))).status == Status.STREAM_EXISTS
    assert await state_of(second, KEY) == (0, StreamState.ACTIVE)


async def test_a_mark_stream_that_was_there_before_its_stream_is_created_again(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    earlier = make_api(first, stream=MARK.stream)
    await earlier.setup()
    await earlier.call("sealStream", earlier.info)
    await earlier.call("deleteStream", earlier.info)
    api = make_api(second)
    assert (await api.call("createStream", api.config())).status == Status.SUCCESS
    assert await state_of(second, KEY) == (0, StreamState.ACTIVE)
    assert await state_of(second, MARK) == (1, StreamState.ACTIVE)


async def test_a_scope_whose_table_was_never_made_gets_it(world: Any, make_api: Any) -> None:
    controller = await world.start(idle_s=IDLE_S)
    api = make_api(controller)
    await api.call("createScope", SCOPE)
    owner = await controller.services.core.context.scopes.require("scope")
    await world.metadata.delete_table(scope_table("scope", owner.nonce))
    assert (await api.call("createStream", api.config())).status == Status.SUCCESS
    assert sorted(world.metadata.dump_table(scope_table("scope", owner.nonce))) == [
        f"s/{MARK.stream}".encode(),
        b"s/stream",
    ]


async def test_only_the_wanted_incarnation_is_created(world: Any, make_api: Any) -> None:
    first, second = await world.start(idle_s=IDLE_S), await world.start(idle_s=IDLE_S, seed=2)
    api = make_api(first)
    await api.setup()
    await api.call("sealStream", api.info)
    await api.call("deleteStream", api.info)
    streams = second.services.core.streams
    with pytest.raises(OtherIncarnationError, match=r"its next incarnation is 1, not 0"):
        await streams.create(KEY, StreamConfig(), incarnation=0)
    assert await streams.create(KEY, StreamConfig(), incarnation=1)
    assert await state_of(second, KEY) == (1, StreamState.ACTIVE)


async def test_a_scope_that_another_controller_has_deleted_gets_no_stream(world: Any, make_api: Any) -> None:
    """The one that creates the stream remembers the scope, and looks for it when the stream is listed."""
    api = make_api(await world.start(idle_s=IDLE_S))
    other = make_api(await world.start(idle_s=IDLE_S, seed=2))
    await api.call("createScope", SCOPE)
    await api.controller.services.core.context.scopes.require("scope")
    assert (await other.call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS
    assert (await api.call("createStream", api.config())).status == Status.SCOPE_NOT_FOUND
    assert world.segments.names("scope/") == []
    await other.call("createScope", SCOPE)
    assert (await api.call("createStream", api.config())).status == Status.SUCCESS
    assert await listed(api) == [MARK.stream, "stream"]


async def test_a_stream_exists_only_in_a_scope_that_is_there(world: Any, make_api: Any) -> None:
    """A stream of a scope whose deletion has begun is about to go."""
    api = make_api(await world.start(idle_s=IDLE_S))
    await api.setup()
    scopes = (await world.start(idle_s=IDLE_S, seed=2)).services.core.context.scopes
    await scopes.mark_deleting("scope", (await scopes.require("scope")).nonce, recursive=True)
    assert (await api.call("createStream", api.config())).status == Status.SCOPE_NOT_FOUND


@pytest.mark.parametrize("created", ["before the look", "after the look"])
async def test_a_late_listing_takes_back_no_mark_stream_that_exists(
    created: str, world: Any, make_api: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists a creation that another controller has undone, while that one creates the stream again."""
    slow, quick = make_api(await world.start(seed=1)), make_api(await world.start(seed=2))
    await slow.call("createScope", SCOPE)
    context = slow.controller.services.core.context
    put_new, load_scope, load_root = context.scopes.put_new, context.scopes.load, context.store.load
    made: list[str] = []

    async def create_again() -> None:
        made.append(created)
        assert (await quick.call("createStream", quick.config())).status == Status.SUCCESS

    async def put_late(*arguments: Any) -> Any:
        if not made:
            made.append("undone")
            world.segments.create_segment = refused
            assert (await quick.call("createStream", quick.config())).status == Status.SCOPE_NOT_FOUND
            del world.segments.create_segment
        return await put_new(*arguments)

    async def load_scope_late(scope: str) -> Any:
        if made == ["undone"] and created == "before the look":
            await create_again()
        return await load_scope(scope)

    async def load_root_late(key: StreamKey) -> Any:
        found = await load_root(key)
        if key == MARK and made == ["undone"] and created == "after the look":
            await create_again()
        return found

    monkeypatch.setattr(context.scopes, "put_new", put_late)
    monkeypatch.setattr(context.scopes, "load", load_scope_late)
    monkeypatch.setattr(context.store, "load", load_root_late)
    doing = asyncio.ensure_future(slow.call("createStream", slow.config()))

    async def is_made() -> bool:
        return made == ["undone", created] and doing.done()

    await wait_until(is_made)
    assert await state_of(quick.controller, KEY) == (1, StreamState.ACTIVE)
    assert await state_of(quick.controller, MARK) == (0, StreamState.ACTIVE)
    assert await listed(quick) == [MARK.stream, "stream"]
    assert len(world.segments.names(f"scope/{MARK.stream}/")) == 1


async def cut_short(world: Any, make_api: Any, wait_until: Any, crash: Any, call: int, prepare: Any) -> Any:
    """Create a stream, which ends at its n-th call to a store; another controller, whose API is returned, ends it."""
    api = make_api(await world.start(crash))
    await api.call("createScope", SCOPE)
    await prepare(world, api.controller.services.core.context.scopes)
    crash.at_call = crash.calls + call
    doing = asyncio.ensure_future(api.call("createStream", api.config()))
    while not doing.done() and not crash.crashed:  # noqa: ASYNC110 - the stores are plain data
        await asyncio.sleep(0)
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)
    await api.controller.close()
    heir = make_api(await world.start(seed=2, **QUICK))

    async def is_idle() -> bool:
        return not world.metadata.dump_table(PENDING_TABLE)

    await wait_until(is_idle)
    return heir


async def refuse(world: Any, scopes: Any) -> None:
    world.segments.create_segment = refused


async def mark(world: Any, scopes: Any) -> None:
    """Another controller marks the scope as being deleted; this one remembers it from before."""
    other = ScopeStore(world.metadata, world.clock, SystemEntropy())
    await other.mark_deleting("scope", (await scopes.require("scope")).nonce, recursive=False)


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
async def test_a_refused_creation_that_is_cut_short_leaves_nothing(
    after_effect: bool, world: Any, make_api: Any, make_crash: Any, wait_until: Any
) -> None:
    for call in range(1, CALLS_MAX):
        fresh, crash = type(world)(), make_crash(after_effect=after_effect)

        heir = await cut_short(fresh, make_api, wait_until, crash, call, refuse)
        assert await listed(heir) == [], f"cut short at call {call}"
        assert (await heir.call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS
        await fresh.close()
        if crash.calls < crash.at_call:
            assert call > 10
            return
    raise AssertionError(f"a creation makes more than {CALLS_MAX} calls")


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
async def test_a_creation_that_is_cut_short_in_a_scope_that_stays_lists_both_streams_or_none(
    after_effect: bool, world: Any, make_api: Any, make_crash: Any, wait_until: Any
) -> None:
    """The deletion of the scope is cancelled after the stream was listed; the creation takes its entries back."""
    for call in range(1, CALLS_MAX):
        fresh, crash = type(world)(), make_crash(after_effect=after_effect)

        heir = await cut_short(fresh, make_api, wait_until, crash, call, mark)
        scopes = heir.controller.services.core.context.scopes
        await scopes.unmark("scope", (await scopes.require_existing("scope")).nonce)
        there = (await heir.call("checkStreamExists", heir.info)).exists
        assert await listed(heir) == ([MARK.stream, "stream"] if there else []), f"cut short at call {call}"
        await fresh.close()
        if crash.calls < crash.at_call:
            assert call > 5
            return
    raise AssertionError(f"a creation makes more than {CALLS_MAX} calls")


class Hold:
    """Holds the n-th call to a store, before or after its effect, until it is let go; other calls go on."""

    def __init__(self, at_call: int, *, after_effect: bool) -> None:
        self.at_call, self.calls = at_call, -1
        self.after_effect = after_effect
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    def wrap(self, target: Any) -> Any:
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        self.calls += self.calls >= 0
        held = self.calls == self.at_call and not self.reached.is_set()
        if held:
            self.reached.set()
        if held and not self.after_effect:
            await self.go.wait()
        found = await call()
        if held and self.after_effect:
            await self.go.wait()
        return found


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("rpc", ["deleteScope", "deleteScopeRecursive"])
@pytest.mark.parametrize("held", ["creation", "deletion"])
@pytest.mark.parametrize("sole", [True, False], ids=["alone", "by another"])
async def test_a_scope_that_is_deleted_during_a_creation_has_the_stream_or_is_gone(
    sole: bool, held: str, rpc: str, after_effect: bool, world: Any, make_api: Any
) -> None:
    """Either one is held at each of its calls, while the other one goes on until it ends or waits."""
    outcomes = set()
    for at_call in range(1, CALLS_MAX):
        fresh = type(world)()
        hold = Hold(at_call, after_effect=after_effect)
        first = make_api(await fresh.start(hold, sole=sole, **QUIET))
        second = first if sole else make_api(await fresh.start(sole=sole, seed=2, **QUIET))
        await first.call("createScope", SCOPE)
        for api in (first, second):
            await api.controller.services.core.context.scopes.require("scope")
        calls = (("createStream", first.config()), (rpc, SCOPE))
        hold.calls = 0
        doing = asyncio.ensure_future(first.call(*calls[held == "deletion"]))
        reached = asyncio.ensure_future(hold.reached.wait())
        await asyncio.wait([doing, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        beside = asyncio.ensure_future(second.call(*calls[held == "creation"]))
        for _ in range(1000):  # far enough to end, or to wait for the other one
            await asyncio.sleep(0)
        hold.go.set()
        await asyncio.gather(doing, beside)
        exists = (await first.call("checkScopeExists", SCOPE)).exists
        there = (await first.call("checkStreamExists", first.info)).exists
        outcomes.add((exists, there))
        assert exists or not there, f"held at call {at_call}"
        await first.call("createScope", SCOPE)
        assert await listed(first) == ([MARK.stream, "stream"] if there else []), f"held at call {at_call}"
        assert len(fresh.segments.names("scope/")) == 2 * there
        await fresh.close()
        if not hold.reached.is_set():
            break
    assert at_call > 5
    assert outcomes <= ({(True, True), (False, False)} if rpc == "deleteScope" else {(False, False)})


async def refused(name: str, **settings: Any) -> None:
    raise BadRequestError(f"{name} is refused")
