"""A controller that stood still goes on with a workflow that another one has finished: it touches nothing newer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from harness.interception import Call, Intercepted
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, OverloadedError, UnavailableError
from tailrace.controller.metadata.metadata_store import CONTROLLERS_TABLE, PENDING_TABLE
from tailrace.controller.metadata.records import StreamRecord, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc import operator_pb2 as pb_operator

SCOPE = pb.ScopeInfo(scope="scope")
TABLE = pb.KeyValueTableInfo(scope="scope", kvtName="table")
TXN = pb.TxnRequest(streamInfo=pb.StreamInfo(scope="scope", stream="stream"), txnId=pb.TxnId(highBits=0, lowBits=0))
CALLS_MAX = 200
"""More calls than any action makes; one that makes as many would not be searched to its end."""
QUIET_S = 0.03
"""Longer than the pause before a step that failed is repeated."""


class Stall:
    """Holds a controller at its n-th call to a store, before the call has its effect, until it is let go."""

    def __init__(self, at_call: int) -> None:
        self._at_call = at_call
        self.calls = -1
        """Since `begin`; negative before."""
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def begin(self) -> None:
        """Count from now on."""
        self.calls = 0

    def wrap(self, target: Any) -> Any:
        """The store with the stall in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if CONTROLLERS_TABLE not in arguments[:1]:  # heartbeats come by time, not by what is done
            await self.at()
        return await call()

    async def at(self) -> None:
        """One call."""
        if self.calls < 0:
            return
        self.calls += 1
        if self.calls >= self._at_call:
            self.reached.set()
            await self.go.wait()


class Twins:
    """A controller that is paused at some call of `act`, and one that replaces it."""

    def __init__(self, world: Any, make_api: Any) -> None:
        self._world = world
        self._make_api = make_api

    async def stand_still(self, at_call: int, prepare: Any, act: Any) -> tuple[Any, Stall, asyncio.Task[Any]] | None:
        """(the successor, the stall, what the zombie is doing); None when `act` makes fewer calls."""
        stall = Stall(at_call)
        zombie = self._make_api(await self._world.start(stall, seed=1))
        await prepare(zombie)
        stall.begin()
        doing = asyncio.ensure_future(act(zombie))
        reached = asyncio.ensure_future(stall.reached.wait())
        await asyncio.wait([doing, reached], return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if not stall.reached.is_set():
            await doing
            return None
        return self._make_api(await self._world.start(seed=2)), stall, doing

    @staticmethod
    async def wake(stall: Stall, doing: asyncio.Task[Any]) -> None:
        """Let the zombie go on until it makes no more calls."""
        stall.go.set()
        await asyncio.gather(doing, return_exceptions=True)
        before = -1
        while before != stall.calls:
            before = stall.calls
            await asyncio.sleep(QUIET_S)


class Zombies:
    """Stops a controller once at each call to a store that an action makes, in a world of its own each time."""

    def __init__(self, world: Any, make_api: Any) -> None:
        self._make_world = type(world)
        self._make_api = make_api

    async def at_each_call(self, prepare: Any, act: Any, check: Any, at_least: int) -> int:
        """Run `check(api, world, stall, doing)` with the successor at each call; returns how many calls that were.

        `at_least`: how many calls the action is known to make; fewer would show that the stall misses some.
        """
        for at_call in range(1, CALLS_MAX):
            world = self._make_world()
            try:
                begun = await Twins(world, self._make_api).stand_still(at_call, prepare, act)
                if begun is None:
                    stalled = at_call - 1
                    print(f"stopped at each of {stalled} calls")
                    assert stalled >= at_least, f"the controller was stopped at {stalled} calls only"
                    return stalled
                api, stall, doing = begun
                await check(api, world, stall, doing)
            except Exception as error:
                error.add_note(f"stopped at call {at_call}")
                raise
            finally:
                await world.close()
        raise AssertionError(f"the action makes more than {CALLS_MAX} calls")


@pytest.fixture
def zombies(world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch) -> Zombies:
    """See `Zombies`. A step that fails is repeated at once, so that `Twins.wake` sees that, too."""
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_INITIAL_S", 0.002)
    monkeypatch.setattr(limits, "WORKFLOW_BACKOFF_MAX_S", 0.005)
    return Zombies(world, make_api)


def group(**fields: Any) -> pb.ReaderGroupConfiguration:
    """A group that subscribes to the stream."""
    cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream="stream"))]
    return pb.ReaderGroupConfiguration(
        scope="scope",
        readerGroupName="group",
        retentionType=1,
        startingStreamCuts=cuts,
        endingStreamCuts=cuts,
        **fields,
    )


