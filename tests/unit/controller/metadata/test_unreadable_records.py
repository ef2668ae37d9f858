"""A record of a scope or stream that is damaged, or of a newer version, fails its own calls and no list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.logs import LimitedLog
from tailrace.controller.jobs.entries import EntrySweep
from tailrace.controller.metadata import reading, records
from tailrace.controller.metadata.metadata_store import SCOPES_TABLE, scope_table
from tailrace.controller.metadata.ports import UNCONDITIONAL, Put
from tailrace.controller.metadata.records import ScopeStreamEntry, encode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.rest.app import create_app
from tailrace.rpc import controller_pb2 as pb

SCOPE = pb.ScopeInfo(scope="scope")
STREAMS = ["damaged", "good", "newer"]
ERRORS = {"damaged": (CorruptionError, "checksum"), "newer": (FormatVersionError, f"version {records.VERSION + 1}")}


def newer(value: bytes) -> bytes:
    """The record as a program of the next version writes it."""
    magic, kind, version, length, _ = records.HEADER.unpack_from(value)
    payload = value[records.HEADER.size :]
    version = records.VERSION + 1
    return bytes(records.HEADER.pack(magic, kind, version, length, records._checksum(kind, version, payload)) + payload)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "damaged": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
    "newer": newer,
}


async def spoil(world: Any, table: str, key: bytes, how: str) -> None:
    """Replace a stored record by one that this program cannot read."""
    value = world.metadata.dump_table(table)[key]
    await world.metadata.put(table, [Put(key, CHANGES[how](value), UNCONDITIONAL)])


async def table_of(world: Any) -> str:
    """The table that lists the scope's contents."""
    scopes, _ = world.tags()
    return scope_table("scope", (await scopes.require_existing("scope")).nonce)


async def fails(call: Awaitable[Any], how: str, place: str) -> None:
    """The call fails with the record's place, and with its version if that is newer."""
    kind, words = ERRORS[how]
    with pytest.raises(kind) as raised:
        await call
    assert words in str(raised.value)
    assert place in str(raised.value)


