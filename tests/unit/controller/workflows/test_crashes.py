"""Every workflow is cut short at every call to a store; another controller ends it as if nothing had happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, TailraceError, UnavailableError
from tailrace.common.names import segment_id
from tailrace.controller.metadata import records
from tailrace.controller.metadata.metadata_store import CONTROLLERS_TABLE, PENDING_TABLE
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import OpenShard, PendingRecord, StreamRecord, Subscriber, decode, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transaction_ledger import shard_keys
from tailrace.rpc import controller_pb2 as pb
from tailrace.rpc.operator_pb2 import SubscriberCutRequest

S = "scope/stream/"
LOST_SEGMENTS = (f"{S}1.#epoch.0", "scope/_MARKstream/0.#epoch.0")
KEY = StreamKey("scope", "stream")
GROUP_ID = "11111111-2222-3333-4444-555555555555"
SCOPE = pb.ScopeInfo(scope="scope")
UNSTEADY_TABLES = (PENDING_TABLE, CONTROLLERS_TABLE)
QUICK = {"look_s": 0.01, "beat_s": 0.01, "lapse_s": 0.05, "rescan_s": 0.05}
REQUESTS_S = 0.1
"""For how long an intent of a dead controller may be written, in the time of the loop: ten of its looks."""
STUCK_AFTER_S = 120.0
Step = Callable[[Any, Any], Awaitable[None]]


class Scenario(NamedTuple):
    """`prepare` runs undisturbed; `act` is cut short, and made again by the client as clients do."""

    prepare: Step
    act: Step


async def nothing(api: Any, world: Any) -> None:
    """No preparation."""


async def make_scope(api: Any, world: Any) -> None:
    await api.call("createScope", SCOPE)


async def make_stream(api: Any, world: Any) -> None:
    await api.setup(2)
    world.segments.append(f"{S}0.#epoch.0", b"0123456789")


async def make_sealed(api: Any, world: Any) -> None:
    await make_history(api, world)
    begun = await api.begin()
    await api.abort(begun.txnId)
    await api.call("noteTimestampFromWriter", note(api))
    await api.call("sealStream", api.info)


async def make_history(api: Any, world: Any) -> None:
    await make_stream(api, world)
    await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)])


async def make_transactions(api: Any, world: Any) -> None:
    await make_stream(api, world)
    for number in range(3):
        begun = await api.begin()
        for name in world.segments.names(S):
            if name.endswith(f"{begun.txnId.highBits:016x}{begun.txnId.lowBits:016x}"):
                world.segments.append(name, b"<%d>" % number)


async def make_transactions_of_earlier_versions(api: Any, world: Any) -> None:
    """Open transactions are listed in the root, as programs before version 3 wrote it."""
    await make_transactions(api, world)
    found = dict(zip(shard_keys(KEY), await world.metadata.get(KEY.table, shard_keys(KEY)), strict=True))
    shards = {item: decode(OpenShard, each.value, "") for item, each in found.items() if each is not None}
    opened = tuple(sorted(item for shard in shards.values() for item in shard.transactions))
    root = decode(StreamRecord, world.metadata.dump_table(KEY.table)[KEY.root], "")
    assert (len(opened), root.open_count) == (3, 3)
    earlier = msgspec.structs.replace(root, open_count=0, open_digest=0, open_transactions=opened)
    await world.metadata.put(KEY.table, [Put(KEY.root, encode(earlier), UNCONDITIONAL)])
    await world.metadata.remove(KEY.table, [(item, UNCONDITIONAL) for item in shards])


async def make_transaction_before_a_scale(api: Any, world: Any) -> None:
    await make_transactions(api, world)
    for number in (0, 2):
        await api.abort(txn(number))
        await api.until_state(txn(number), pb.TxnState.ABORTED)
    await api.scaled([0], [(0.0, 0.25), (0.25, 0.5)])


def txn(number: int) -> pb.TxnId:
    return pb.TxnId(highBits=0, lowBits=number)


async def create_stream(api: Any, world: Any) -> None:
    await api.call("createStream", api.config(2, tags=pb.Tags(tag=["t"])))


async def make_scope_over_segments(api: Any, world: Any) -> None:
    """Segments of a life of the stream, and of its marks, of which a restore left no record."""
    await make_scope(api, world)
    for name in LOST_SEGMENTS:
        await world.segments.create_segment(name)
        world.segments.append(name, b"lost")


async def create_over_segments(api: Any, world: Any) -> None:
    await create_stream(api, world)
    for identifier in await api.current():
        assert not world.segments.segments[f"{S}{identifier}.#epoch.0"].length
    assert all(world.segments.segments[name].pieces == [b"lost"] for name in LOST_SEGMENTS)


async def create_scope(api: Any, world: Any) -> None:
    await api.call("createScope", SCOPE)


async def update(api: Any, world: Any) -> None:
    await api.call("updateStream", api.config(3, tags=pb.Tags(tag=["u"])))


async def make_tagged(api: Any, world: Any) -> None:
    await api.setup(2, tags=pb.Tags(tag=["kept", "lost"]))


async def make_tagged_and_sealed(api: Any, world: Any) -> None:
    await make_tagged(api, world)
    await api.call("sealStream", api.info)


async def retag(api: Any, world: Any) -> None:
    await api.call("updateStream", api.config(2, tags=pb.Tags(tag=["kept", "u"])))


async def scale(api: Any, world: Any) -> None:
    if await api.current() == [0, 1]:
        await api.scale([0, 1], [(0.0, 0.25), (0.25, 1.0)])
    await api.until_scaled(0)


async def truncate(api: Any, world: Any) -> None:
    cut = {segment_id(2, 1): 0, segment_id(3, 1): 0, 1: 0}
    await api.call("truncateStream", pb.StreamCut(streamInfo=api.info, cut=cut))


async def seal(api: Any, world: Any) -> None:
    await api.call("sealStream", api.info)


async def delete(api: Any, world: Any) -> None:
    await api.call("deleteStream", api.info)


async def commit(api: Any, world: Any) -> None:
    for number in (1, 0):
        assert await api.commit(txn(number)) == pb.TxnStatus.SUCCESS
    for number in (1, 0):
        await api.until_state(txn(number), pb.TxnState.COMMITTED)


async def commit_one(api: Any, world: Any) -> None:
    """One alone: when more come determines how many passes take them, and each pass over a scale adds epochs."""
    assert await api.commit(txn(1)) == pb.TxnStatus.SUCCESS
    await api.until_state(txn(1), pb.TxnState.COMMITTED)


async def commit_and_seal(api: Any, world: Any) -> None:
    assert await api.commit(txn(1)) == pb.TxnStatus.SUCCESS
    await api.call("sealStream", api.info)
    await api.until_state(txn(1), pb.TxnState.COMMITTED)


async def ping(api: Any, world: Any) -> None:
    for number in (1, 0):
        request = pb.PingTxnRequest(streamInfo=api.info, txnId=txn(number), lease=30_000)
        assert (await api.call("pingTransaction", request)).status == pb.PingTxnStatus.OK


async def abort(api: Any, world: Any) -> None:
    for number in (1, 0):
        assert await api.abort(txn(number)) == pb.TxnStatus.SUCCESS
    for number in (1, 0):
        await api.until_state(txn(number), pb.TxnState.ABORTED)


def group(**fields: Any) -> pb.ReaderGroupConfiguration:
    return pb.ReaderGroupConfiguration(
        **{
            "scope": "scope",
            "readerGroupName": "group",
            "readerGroupId": GROUP_ID,
            "retentionType": 1,
            "startingStreamCuts": [pb.StreamCut(streamInfo=pb.StreamInfo(scope="scope", stream="stream"))],
            **fields,
        }
    )


async def create_group(api: Any, world: Any) -> None:
    await api.call("createReaderGroup", group())


async def make_group(api: Any, world: Any) -> None:
    await make_stream(api, world)
    await create_group(api, world)


async def make_group_without_subscription(api: Any, world: Any) -> None:
    await make_stream(api, world)
    await api.call("createReaderGroup", group(retentionType=0))


async def make_group_of_earlier_versions(api: Any, world: Any) -> None:
    """Both subscribers in one record, as programs before version 3 wrote it."""
    await make_group(api, world)
    payload = records._ENCODER.encode(
        {"subscribers": {name: Subscriber(GROUP_ID, 0) for name in ("scope/group", "scope/h")}}
    )
    header = records.HEADER.pack(records.MAGIC, 7, 1, len(payload), records._checksum(7, 1, payload))
    await world.metadata.remove(KEY.table, [(KEY.subscriber(0, "scope/group"), UNCONDITIONAL)])
    await world.metadata.put(KEY.table, [Put(KEY.subscribers, header + payload, UNCONDITIONAL)])


async def make_sealed_group(api: Any, world: Any) -> None:
    await make_group(api, world)
    await publish(api, world)
    await api.call("sealStream", api.info)


async def publish(api: Any, world: Any) -> None:
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 0, 1: 0})
    request = pb.SubscriberStreamCut(streamCut=cut, subscriber="scope/group", readerGroupId=GROUP_ID, generation=0)
    await api.call("updateSubscriberStreamCut", request)


async def update_group(api: Any, world: Any) -> None:
    await api.call("updateReaderGroup", group(retentionType=0, generation=0))


async def subscribe(api: Any, world: Any) -> None:
    await api.call("updateReaderGroup", group(retentionType=1, generation=0))


async def publish_otherwise(api: Any, world: Any) -> None:
    await api.call("updateReaderGroup", group(retentionType=2, generation=0))


async def delete_group(api: Any, world: Any) -> None:
    info = pb.ReaderGroupInfo(scope="scope", readerGroup="group", readerGroupId=group().readerGroupId)
    await api.call("deleteReaderGroup", info)


TABLE = pb.KeyValueTableInfo(scope="scope", kvtName="table")


async def create_table(api: Any, world: Any) -> None:
    config = pb.KeyValueTableConfig(scope="scope", kvtName="table", partitionCount=2, primaryKeyLength=4)
    await api.call("createKeyValueTable", config)


async def make_table(api: Any, world: Any) -> None:
    await make_scope(api, world)
    await create_table(api, world)


async def delete_table(api: Any, world: Any) -> None:
    await api.call("deleteKeyValueTable", TABLE)


async def delete_scope(api: Any, world: Any) -> None:
    await api.call("deleteScope", SCOPE)


async def make_everything(api: Any, world: Any) -> None:
    await make_group(api, world)
    await create_table(api, world)


async def delete_everything(api: Any, world: Any) -> None:
    await api.call("deleteScopeRecursive", SCOPE)


def note(api: Any) -> pb.TimestampFromWriter:
    position = pb.StreamCut(streamInfo=api.info, cut={1: 0})
    return pb.TimestampFromWriter(writer="writer", timestamp=5, position=position)


SCENARIOS = {
    "create a scope": Scenario(nothing, create_scope),
    "create a stream": Scenario(make_scope, create_stream),
    "create a stream over segments of a lost one": Scenario(make_scope_over_segments, create_over_segments),
    "update with a scale": Scenario(make_stream, update),
    "update of tags": Scenario(make_tagged, retag),
    "delete with tags": Scenario(make_tagged_and_sealed, delete),
    "delete a scope with tags": Scenario(make_tagged, delete_everything),
    "scale": Scenario(make_stream, scale),
    "truncate": Scenario(make_history, truncate),
    "seal with open transactions": Scenario(make_transactions, seal),
    "delete": Scenario(make_sealed, delete),
    "commit": Scenario(make_transactions, commit),
    "commit with transactions of earlier versions": Scenario(make_transactions_of_earlier_versions, commit),
    "abort with transactions of earlier versions": Scenario(make_transactions_of_earlier_versions, abort),
    "seal with transactions of earlier versions": Scenario(make_transactions_of_earlier_versions, seal),
    "commit over a scale": Scenario(make_transaction_before_a_scale, commit_one),
    "scale with open transactions": Scenario(make_transactions, scale),
    "seal with commits over a scale": Scenario(make_transaction_before_a_scale, commit_and_seal),
    "abort": Scenario(make_transactions, abort),
    "ping": Scenario(make_transactions, ping),
    "create a reader group": Scenario(make_stream, create_group),
    "update a reader group": Scenario(make_group, update_group),
    "subscribe a reader group": Scenario(make_group_without_subscription, subscribe),
    "publish at checkpoints in place of by hand": Scenario(make_group, publish_otherwise),
    "delete a reader group": Scenario(make_group, delete_group),
    "publish": Scenario(make_group, publish),
    "publish with subscribers of earlier versions": Scenario(make_group_of_earlier_versions, publish),
    "update a group of earlier versions": Scenario(make_group_of_earlier_versions, update_group),
    "delete with subscribers": Scenario(make_sealed_group, delete),
    "create a table": Scenario(make_scope, create_table),
    "delete a table": Scenario(make_table, delete_table),
    "delete a scope": Scenario(make_scope, delete_scope),
    "delete a scope with everything": Scenario(make_everything, delete_everything),
}


async def end_state(api: Any, world: Any) -> dict[str, Any]:
    """Everything that can be seen from outside."""
    state: dict[str, Any] = {
        _without_random(name): (b"".join(found.pieces), found.start_offset, found.sealed, found.key_length)
        for name, found in sorted(world.segments.segments.items())
    }
    for rpc, request in (
        ("getCurrentSegments", api.info),
        ("getStreamConfiguration", api.info),
        ("getSegments", pb.GetSegmentsRequest(streamInfo=api.info)),
        ("listCompletedTransactions", pb.ListCompletedTxnRequest(streamInfo=api.info)),
        ("listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=SCOPE, tag="u")),
        ("listSubscribers", api.info),
        ("getSubscriberCut", SubscriberCutRequest(scope="scope", stream="stream", subscriber="scope/group")),
        ("getReaderGroupConfig", pb.ReaderGroupInfo(scope="scope", readerGroup="group")),
        ("getKeyValueTableConfiguration", TABLE),
        ("checkScopeExists", SCOPE),
    ):
        with contextlib.suppress(NotFoundError):
            state[rpc] = await api.call(rpc, request)
            if hasattr(state[rpc], "continuationToken"):
                state[rpc].ClearField("continuationToken")
    for tag in ("t", "u", "kept", "lost"):
        with contextlib.suppress(TailraceError):  # the scope may be deleted
            state[f"index of {tag}"] = await world.tagged(tag)
    listed = await api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    state["streams"] = (listed.status, sorted(info.stream for info in listed.streams))
    tables = world.metadata.dump()
    state["records"] = sorted(key for table, rows in tables.items() if table not in UNSTEADY_TABLES for key in rows)
    state["tables"] = len(tables)
    for number in range(3):
        with contextlib.suppress(NotFoundError):
            state[f"transaction {number}"] = await api.state(txn(number))
    return state


def _without_random(name: str) -> str:
    """Names of tables' segments without their epoch, which is random."""
    return name.partition(".#epoch.")[0] if "_kvtable/" in name else name


