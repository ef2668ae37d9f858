"""Segment operations against hand-made answers: errors, retries, uncertain outcomes, liveness."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.pauses import PausesPastAnyDeadline
from tailrace.client.connections.pool import ConnectionPool, connect
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.types import NO_ATTRIBUTE, Endpoint, TableEntry
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    ConnectionLostError,
    DeadlineError,
    IllegalStateError,
    NoSuchSegmentError,
    PermissionDeniedError,
    ProtocolError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyBadVersionError,
    TableKeyNotExistsError,
    TableNotEmptyError,
    UnavailableError,
    UnsupportedError,
)
from tailrace.wire import commands as c
from tailrace.wire.codec import encode

NAME = "s/t/0.#epoch.0"
ATTRIBUTE = uuid.UUID(int=77)


@pytest.fixture
def forgotten() -> list[str]:
    return []


@pytest.fixture
def client(store: Any, pool: ConnectionPool, forgotten: list[str]) -> SegmentClient:
    async def locate(_: str) -> Endpoint:
        endpoint: Endpoint = store.endpoint
        return endpoint

    return SegmentClient(pool, locate, forget=forgotten.append, deadline_s=5.0)


async def test_a_segment_from_creation_to_deletion(store: Any, client: SegmentClient) -> None:
    await client.create_segment(NAME)
    with pytest.raises(SegmentExistsError):
        await client.create_segment(NAME)
    store.segments[NAME].data += b"0123456789"
    assert (await client.segment_info(NAME)).length == 10
    assert await client.read(NAME, 2, 4) == (b"2345", False, False)
    assert await client.read(NAME, 6, 100) == (b"6789", True, False)
    await client.truncate_segment(NAME, 5)
    with pytest.raises(SegmentTruncatedError) as truncated:
        await client.read(NAME, 4, 1)
    assert truncated.value.start_offset == 5
    await client.seal_segment(NAME)
    with pytest.raises(SegmentSealedError):
        await client.seal_segment(NAME)
    info = await client.segment_info(NAME)
    assert (info.sealed, info.start_offset, info.name) == (True, 5, NAME)
    assert await client.read(NAME, 10, 1) == (b"", True, True)
    await client.delete_segment(NAME)
    with pytest.raises(NoSuchSegmentError, match=NAME):
        await client.segment_info(NAME)


async def test_attributes_are_compared_and_set(store: Any, client: SegmentClient) -> None:
    store.create(NAME)
    assert await client.get_attribute(NAME, ATTRIBUTE) == NO_ATTRIBUTE
    assert await client.update_attribute(NAME, ATTRIBUTE, 5, NO_ATTRIBUTE)
    assert not await client.update_attribute(NAME, ATTRIBUTE, 6, 4)
    assert await client.get_attribute(NAME, ATTRIBUTE) == 5


async def test_a_read_at_the_tail_waits_for_data_or_its_timeout(store: Any, client: SegmentClient) -> None:
    segment = store.create(NAME, b"ab")
    with pytest.raises(DeadlineError):
        await client.read(NAME, 2, 10, timeout_s=0.05)
    read = asyncio.create_task(client.read(NAME, 2, 10))
    await client.segment_info(NAME)
    assert not read.done()
    async with store.grown:
        segment.data += b"cd"
        store.grown.notify_all()
    assert await read == (b"cd", True, False)


Operation = Callable[[SegmentClient], Awaitable[object]]


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        (c.CreateSegment, lambda client: client.create_segment(NAME + "0")),
        (c.SealSegment, lambda client: client.seal_segment(NAME)),
        (c.DeleteSegment, lambda client: client.delete_segment(NAME)),
        (c.UpdateSegmentAttribute, lambda client: client.update_attribute(NAME, ATTRIBUTE, 5, NO_ATTRIBUTE)),
        (c.ReadSegment, lambda client: client.read(NAME, 0, 5)),
    ],
)
@pytest.mark.parametrize("after", [False, True])
async def test_a_lost_answer_is_asked_for_again_and_its_effect_is_success(
    store: Any, client: SegmentClient, kind: type[c.Command], operation: Operation, after: bool
) -> None:
    store.create(NAME, b"abc")
    store.cut(kind, after=after)
    result = await operation(client)
    assert result is not False
    assert sum(isinstance(command, kind) for command in store.seen) == (1 if after and kind is c.ReadSegment else 2)


async def test_a_wrong_host_is_forgotten_and_asked_for_again(
    store: Any, client: SegmentClient, forgotten: list[str]
) -> None:
    store.create(NAME)
    store.answer(c.GetStreamSegmentInfo, lambda request: c.WrongHost(request, NAME, ""), times=2)
    assert (await client.segment_info(NAME)).length == 0
    assert forgotten == [NAME, NAME]


async def test_what_a_store_says_about_damage_is_in_the_error(store: Any, client: SegmentClient) -> None:
    store.create(NAME)
    said = "corruption in object c0/5: CRC32C\x1b[1m does not match\nat some.Place(Line:1)"
    store.answer(c.GetStreamSegmentInfo, lambda request: c.WrongHost(request, NAME, "", said))
    client._entropy = PausesPastAnyDeadline()
    message = rf"^segment {NAME} is not served by .*: corruption in object c0/5: CRC32C\[1m does not match$"
    with pytest.raises(UnavailableError, match=message.replace("#", "[#]")):
        await client.segment_info(NAME)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda i: c.OperationUnsupported(i, "x"), UnsupportedError),
        (lambda i: c.AuthTokenCheckFailed(i, "", 0), PermissionDeniedError),
        (lambda i: c.ErrorMessage(i, NAME, "bad", 0), BadRequestError),
        (lambda i: c.ErrorMessage(i, NAME, "bad", -1), IllegalStateError),
        (lambda i: c.TableSegmentNotEmpty(i, NAME, ""), TableNotEmptyError),
        (lambda i: c.TableKeyDoesNotExist(i, NAME, ""), TableKeyNotExistsError),
        (lambda i: c.TableKeyBadVersion(i, NAME, ""), TableKeyBadVersionError),
        (lambda i: c.SegmentSealed(i, NAME), ProtocolError),
    ],
)
async def test_failure_replies_become_errors(
    store: Any, client: SegmentClient, make: Callable[[int], c.Command], error: type[Exception]
) -> None:
    store.answer(c.GetStreamSegmentInfo, make)
    with pytest.raises(error):
        await client.segment_info(NAME)


async def test_nothing_is_retried_for_ever(store: Any, pool: ConnectionPool) -> None:
    async def locate(_: str) -> Endpoint:
        endpoint: Endpoint = store.endpoint
        return endpoint

    store.cut(c.GetStreamSegmentInfo, times=10_000)
    client = SegmentClient(pool, locate, deadline_s=0.3)
    with pytest.raises((ConnectionLostError, DeadlineError)):  # the last failure, or the deadline during an attempt
        await client.segment_info(NAME)


async def test_a_conditional_table_update_is_recognised_as_its_own(store: Any, client: SegmentClient) -> None:
    entry = TableEntry(b"key", b"mine", -1)
    store.cut(c.UpdateTableEntries)
    store.answer(c.UpdateTableEntries, lambda i: c.TableKeyBadVersion(i, NAME, ""))
    store.answer(c.ReadTable, lambda i: c.TableRead(i, NAME, [TableEntry(b"key", b"mine", 40)]))
    assert await client.table_update(NAME, [entry]) == [40]


async def test_a_table_update_that_others_wrote_after_may_have_been_applied(store: Any, client: SegmentClient) -> None:
    """Its answer was lost; that the condition fails now may be the trace of its own success."""
    store.cut(c.UpdateTableEntries)
    store.answer(c.UpdateTableEntries, lambda i: c.TableKeyBadVersion(i, NAME, ""))
    store.answer(c.ReadTable, lambda i: c.TableRead(i, NAME, [TableEntry(b"key", b"theirs", 40)]))
    with pytest.raises(UnavailableError, match="unknown"):
        await client.table_update(NAME, [TableEntry(b"key", b"mine", -1)])
    store.cut(c.RemoveTableKeys)
    store.answer(c.RemoveTableKeys, lambda i: c.TableKeyBadVersion(i, NAME, ""))
    with pytest.raises(UnavailableError, match="unknown"):
        await client.table_remove(NAME, [(b"key", 7)])


@pytest.mark.parametrize("left", [None, TableEntry(b"b", b"", 8)], ids=["none is left", "one is left"])
async def test_a_removal_of_several_keys_was_applied_when_none_is_left(
    store: Any, client: SegmentClient, left: TableEntry | None
) -> None:
    """Its answer was lost; that a key is missing now may be the trace of another client that removed only that one."""
    store.cut(c.RemoveTableKeys)
    store.answer(c.RemoveTableKeys, lambda i: c.TableKeyDoesNotExist(i, NAME, ""))
    entries = [TableEntry(b"a", b"", -1), left or TableEntry(b"b", b"", -1)]
    store.answer(c.ReadTable, lambda i: c.TableRead(i, NAME, entries))
    removing = client.table_remove(NAME, [(b"a", 7), (b"b", 8)])
    if left is None:
        await removing
    else:
        with pytest.raises(UnavailableError, match="unknown"):
            await removing


async def test_a_condition_that_fails_at_the_first_attempt_is_reported(store: Any, client: SegmentClient) -> None:
    store.answer(c.UpdateTableEntries, lambda i: c.TableKeyBadVersion(i, NAME, ""))
    with pytest.raises(TableKeyBadVersionError):
        await client.table_update(NAME, [TableEntry(b"key", b"mine", -1)])


async def test_missing_table_keys_are_none(store: Any, client: SegmentClient) -> None:
    entries = [TableEntry(b"a", b"", -1), TableEntry(b"b", b"", 7)]
    store.answer(c.ReadTable, lambda i: c.TableRead(i, NAME, entries))
    assert await client.table_get(NAME, [b"a", b"b"]) == [None, entries[1]]


async def test_peers_of_another_version_are_refused(store: Any) -> None:
    store.answer(c.Hello, lambda _: c.Hello(99, 17))
    with pytest.raises(UnsupportedError, match="wire versions 17 to 99"):
        await connect(store.endpoint)


async def test_an_endpoint_without_listener_is_a_lost_connection(store: Any) -> None:
    endpoint = store.endpoint
    await store.stop()
    with pytest.raises(ConnectionLostError, match="not reachable"):
        await connect(endpoint)
    await store.start()


async def test_segments_that_are_asked_for_together(store: Any, client: SegmentClient) -> None:
    names = [f"scope/stream/{number}.#epoch.0" for number in range(40)]
    store.create(names[3], b"abc")
    assert await client.create_segments(names[:-1]) == [names[3]]
    found = await client.segment_infos(names)
    assert [info and (info.name, info.length) for info in found] == [
        *((name, 3 * (name == names[3])) for name in names[:-1]),
        None,
    ]
    assert await client.create_segments([]) == []
    assert await client.segment_infos([]) == []


@pytest.mark.parametrize("after_effect", [True, False])
async def test_of_several_requests_those_without_a_reply_are_sent_again(
    store: Any, client: SegmentClient, after_effect: bool
) -> None:
    names = [f"scope/stream/{number}.#epoch.0" for number in range(5)]
    store.cut(c.CreateSegment, after=after_effect)
    existing = await client.create_segments(names)
    assert set(existing) <= set(names) if after_effect else not existing
    assert sorted(store.segments) == names
    store.cut(c.GetStreamSegmentInfo, after=after_effect)
    found = await client.segment_infos([*names, NAME])
    assert [info is not None for info in found] == [True, True, True, True, True, False]
    assert store.connections >= 3


async def test_an_endpoint_that_refuses_connections_is_located_again(store: Any, pool: ConnectionPool) -> None:
    """A pod was killed: a client that knows its address from before must learn where the container went."""
    store.create(NAME, b"moved")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = Endpoint("127.0.0.1", unused.getsockname()[1])
    known = [dead]

    async def locate(_: str) -> Endpoint:
        return known[-1]

    client = SegmentClient(pool, locate, forget=lambda _: known.append(store.endpoint), deadline_s=20.0)
    assert (await client.segment_info(NAME)).length == 5


async def test_a_silent_peer_is_given_up(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(limits, "CLIENT_SILENCE_MAX_S", 1.0)
    store.create(NAME)
    connection = await connect(store.endpoint)
    await asyncio.sleep(1.5)
    assert connection.is_open, "the peer answers keep-alives"
    store.rules.append(lambda command: [] if isinstance(command, c.KeepAlive) else None)
    with pytest.raises(ConnectionLostError, match="sent nothing for"):
        await connection.request(c.ReadSegment(NAME, 0, 10, ""), None)


async def test_a_silent_peer_that_does_not_read_notices_that_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has no room does not read; the bytes that it cannot take would come before a common end."""
    monkeypatch.setattr(limits, "CLIENT_KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(limits, "CLIENT_SILENCE_MAX_S", 1.0)
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()
    lost: asyncio.Future[Exception | None] = loop.create_future()

    class Full(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            transport.write(encode(c.Hello(16, 5)))
            made.set_result(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(exc)

    server = await loop.create_server(Full, "127.0.0.1", 0)
    connection = await connect(Endpoint(*server.sockets[0].getsockname()))
    connection.send(c.AppendBlockEnd(bytes(16), 0, bytes(8 * limits.MIB), 1, 1, 1))
    with pytest.raises(ConnectionLostError, match="sent nothing for"):
        await connection.request(c.ReadSegment(NAME, 0, 10, ""), None)
    (await made).resume_reading()
    async with asyncio.timeout(120):
        assert isinstance(await lost, ConnectionResetError)
    server.close()
    await server.wait_closed()


async def test_frames_may_arrive_in_any_pieces(store: Any, client: SegmentClient) -> None:
    payload = bytes(range(256)) * 4096
    store.create(NAME, payload)
    for offset, length in ((0, 1 << 20), (0, 3), (1 << 19, 1 << 20)):
        assert (await client.read(NAME, offset, length)).data == payload[offset : offset + length]
    reads = await asyncio.gather(*(client.read(NAME, i * 1000, 700 * i) for i in range(1, 50)))
    assert [read.data for read in reads] == [payload[i * 1000 : i * 1000 + 700 * i] for i in range(1, 50)]


async def test_callers_share_one_connection_a_lane(store: Any, pool: ConnectionPool) -> None:
    first, second = await asyncio.gather(pool.get(store.endpoint), pool.get(store.endpoint))
    assert first is second
    assert await pool.get(store.endpoint, "read") is not first
    first.abort()
    assert await pool.get(store.endpoint) is not first
    assert store.connections == 3


async def test_a_closed_pool_makes_no_connections(store: Any, pool: ConnectionPool) -> None:
    connection = await pool.get(store.endpoint)
    await pool.close()
    assert not connection.is_open
    with pytest.raises(IllegalStateError, match="closed"):
        await pool.get(store.endpoint)