async def listed(api: Any) -> list[str]:
    """Streams of the scope, internal ones too."""
    found = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    return sorted(info.stream for info in found.streams)


async def sealed(api: Any) -> None:
    """A stream that can be deleted."""
    await api.setup(2, tags=pb.Tags(tag=["old"]))
    await api.begin()  # the seal aborts it
    await api.call("sealStream", api.info)


async def test_a_late_deletion_leaves_the_stream_alone_that_was_created_again(zombies: Zombies) -> None:
    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await api.call("deleteStream", api.info)
        await api.call("createStream", api.config(2, tags=pb.Tags(tag=["new"])))
        await api.call("createReaderGroup", group())
        note = pb.TimestampFromWriter(
            writer="writer", timestamp=7, position=pb.StreamCut(streamInfo=api.info, cut={(await api.current())[0]: 0})
        )
        await api.call("noteTimestampFromWriter", note)
        await Twins.wake(stall, doing)
        assert await listed(api) == ["_MARK_RGgroup", "_MARKstream", "_RGgroup", "stream"]
        assert list((await api.call("listSubscribers", api.info)).subscribers) == ["scope/group"]
        assert (await api.call("removeWriter", pb.RemoveWriterRequest(writer="writer", stream=api.info))).result == 0
        assert (await api.call("getStreamConfiguration", api.info)).tags.tag == ["new"]
        segments = world.segments.names("scope/_MARKstream")
        assert len(segments) == 1, "the new stream has lost its mark stream"
        assert (await world.tagged("new"), await world.tagged("old")) == (["stream"], [])

    await zombies.at_each_call(sealed, lambda api: api.call("deleteStream", api.info), check, 26)


