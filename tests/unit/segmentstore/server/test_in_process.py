"""Requests of this process's own controller get the replies that a connection brings (ADR 0036)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    ConnectionLostError,
    CorruptionError,
    DeadlineError,
    DiskFullError,
    OutcomeUnknownError,
    PermissionDeniedError,
    ProtocolError,
)
from tailrace.segmentstore.api import core_attribute
from tailrace.segmentstore.server.in_process import InProcessRequests
from tailrace.wire import commands as c

LONG_S, SHORT_S = 60.0, 0.01
ATTRIBUTE = bytes(range(16))
OTHER = "elsewhere/stream/0.#epoch.0"
KEY, ABSENT = c.TableKey(b"key"), c.TableKey(b"absent")


def commands(place: str) -> list[c.Command]:
    """Requests of every kind on segments below `place`, those that are refused too, in an order that makes sense."""
    segment, table = f"scope/{place}/0.#epoch.0", f"scope/{place}_kvtable/0.#epoch.0"
    source = f"{segment}#transaction.{0xAA:032x}"
    return [
        c.CreateSegment(1, segment, 5, 1, ""),
        c.CreateSegment(2, segment, 0, 0, ""),
        c.CreateSegment(3, segment, -1, 1, ""),
        c.CreateSegment(4, source, 0, 0, ""),
        c.UpdateSegmentPolicy(5, segment, 7, 2, ""),
        c.GetSegmentAttribute(6, segment, ATTRIBUTE, ""),
        c.UpdateSegmentAttribute(7, segment, ATTRIBUTE, 3, -(2**63), ""),
        c.UpdateSegmentAttribute(8, segment, ATTRIBUTE, 4, 9, ""),
        c.UpdateSegmentAttribute(9, segment, core_attribute(1), 4, 9, ""),
        c.GetSegmentAttribute(10, segment, ATTRIBUTE, ""),
        c.TruncateSegment(11, segment, 100, ""),
        c.MergeSegments(12, segment, source, ""),
        c.MergeSegments(13, segment, source, ""),
        c.MergeSegmentsBatch(14, segment, [source], ""),
        c.SealSegment(15, segment, ""),
        c.SealSegment(16, segment, ""),
        c.DeleteSegment(17, segment, ""),
        c.DeleteSegment(18, segment, ""),
        c.GetStreamSegmentInfo(19, segment, ""),
        c.CreateTableSegment(20, table, "", False, 0),
        c.CreateTableSegment(21, table, "", False, 0),
        c.UpdateTableEntries(22, table, "", [c.TableEntry(b"key", b"value")]),
        c.UpdateTableEntries(23, table, "", [c.TableEntry(b"key", b"value", 77)]),
        c.UpdateTableEntries(24, table, "", [c.TableEntry(b"", b"value")]),
        c.ReadTable(25, table, "", [KEY, ABSENT]),
        c.ReadTableKeys(26, table, "", 10, b""),
        c.ReadTableEntries(27, table, "", 10, b""),
        c.RemoveTableKeys(28, table, "", [c.TableKey(b"key", 77)]),
        c.RemoveTableKeys(29, table, "", [KEY]),
        c.GetTableSegmentInfo(30, table, ""),
        c.DeleteTableSegment(31, table, True, ""),
        c.ReadTable(32, table, "", [KEY]),
        c.GetSegmentRates(0, "", 33, -1, [2000]),
        c.GetSegmentRates(9, "", 34, -1, [2000]),
        c.CreateSegment(35, "no name", 0, 0, ""),
    ]


@pytest.fixture
async def own(model: Any) -> AsyncIterator[InProcessRequests]:
    """What serves requests of this process, over the model container."""
    made = model.server.in_process()
    yield made
    await made.close()


async def test_replies_are_those_of_a_connection(setting: Any, client: Any) -> None:
    own = setting.server.in_process()
    kinds = set()
    for over_wire, here in zip(commands("wire"), commands("here"), strict=True):
        expected = await client.call(over_wire)
        found = await own.request(here)
        assert repr(found).replace("here", "wire") == repr(expected), here
        kinds.add(type(found))
    assert len(kinds) >= 20, "the requests are answered in many ways"
    await own.close()


async def test_requests_that_come_together_get_the_replies_of_each(own: InProcessRequests) -> None:
    names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    assert await own.request(c.CreateSegment(1, names[0], 0, 0, "")) == c.SegmentCreated(1, names[0])
    creations = [c.CreateSegment(2, name, 0, 0, "") for name in (*names, OTHER, "no name")]
    creations.append(c.CreateSegment(3, names[0], -1, 1, ""))
    alone = [await own.request(command) for command in creations[3:]]
    found = await own.request_all(creations)
    assert found[:3] == [c.SegmentAlreadyExists(2, names[0], ""), *(c.SegmentCreated(2, name) for name in names[1:])]
    assert found[3:] == alone
    infos = await own.request_all([c.GetStreamSegmentInfo(4, name, "") for name in (OTHER, *names, names[0] + "0")])
    assert [type(reply) for reply in infos] == [c.WrongHost, *(3 * [c.StreamSegmentInfo]), c.NoSuchSegment]
    with pytest.raises(ProtocolError, match="several SealSegment are not served together"):
        await own.request_all([c.SealSegment(5, names[0], "")])


async def test_creations_that_come_together_go_on_when_their_caller_leaves(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(model.model, "begin_create", monkeypatch)
    names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    with pytest.raises(DeadlineError):
        await own.request_all([c.CreateSegment(0, name, 0, 0, "") for name in names], SHORT_S)
    closing = asyncio.ensure_future(own.close())
    gate.open.set()
    await closing
    fresh = model.server.in_process()
    found = await fresh.request_all([c.GetStreamSegmentInfo(0, name, "") for name in names])
    assert {type(reply) for reply in found} == {c.StreamSegmentInfo}


async def test_what_fails_one_of_several_requests_fails_no_other(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"scope/stream/{number}.#epoch.0" for number in range(5)]
    begin = model.model.begin_create

    async def failing(segment: str, **fields: Any) -> Any:
        durable = await begin(segment, **fields)
        if segment == names[1]:
            raise ZeroDivisionError("a mistake")
        if segment == names[3]:
            durable = asyncio.get_running_loop().create_future()
            durable.set_exception(OutcomeUnknownError("the container stopped"))
        return durable

    monkeypatch.setattr(model.model, "begin_create", failing)
    found = await own.request_all([c.CreateSegment(0, name, 0, 0, "") for name in names])
    assert [type(reply) for reply in found[::2]] == 3 * [c.SegmentCreated]
    for reply in found[1::2]:
        assert isinstance(reply, ConnectionLostError), "its outcome is unknown"
    monkeypatch.setattr(limits, "REQUEST_DEADLINE_S", SHORT_S)
    Gate(model.model, "begin_create", monkeypatch)
    with pytest.raises(ConnectionLostError, match=r"several CreateSegment took longer than 0.01 s"):
        await own.request_all([c.CreateSegment(0, name, 0, 0, "") for name in names])


async def test_many_requests_that_come_together_leave_turns_to_other_work(own: InProcessRequests) -> None:
    count = 10 * limits.IN_PROCESS_REQUESTS_PER_TURN
    names = [f"scope/stream/{number}.#epoch.0" for number in range(count)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    for make in (lambda name: c.CreateSegment(0, name, 0, 0, ""), lambda name: c.GetStreamSegmentInfo(0, name, "")):
        before = turns
        assert len(await own.request_all([make(name) for name in names])) == count
        assert turns - before >= 10
    working.cancel()


async def test_replies_hold_bytes_of_their_own(setting: Any) -> None:
    """Nothing that a caller keeps may be memory of a cache."""
    own, table = setting.server.in_process(), "scope/table_kvtable/0.#epoch.0"
    await own.request(c.CreateTableSegment(0, table, "", False, 0))
    await own.request(c.UpdateTableEntries(0, table, "", [c.TableEntry(b"key", b"value")]))
    reply = await own.request(c.ReadTable(0, table, "", [KEY]))
    assert [(type(entry.key), type(entry.value)) for entry in reply.entries] == [(bytes, bytes)]
    await own.close()


async def test_a_segment_of_another_process_is_refused(own: InProcessRequests) -> None:
    assert await own.request(c.SealSegment(1, OTHER, "")) == c.WrongHost(1, OTHER, "", "")


async def test_what_waits_or_needs_a_connection_is_refused(own: InProcessRequests) -> None:
    for command in (
        c.ReadSegment("scope/stream/0.#epoch.0", 0, 100, "", 1),
        c.CreateTransientSegment(2, ATTRIBUTE, "scope/stream/0.#epoch.0", ""),
        c.FlushToStorage(0, "", 3),
        c.KeepAlive(),
    ):
        with pytest.raises(ProtocolError, match=f"{type(command).__name__} is not served without a connection"):
            await own.request(command)


async def test_reads_wait_for_a_container_that_opens_and_changes_do_not(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PENDING_CONTAINER_TIMEOUT_S", LONG_S)
    segment = "scope/stream/0.#epoch.0"
    await own.request(c.CreateSegment(1, segment, 0, 0, ""))
    model.registry.pending.begin(0)
    with pytest.raises(DeadlineError, match="did not answer within"):
        await own.request(c.GetStreamSegmentInfo(2, segment, ""), SHORT_S)
    assert await own.request(c.SealSegment(3, segment, "")) == c.WrongHost(3, segment, "", "")
    waiting = asyncio.ensure_future(own.request(c.GetStreamSegmentInfo(4, segment, "")))
    for _ in range(5):
        await model.turn()
    assert not waiting.done()
    model.registry.pending.end(0)
    assert isinstance(await waiting, c.StreamSegmentInfo)


class Gate:
    """Holds calls of a container's method until it is opened."""

    def __init__(self, container: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.entered = 0
        method = getattr(container, name)

        async def held(*args: Any, **keywords: Any) -> Any:
            self.entered += 1
            await self.open.wait()
            return await method(*args, **keywords)

        monkeypatch.setattr(container, name, held)


async def test_a_change_goes_on_when_its_caller_leaves(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(model.model, "create_segment", monkeypatch)
    names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    cancelled = asyncio.ensure_future(own.request(c.CreateSegment(0, names[0], 0, 0, "")))
    with pytest.raises(DeadlineError):
        await own.request(c.CreateSegment(0, names[1], 0, 0, ""), SHORT_S)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    closing = asyncio.ensure_future(own.close())
    await model.turn()
    with pytest.raises(ConnectionLostError, match="is closed"):
        await own.request(c.CreateSegment(0, names[2], 0, 0, ""))
    assert not closing.done(), "it waits for what was begun"
    gate.open.set()
    await closing
    fresh = model.server.in_process()
    found = [(await fresh.request(c.GetStreamSegmentInfo(0, name, ""))) for name in names]
    assert [type(reply) for reply in found] == [c.StreamSegmentInfo, c.StreamSegmentInfo, c.NoSuchSegment]


async def test_a_change_that_does_not_end_holds_up_a_close_for_a_while_only(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_FLUSH_DEADLINE_S", SHORT_S)
    gate, own = Gate(model.model, "create_segment", monkeypatch), model.server.in_process()
    asked = asyncio.ensure_future(own.request(c.CreateSegment(0, "scope/stream/0.#epoch.0", 0, 0, "")))
    await model.until(lambda: gate.entered == 1)
    async with asyncio.timeout(LONG_S):
        await own.close()
    with pytest.raises(ConnectionLostError, match="before the change ended"):
        await asked


@pytest.mark.parametrize(
    ("limit", "method", "request_of"),
    [
        ("REQUESTS_PER_CONNECTION_MAX", "info", lambda name: c.GetStreamSegmentInfo(0, name, "")),
        ("IN_PROCESS_LARGE_REPLIES_MAX", "info", lambda name: c.ReadTable(0, name, "", [KEY])),
    ],
)
async def test_only_so_many_are_served_at_a_time(
    limit: str, method: str, request_of: Callable[[str], c.Command], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, 2)
    own = model.server.in_process()
    gate = Gate(model.model, method, monkeypatch)
    asked = [asyncio.ensure_future(own.request(request_of(f"scope/x/{number}.#epoch.0"))) for number in range(5)]
    await model.until(lambda: gate.entered == 2)
    for _ in range(20):
        await model.turn()
    assert gate.entered == 2
    gate.open.set()
    assert {type(reply) for reply in await asyncio.gather(*asked)} == {c.NoSuchSegment}
    assert gate.entered == 5


async def test_failures_that_close_a_connection_are_lost_connections(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = "scope/stream/0.#epoch.0"
    failures = [DiskFullError("no space"), ZeroDivisionError("a mistake")]

    async def failing(*_: Any, **__: Any) -> Any:
        raise failures[0]

    monkeypatch.setattr(model.model, "seal", failing)
    while failures:
        expected = f"SealSegment of {segment} failed: {type(failures[0]).__name__}: {failures[0]}"
        with pytest.raises(ConnectionLostError, match=expected):
            await own.request(c.SealSegment(0, segment, ""))
        failures.pop(0)
    monkeypatch.setattr(limits, "REQUEST_DEADLINE_S", SHORT_S)
    Gate(model.model, "delete", monkeypatch)
    with pytest.raises(ConnectionLostError, match=r"DeleteSegment of .* took longer than 0.01 s"):
        await own.request(c.DeleteSegment(0, segment, ""))


async def test_damaged_data_refuses_the_segment_only(
    model: Any, own: InProcessRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(*_: Any) -> Any:
        raise CorruptionError("a chunk", "CRC32C does not match")

    monkeypatch.setattr(model.model, "info", damaged)
    segment = "scope/stream/0.#epoch.0"
    reason = "corruption in a chunk: CRC32C does not match"
    assert await own.request(c.GetStreamSegmentInfo(1, segment, "")) == c.WrongHost(1, segment, "", reason)


async def test_requests_are_authorized_and_accounted(model: Any, own: InProcessRequests) -> None:
    segment = "scope/stream/0.#epoch.0"
    await own.request(c.SealSegment(1, segment, "token"))
    assert model.authorized[-1][:2] == ("token", segment)
    assert model.accounted[-1] == ("scope", 0, 1)
    model.refuse = PermissionDeniedError("no")
    assert isinstance(await own.request(c.SealSegment(2, segment, "")), c.AuthTokenCheckFailed)