async def act_again(scenario: Scenario, api: Any, world: Any) -> None:
    """Act until there is an answer: a call of a controller with `REQUESTS_S` may end without one."""
    async with asyncio.timeout(STUCK_AFTER_S):
        while True:
            try:
                await scenario.act(api, world)
            except UnavailableError:
                await asyncio.sleep(0.01)
            except NotFoundError:
                return
            else:
                return


async def run(
    scenario: Scenario, world: Any, make_api: Any, wait_until: Any, crash: Any = None, call: int | None = None
) -> tuple[dict[str, Any], int]:
    """The end state, and how many calls the action took."""
    controller = await world.start(crash)
    api = make_api(controller)
    await scenario.prepare(api, world)

    before = crash.calls if crash is not None else 0
    if crash is not None and call is not None:
        crash.at_call = crash.calls + call
    acting = asyncio.ensure_future(scenario.act(api, world))
    while not acting.done() and not (crash is not None and crash.crashed):  # noqa: ASYNC110
        await asyncio.sleep(0)
    if acting.done() and (crash is None or not crash.crashed):
        acting.result()
    used = crash.calls - before if crash is not None else 0
    acting.cancel()
    with contextlib.suppress(asyncio.CancelledError, TailraceError):
        await acting
    await controller.close()
    again = await world.start(seed=2, requests_deadline_s=REQUESTS_S, **QUICK)
    api = make_api(again)
    await act_again(scenario, api, world)

    async def is_idle() -> bool:
        return has_open or not world.metadata.dump_table(PENDING_TABLE)

    has_open = scenario.prepare in (
        make_transactions,
        make_transactions_of_earlier_versions,
        make_transaction_before_a_scale,
    )
    await wait_until(is_idle)
    return await end_state(api, world), used


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_cut_short_anywhere(
    name: str, after_effect: bool, world: Any, make_api: Any, make_crash: Any, wait_until: Any, test_profile: str
) -> None:
    scenario = SCENARIOS[name]
    expected, calls = await run(scenario, world, make_api, wait_until, make_crash())
    assert calls > 0
    # the short form takes turns: a call that had no effect leaves what the one before it left
    wanted = range(1, calls + 1) if test_profile == "full" else range(2 if after_effect else 1, calls + 1, 2)
    for call in wanted:
        fresh = type(world)()
        try:
            crash = make_crash(after_effect=after_effect)
            found, _ = await run(scenario, fresh, make_api, wait_until, crash, call)
        finally:
            await fresh.close()
        assert found == expected, f"cut short at call {call} of {calls}"


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["truncate", "delete", "abort", "seal with open transactions"])
async def test_cut_short_between_parts(
    name: str,
    after_effect: bool,
    world: Any,
    make_api: Any,
    make_crash: Any,
    wait_until: Any,
    test_profile: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step changes one segment; the controller that ends the work does not know where the first one was."""
    monkeypatch.setattr(limits, "WORKFLOW_STEP_SEGMENTS_MAX", 1)
    await test_cut_short_anywhere(name, after_effect, world, make_api, make_crash, wait_until, test_profile)


async def run_beside(scenario: Scenario, world: Any, make_api: Any, crash: Any, call: int) -> dict[str, Any]:
    """The end state when a controller that lives all the time adopts the work, before the client acts again."""
    survivor = await world.start(seed=2, requests_deadline_s=REQUESTS_S, **QUICK)
    api = make_api(await world.start(crash, **QUICK))
    await scenario.prepare(api, world)
    crash.at_call = crash.calls + call
    acting = asyncio.ensure_future(scenario.act(api, world))
    while not acting.done() and not crash.crashed:  # noqa: ASYNC110 - the stores are plain data
        await asyncio.sleep(0)
    crash.crashed = True  # also when the action needed fewer calls than the one that was counted
    acting.cancel()
    with contextlib.suppress(asyncio.CancelledError, TailraceError):
        await acting

    api = make_api(survivor)
    async with asyncio.timeout(STUCK_AFTER_S):
        while not await is_settled(api, world, survivor):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await act_again(scenario, api, world)
    async with asyncio.timeout(STUCK_AFTER_S):
        while not await is_settled(api, world, survivor):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return await end_state(api, world)


async def is_settled(api: Any, world: Any, survivor: Any) -> bool:
    """Whether the survivor has all that is pending, and only open transactions keep it pending."""
    marks = [decode(PendingRecord, value, "") for value in world.metadata.dump_table(PENDING_TABLE).values()]
    if any(mark.instance != survivor.instance for mark in marks):
        return False
    states = set()
    for number in range(3):
        with contextlib.suppress(NotFoundError):
            states.add(await api.state(txn(number)))
    if states & {pb.TxnState.COMMITTING, pb.TxnState.ABORTING}:
        return False
    return not marks or pb.TxnState.OPEN in states


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_cut_short_beside_a_live_controller(
    name: str, after_effect: bool, world: Any, make_api: Any, make_crash: Any, wait_until: Any, test_profile: str
) -> None:
    scenario = SCENARIOS[name]
    expected, calls = await run(scenario, world, make_api, wait_until, make_crash())
    wanted = range(1, calls + 1) if test_profile == "full" else range(3 if after_effect else 1, calls + 1, 4)
    for call in wanted:
        fresh = type(world)()
        try:
            found = await run_beside(scenario, fresh, make_api, make_crash(after_effect=after_effect), call)
        finally:
            await fresh.close()
        assert found == expected, f"cut short at call {call} of {calls}"