async def test_a_late_creation_leaves_nothing_of_a_stream_that_was_deleted(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.call("createScope", SCOPE)

    gone = 0

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        nonlocal gone
        await api.call("createStream", api.config(2))
        await api.call("sealStream", api.info)
        await api.call("deleteStream", api.info)
        doing.cancel()  # the caller went away; the workflow goes on
        await Twins.wake(stall, doing)
        if not (await api.call("checkStreamExists", api.info)).exists:  # else it was created by the late call itself
            gone += 1
            assert await listed(api) == []
            assert world.segments.names("scope/") == []
            assert (await api.call("deleteScope", SCOPE)).status == pb.DeleteScopeStatus.SUCCESS

    await zombies.at_each_call(prepare, lambda api: api.call("createStream", api.config(2)), check, 10)
    print(f"the stream was gone afterwards in {gone} cases")
    assert gone >= 1


async def test_a_late_update_brings_no_old_tags_back(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.setup(1, tags=pb.Tags(tag=["a"]))

    def update(api: Any, tag: str) -> Any:
        return api.call("updateStream", api.config(1, tags=pb.Tags(tag=[tag])))

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await update(api, "c")
        await Twins.wake(stall, doing)
        tag = (await api.call("getStreamConfiguration", api.info)).tags.tag[0]
        for asked in "abc":
            indexed = await world.tagged(asked)
            assert bool(indexed) == (asked == tag), f"the stream has tag {tag}, and is indexed for {asked}: {indexed}"
            request = pb.StreamsInScopeWithTagRequest(scope=SCOPE, tag=asked)
            found = (await api.call("listStreamsInScopeForTag", request)).streams
            assert bool(found) == (asked == tag), f"the stream has tag {tag}, and is listed for {asked}: {found}"

    await zombies.at_each_call(prepare, lambda api: update(api, "b"), check, 10)


async def test_a_late_update_brings_no_old_policy_back(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.setup(1)

    def update(api: Any, rate: int) -> Any:
        policy = pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC, targetRate=rate, scaleFactor=2, minNumSegments=1
        )
        return api.call("updateStream", pb.StreamConfig(streamInfo=api.info, scalingPolicy=policy))

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        async with asyncio.timeout(120):
            # It is refused while the other update is not done.
            while (await update(api, 300)).status != pb.UpdateStreamStatus.SUCCESS:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await Twins.wake(stall, doing)
        rate = (await api.call("getStreamConfiguration", api.info)).scalingPolicy.targetRate
        measured = {
            found.target_rate for name, found in world.segments.segments.items() if name.startswith("scope/stream/")
        }
        assert measured == {rate}, f"the stream scales at {rate}, its segments measure for {measured}"

    await zombies.at_each_call(prepare, lambda api: update(api, 200), check, 9)


async def test_a_late_deletion_leaves_the_group_alone_that_was_created_again(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.setup(1)
        await api.call("createReaderGroup", group())

    def delete(api: Any) -> Any:
        info = pb.ReaderGroupInfo(scope="scope", readerGroup="group")
        return api.call("deleteReaderGroup", info)

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await delete(api)
        await api.call("createReaderGroup", group())
        doing.cancel()
        await Twins.wake(stall, doing)
        config = await api.call("getReaderGroupConfig", pb.ReaderGroupInfo(scope="scope", readerGroup="group"))
        assert config.status == pb.ReaderGroupConfigResponse.SUCCESS
        assert "_RGgroup" in await listed(api)
        state = pb.StreamInfo(scope="scope", stream="_RGgroup")
        assert (await api.call("getCurrentSegments", state)).segmentRanges, "the new group's state is sealed"
        assert list((await api.call("listSubscribers", api.info)).subscribers) == ["scope/group"]

    await zombies.at_each_call(prepare, delete, check, 45)


async def test_a_late_creation_leaves_nothing_of_a_group_that_was_deleted(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.setup(1)

    info = pb.ReaderGroupInfo(scope="scope", readerGroup="group")
    gone = 0

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        nonlocal gone
        await api.call("createReaderGroup", group())
        await api.call("deleteReaderGroup", info)
        doing.cancel()
        await Twins.wake(stall, doing)
        whole = (await api.call("getReaderGroupConfig", info)).status == pb.ReaderGroupConfigResponse.SUCCESS
        gone += not whole  # else it was created by the late call itself
        assert ("_RGgroup" in await listed(api)) == whole
        assert list((await api.call("listSubscribers", api.info)).subscribers) == ["scope/group"] * whole

    await zombies.at_each_call(prepare, lambda api: api.call("createReaderGroup", group()), check, 30)
    print(f"the group was gone afterwards in {gone} cases")
    assert gone >= 1


@pytest.mark.parametrize(("late", "calls"), [("create", 45), ("update", 30)])
async def test_a_late_group_step_leaves_the_subscription_alone_of_the_group_that_was_created_again(
    late: str, calls: int, zombies: Zombies
) -> None:
    """Without it nothing would hold back retention for the new group, which has published what it has read."""
    old, new = (f"{digit * 8}-1111-1111-1111-111111111111" for digit in "12")
    info = pb.ReaderGroupInfo(scope="scope", readerGroup="group")
    other = pb.StreamInfo(scope="scope", stream="other")
    again = 0

    def of_two_streams(group_id: str) -> pb.ReaderGroupConfiguration:
        config = group(readerGroupId=group_id)
        for cuts in (config.startingStreamCuts, config.endingStreamCuts):
            cuts.append(pb.StreamCut(streamInfo=other))
        return config

    async def prepare(api: Any) -> None:
        await api.setup(1)
        config = api.config(1)
        config.streamInfo.CopyFrom(other)
        await api.call("createStream", config)
        if late == "update":
            await api.call("createReaderGroup", of_two_streams(old))

    def act(api: Any) -> Any:
        name = "updateReaderGroup" if late == "update" else "createReaderGroup"
        return api.call(name, of_two_streams(old))

    async def publish(api: Any, stream: pb.StreamInfo, offset: int) -> int:
        cut = pb.StreamCut(streamInfo=stream, cut={0: offset})
        request = pb.SubscriberStreamCut(subscriber="scope/group", readerGroupId=new, streamCut=cut)
        return int((await api.call("updateSubscriberStreamCut", request)).status)

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        nonlocal again
        await api.call("deleteReaderGroup", info)
        assert (await api.call("createReaderGroup", of_two_streams(new))).config.readerGroupId == new
        for stream in (api.info, other):
            world.segments.append(f"scope/{stream.stream}/0.#epoch.0", b"x" * 100)
            assert await publish(api, stream, 7) == pb.UpdateSubscriberStatus.SUCCESS
        doing.cancel()
        await Twins.wake(stall, doing)
        assert (await api.call("getReaderGroupConfig", info)).config.readerGroupId == new
        again += 1
        for stream in (api.info, other):
            assert list((await api.call("listSubscribers", stream)).subscribers) == ["scope/group"]
            asked = pb_operator.SubscriberCutRequest(scope="scope", stream=stream.stream, subscriber="scope/group")
            assert dict((await api.call("getSubscriberCut", asked)).cut) == {0: 7}, "its cut is lost"
            assert await publish(api, stream, 9) == pb.UpdateSubscriberStatus.SUCCESS

    stalled = await zombies.at_each_call(prepare, act, check, calls)
    assert again == stalled


async def test_a_late_deletion_leaves_the_table_alone_that_was_created_again(zombies: Zombies) -> None:
    config = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=2, primaryKeyLength=4)

    async def prepare(api: Any) -> None:
        await api.call("createScope", SCOPE)
        await api.call("createKeyValueTable", config)

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await api.call("deleteKeyValueTable", TABLE)
        await api.call("createKeyValueTable", config)
        before = world.segments.names("scope/table_kvtable/")
        doing.cancel()
        await Twins.wake(stall, doing)
        if (await api.call("getKeyValueTableConfiguration", TABLE)).status == pb.KeyValueTableConfigResponse.SUCCESS:
            assert world.segments.names("scope/table_kvtable/") == before
        else:
            raise AssertionError("the new table is gone")

    await zombies.at_each_call(prepare, lambda api: api.call("deleteKeyValueTable", TABLE), check, 12)


async def test_a_late_deletion_leaves_the_scope_alone_that_was_created_again(zombies: Zombies) -> None:
    table = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=1, primaryKeyLength=4)

    async def fill(api: Any) -> None:
        await api.setup(1)
        await api.call("createReaderGroup", group())
        await api.call("createKeyValueTable", table)

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await api.call("deleteScopeRecursive", SCOPE)
        await fill(api)
        before = world.segments.names("scope/")
        doing.cancel()
        await Twins.wake(stall, doing)
        assert await listed(api) == ["_MARK_RGgroup", "_MARKstream", "_RGgroup", "stream"]
        assert world.segments.names("scope/") == before

    await zombies.at_each_call(fill, lambda api: api.call("deleteScopeRecursive", SCOPE), check, 110)


async def test_a_late_cancellation_leaves_the_deletion_alone_of_a_scope_that_was_created_again(
    world: Any, make_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zombie found the first scope in use; the second one of the name is empty and marked for deletion."""
    zombie, other = [make_api(await world.start(seed=seed)) for seed in (1, 2)]
    await zombie.call("createScope", SCOPE)
    found, go = asyncio.Event(), asyncio.Event()
    scopes = zombie.controller.services.core.context.scopes
    is_empty, unmark = scopes.is_empty, scopes.unmark

    async def fill_after(scope: str, record: Any) -> bool:
        monkeypatch.setattr(scopes, "is_empty", is_empty)
        empty: bool = await is_empty(scope, record)
        await other.call("createStream", other.config(1))  # after the look, before the scope is marked
        return empty

    async def late(*arguments: Any) -> None:
        found.set()
        await go.wait()
        await unmark(*arguments)

    monkeypatch.setattr(scopes, "is_empty", fill_after)
    monkeypatch.setattr(scopes, "unmark", late)
    doing = asyncio.ensure_future(zombie.call("deleteScope", SCOPE))
    await found.wait()
    await other.call("deleteScopeRecursive", SCOPE)
    await other.call("createScope", SCOPE)
    second, _ = world.tags()
    nonce = (await second.require("scope")).nonce
    await second.mark_deleting("scope", nonce, recursive=False)
    go.set()
    await asyncio.gather(doing, return_exceptions=True)
    marked = await second.deletion("scope")
    assert marked is not None, "the deletion of the empty scope was cancelled"
    assert marked.nonce == nonce


async def test_a_stream_stays_pending_while_one_of_two_controllers_counts_on_it(
    world: Any, make_api: Any, make_crash: Any, wait_until: Any
) -> None:
    """One of them removes the mark that both know, after a while without work; then the other one dies at work."""
    first = make_api(await world.start(seed=1, idle_s=0.1))
    await first.setup(1)
    begun = await first.begin()
    crash = make_crash()
    second = make_api(await world.start(crash, seed=2, idle_s=0.1))
    await first.abort(begun.txnId)
    await first.until_state(begun.txnId, pb.TxnState.ABORTED)

    async def is_idle() -> bool:
        return bool(first.controller.active_streams == 0)

    await wait_until(is_idle)  # the first one has removed what it knows of
    opened = await second.begin()
    crash.crashed = True
    await second.controller.close()
    pending = world.metadata.dump_table(PENDING_TABLE)
    assert b"stream/scope/stream" in pending, "no controller will ever end the lease of the transaction"
    assert opened.txnId


class SlowWrites:
    """Holds the writes of a stream's records until they are let go; they may fail after their effect."""

    def __init__(self) -> None:
        self.holds = False
        self.fails = False
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def wrap(self, target: Any) -> Any:
        """The store with the writes held in front of it."""
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        held = self.holds and (name, arguments[0]) == ("put", StreamKey("scope", "stream").table)
        if held:
            self.reached.set()
            await self.go.wait()
        result = await call()
        if held and self.fails:
            self.holds = False
            raise ConnectionLostError("the answer is lost")
        return result


@pytest.mark.parametrize("ends", ["answered", "cancelled", "answer lost"])
async def test_a_write_that_takes_longer_than_the_mark_is_kept_leaves_no_work_unmarked(
    ends: str, world: Any, make_api: Any, wait_until: Any
) -> None:
    """Another controller takes the mark over while the root is written, finds no work, and removes the mark."""
    slow = SlowWrites()
    writing = make_api(await world.start(slow, seed=1, idle_s=0.1, requests_deadline_s=2.0))
    await writing.setup(1)

    def is_marked() -> bool:
        return b"stream/scope/stream" in world.metadata.dump_table(PENDING_TABLE)

    async def has_no_mark() -> bool:
        return not is_marked()

    async def has_mark() -> bool:
        return is_marked()

    await wait_until(has_no_mark)
    slow.holds = True
    doing = asyncio.ensure_future(writing.begin())
    await slow.reached.wait()
    assert is_marked()
    await world.start(seed=2, idle_s=0.1)  # it adopts all marks
    await wait_until(has_no_mark)
    if ends == "cancelled":
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
    slow.fails = ends == "answer lost"
    slow.go.set()
    if ends == "answered":
        assert (await doing).txnId
        assert is_marked(), "the call was answered, and no controller ends its work if this one dies"
    await wait_until(has_mark)
    opened = (await writing.call("checkTransactionState", TXN)).state
    assert opened == pb.TxnState.OPEN
    await asyncio.gather(doing, return_exceptions=True)
    slow.holds = False


class NoMarks:
    """Refuses to write marks of pending work while it is away."""

    def __init__(self) -> None:
        self.away = False

    def wrap(self, target: Any) -> Any:
        return Intercepted(target, self._around)

    async def _around(self, name: str, arguments: tuple[Any, ...], call: Call) -> Any:
        if self.away and (name, arguments[0]) == ("put", PENDING_TABLE):
            raise UnavailableError("the table of pending work is away")
        return await call()


@pytest.mark.parametrize("held", [False, True], ids=["refused at once", "given up during its change"])
async def test_a_call_that_cannot_mark_its_stream_holds_up_no_work_of_it(held: bool, world: Any, make_api: Any) -> None:
    marks, slow = NoMarks(), SlowWrites()

    class Both:
        def wrap(self, target: Any) -> Any:
            return marks.wrap(slow.wrap(target))

    api = make_api(await world.start(Both(), seed=1, idle_s=0.1, requests_deadline_s=30.0))
    await api.setup(1)
    await api.begin()  # from now on the stream has work: a lease
    slow.holds, marks.away = held, not held
    await asyncio.sleep(0.1)  # until the mark is not safe any more
    doing = asyncio.ensure_future(api.begin())
    if held:
        await slow.reached.wait()
        marks.away = True
        doing.cancel()
        slow.go.set()
    with contextlib.suppress(UnavailableError, asyncio.CancelledError):
        await doing
        raise AssertionError("the stream could not be marked")
    await asyncio.sleep(0.5)  # for some steps of the stream
    assert api.controller._driver.failed_steps == 0


async def test_the_same_cut_and_time_noted_twice_are_accepted(world: Any, make_api: Any, make_crash: Any) -> None:
    """A call whose answer was lost is made again while the first attempt goes on."""
    api = make_api(await world.start(make_crash()))  # which never comes, but calls to the store take their time
    await api.setup(1)
    stored = (await api.call("createReaderGroup", group())).config
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 0})
    publish = pb.SubscriberStreamCut(
        subscriber="scope/group", readerGroupId=stored.readerGroupId, generation=stored.generation, streamCut=cut
    )
    note = pb.TimestampFromWriter(writer="writer", timestamp=1, position=cut)
    published = await asyncio.gather(*(api.call("updateSubscriberStreamCut", publish) for _ in range(2)))
    assert [answer.status for answer in published] == [pb.UpdateSubscriberStatus.SUCCESS] * 2
    noted = await asyncio.gather(*(api.call("noteTimestampFromWriter", note) for _ in range(2)))
    assert [answer.result for answer in noted] == [pb.TimestampResponse.SUCCESS] * 2


def noted(api: Any, writer: str, timestamp: int, position: dict[int, int]) -> Any:
    """A call by which a writer notes a time."""
    cut = pb.StreamCut(streamInfo=api.info, cut=position)
    return api.call("noteTimestampFromWriter", pb.TimestampFromWriter(writer=writer, timestamp=timestamp, position=cut))


def marks_of(api: Any, world: Any) -> tuple[set[str], set[str]]:
    """(the writers that the stream's root lists, the writers that have marks)."""
    key = StreamKey(api.scope, api.stream)
    rows = world.metadata.dump_table(key.table)
    prefix = key.writer("")
    marks = {row.removeprefix(prefix).decode() for row in rows if row.startswith(prefix)}
    return set(decode(StreamRecord, rows[key.root], "root").writers), marks


async def test_a_late_time_brings_no_forgotten_writer_back(zombies: Zombies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITER_MARKS_PER_STREAM_MAX", 1)

    async def prepare(api: Any) -> None:
        await api.setup(1)
        assert (await noted(api, "a", 1, {0: 0})).result == pb.TimestampResponse.SUCCESS

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        world.clock.ms += limits.WRITER_MARK_IDLE_MAX_MS + 1
        assert (await noted(api, "b", 1, {0: 0})).result == pb.TimestampResponse.SUCCESS
        await Twins.wake(stall, doing)
        assert isinstance(doing.exception(), OverloadedError), "the stream has no room for the late one"
        assert marks_of(api, world) == ({"b"}, {"b"})

    await zombies.at_each_call(prepare, lambda api: noted(api, "a", 2, {0: 0}), check, 3)


async def test_a_late_time_is_not_of_the_stream_that_was_created_again(zombies: Zombies) -> None:
    async def prepare(api: Any) -> None:
        await api.setup(1)
        assert (await noted(api, "a", 1, {0: 0})).result == pb.TimestampResponse.SUCCESS

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await api.call("sealStream", api.info)
        await api.call("deleteStream", api.info)
        await api.call("createStream", api.config(1))
        await Twins.wake(stall, doing)
        assert doing.result().result == pb.TimestampResponse.INVALID_POSITION
        assert marks_of(api, world) == (set(), set())

    await zombies.at_each_call(prepare, lambda api: noted(api, "a", 2, {0: 0}), check, 3)


@pytest.mark.parametrize("damage", ["nothing", "parent sealed", "own truncated", "own deleted"])
async def test_a_late_commit_ends_no_transaction_otherwise(damage: str, zombies: Zombies) -> None:
    """Segments are changed directly before the commit; both controllers check them, merge and end the transactions."""
    target = "scope/stream/1.#epoch.0"
    own = f"{target}#transaction.{1:032x}"
    txns = [pb.TxnId(highBits=0, lowBits=number) for number in range(2)]
    aborted = {"nothing": [], "parent sealed": [0, 1]}.get(damage, [1])

    async def prepare(api: Any) -> None:
        await api.setup(2)
        store = api.controller.services.core.context.segments.port._target  # below the stall
        for _ in txns:
            begun = await api.begin()
            for number in range(2):
                name = f"scope/stream/{number}.#epoch.0#transaction.{begun.txnId.lowBits:032x}"
                store.append(name, b"<%d>" % begun.txnId.lowBits)
        if damage == "parent sealed":
            await store.seal_segment(target)
        elif damage == "own truncated":
            await store.truncate_segment(own, 1)
        elif damage == "own deleted":
            await store.delete_segment(own)

    async def commit(api: Any) -> None:
        await asyncio.gather(*(api.commit(txn) for txn in txns))
        metadata = api.controller.services.core.context.store.metadata._metadata._target
        key = StreamKey(api.scope, api.stream)
        while True:  # reads below the stall, which would count them
            root = decode(StreamRecord, metadata.dump_table(key.table)[key.root], "root")
            if not root.has_transactions:
                return
            await asyncio.sleep(0)

    async def ended(api: Any) -> None:
        await asyncio.gather(*(api.commit(txn) for txn in txns))
        for number, txn in enumerate(txns):
            await api.until_state(txn, pb.TxnState.ABORTED if number in aborted else pb.TxnState.COMMITTED)

    async def check(api: Any, world: Any, stall: Stall, doing: asyncio.Task[Any]) -> None:
        await ended(api)
        await Twins.wake(stall, doing)
        for number, txn in enumerate(txns):
            assert await api.state(txn) == (pb.TxnState.ABORTED if number in aborted else pb.TxnState.COMMITTED)
        wanted = b"".join(b"<%d>" % number for number in range(2) if number not in aborted)
        for number in range(2):
            found = world.segments.segments[f"scope/stream/{number}.#epoch.0"]
            assert b"".join(found.pieces) == wanted
        assert not [name for name in world.segments.segments if "#transaction" in name]

    await zombies.at_each_call(prepare, commit, check, 12)