async def tagged(api: Any, tag: str = "red") -> tuple[list[str], str]:
    """A list by tag, sorted, and the token that it ended with."""
    found: list[str] = []
    token = ""
    while True:
        request = pb.StreamsInScopeWithTagRequest(
            scope=SCOPE, tag=tag, continuationToken=pb.ContinuationToken(token=token)
        )
        answer = await api.call("listStreamsInScopeForTag", request)
        token = answer.continuationToken.token
        if not answer.streams:
            return sorted(found), token
        found += [info.stream for info in answer.streams]


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test has used up the lines that may be logged."""
    monkeypatch.setattr(reading, "_LOG", LimitedLog(structlog.get_logger("reading")))


@pytest.fixture
async def spoiled(world: Any, api: Any) -> Any:
    """Three tagged streams; the entries of two in the scope cannot be read."""
    await api.call("createScope", SCOPE)
    for name in STREAMS:
        other = type(api)(api.controller, stream=name)
        await api.call("createStream", other.config(tags=pb.Tags(tag=["red"])))
    for how in CHANGES:
        await spoil(world, await table_of(world), f"s/{how}".encode(), how)
    return api


async def test_scopes_are_listed_by_name_although_two_cannot_be_read(world: Any, api: Any) -> None:
    for name in STREAMS:
        await api.call("createScope", pb.ScopeInfo(scope=name))
    for how in CHANGES:
        await spoil(world, SCOPES_TABLE, how.encode(), how)
    answer = await api.call("listScopes", pb.ScopesRequest())
    assert sorted(answer.scopes) == ["_system", *STREAMS]
    for how in CHANGES:
        await fails(
            api.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=how))), how, f"[{how}]"
        )
        await fails(api.call("deleteScopeRecursive", pb.ScopeInfo(scope=how)), how, f"[{how}]")
    assert (await api.call("deleteScope", pb.ScopeInfo(scope="good"))).status == pb.DeleteScopeStatus.SUCCESS


async def test_streams_are_listed_although_the_entries_of_two_cannot_be_read(spoiled: Any) -> None:
    answer = await spoiled.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    assert sorted(info.stream for info in answer.streams if not info.stream.startswith("_")) == STREAMS
    for how in CHANGES:
        other = type(spoiled)(spoiled.controller, stream=how)
        assert (await spoiled.call("checkStreamExists", other.info)).exists


async def test_lists_by_tag_leave_out_what_cannot_be_read_and_come_to_use_the_index(
    world: Any, spoiled: Any, wait_until: Any
) -> None:
    with structlog.testing.capture_logs() as logs:
        assert (await tagged(spoiled))[0] == ["good"]

        async def uses_index() -> bool:
            return (await tagged(spoiled))[1].startswith("t.")

        await wait_until(uses_index)
        assert (await tagged(spoiled))[0] == ["good"]
    assert any("s/damaged" in str(each) and each["event"] == "record left alone" for each in logs)


async def test_the_index_keeps_the_tags_of_a_stream_whose_entry_cannot_be_read(world: Any, spoiled: Any) -> None:
    scopes, index = world.tags()
    owner = await scopes.require_existing("scope")
    assert await world.tagged("red") == ["good"]
    await index.drop("scope", owner, [("red", name) for name in STREAMS])
    assert await index.missing("scope", owner, [("red", name) for name in STREAMS]) == []


async def test_the_log_lines_of_many_lists_are_bounded(spoiled: Any) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(limits.LOG_LINES_BURST):
            await tagged(spoiled)
    assert 0 < sum(each["event"] == "record left alone" for each in logs) <= limits.LOG_LINES_BURST + 10


async def test_the_sweep_of_entries_goes_on_and_deletes_none_that_cannot_be_read(world: Any, api: Any) -> None:
    """Streams that are deleted by their records, in scopes and by entries of which some cannot be read."""
    for scope in ("a", "scope", "z"):
        for name in STREAMS:
            other = type(api)(api.controller, scope=scope, stream=name)
            await other.setup(1)
            await other.call("sealStream", other.info)
            await other.call("deleteStream", other.info)
            scopes, _ = world.tags()
            owner = await scopes.require_existing(scope)
            root = await api.controller.sweep._context.store.load(StreamKey(scope, name))
            entry = Put(f"s/{name}".encode(), encode(ScopeStreamEntry((), root.incarnation)), UNCONDITIONAL)
            await world.metadata.put(scope_table(scope, owner.nonce), [entry])
    table = await table_of(world)
    for how in CHANGES:
        await spoil(world, table, f"s/{how}".encode(), how)
    await spoil(world, SCOPES_TABLE, b"a", "damaged")
    await spoil(world, SCOPES_TABLE, b"z", "newer")
    before = {name: len(rows) for name, rows in world.metadata.dump().items()}
    sweep = EntrySweep(api.controller.sweep._context)
    await sweep.round(range(limits.METADATA_BUCKETS))
    rows = world.metadata.dump()
    assert sorted(rows[table]) == [b"s/damaged", b"s/newer"]
    assert {name: len(rows[name]) for name in before if name != table} == {
        name: count for name, count in before.items() if name != table
    }, "nothing else was removed"
    assert sweep.removed == 1
    assert sweep.failures == 4, "two scopes and two entries"


@pytest.mark.parametrize("how", list(CHANGES))
async def test_calls_of_the_stream_itself_fail_with_record_and_version(spoiled: Any, how: str) -> None:
    context = spoiled.controller.services.core.context
    await fails(context.scopes.entry("scope", f"s/{how}", ScopeStreamEntry), how, f"scope scope[s/{how}]")


@pytest.mark.parametrize("how", list(CHANGES))
async def test_a_root_that_cannot_be_read_fails_its_stream_and_no_list(world: Any, api: Any, how: str) -> None:
    await api.call("createScope", SCOPE)
    for name in ("good", how):
        await api.call("createStream", type(api)(api.controller, stream=name).config())
    key = StreamKey("scope", how)
    await spoil(world, key.table, key.root, how)
    other = type(api)(await world.start(seed=2))
    info = pb.StreamInfo(scope="scope", stream=how)
    for rpc in ("getStreamConfiguration", "getCurrentSegments", "sealStream"):
        await fails(other.call(rpc, info), how, key.table)
    answer = await other.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=SCOPE))
    assert {"good", how} <= {info.stream for info in answer.streams}
    app = create_app(other.controller)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://controller") as rest:
        listed = await rest.get("/v1/scopes/scope/streams")
    assert (listed.status_code, [each["streamName"] for each in listed.json()["streams"]]) == (200, ["good"])
