"""Peers that do not take their replies: what is kept for all of them together is bounded, and no other waits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.common.limits import MIB
from tailrace.segmentstore.server.outbox import Outbox
from tailrace.segmentstore.server.unsent import UnsentReplies
from tailrace.wire import commands as c

SEGMENT = "scope/stream/0.#epoch.0"
TABLE = "scope/table_kvtable/0.#epoch.0"
W = bytes(range(16))


class Peer:
    """A connection's send side, moved by hand."""

    def __init__(self, unsent: UnsentReplies) -> None:
        self.held = 0
        self.handed = 0
        self.woken = 0
        self.reasons: list[str] = []
        self._unsent = unsent

    def send(self, length: int) -> None:
        self.held += length
        self.handed += length
        self._unsent.holds(self, self.held)

    def take(self, length: int) -> None:
        """The peer takes something; the server hears nothing of it, as long as the transport was not full."""
        self.held -= length

    def unsent(self) -> tuple[int, int]:
        return self.held, self.handed

    def room_again(self) -> None:
        self.woken += 1

    def cut_off(self, reason: str) -> None:
        self.reasons.append(reason)
        self.held = 0


@pytest.fixture
async def unsent() -> UnsentReplies:
    return UnsentReplies(asyncio.get_running_loop(), 16 * MIB, look_s=0.01)


async def after_looks() -> None:
    """Long enough for two looks at least."""
    for _ in range(3):
        passed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.011, passed.set_result, None)
        await passed


async def test_the_upper_half_is_for_those_who_hold_nothing(unsent: UnsentReplies) -> None:
    peer = Peer(unsent)
    peer.send(9 * MIB)
    assert not unsent.has_room(holds_nothing=False)
    assert unsent.has_room(holds_nothing=True)
    unsent.reserve(7 * MIB)
    assert not unsent.has_room(holds_nothing=True)
    unsent.release(7 * MIB)
    unsent.forget(peer)
    assert unsent.total_bytes == 0


async def test_what_left_without_a_word_is_no_reason_to_wait(unsent: UnsentReplies) -> None:
    peers = [Peer(unsent) for _ in range(20)]
    for peer in peers:
        peer.send(MIB)
        peer.take(MIB)
    assert not unsent.has_room(holds_nothing=True)
    unsent.wait(peers[0])
    assert peers[0].woken == 1
    assert unsent.total_bytes == 0


async def test_who_takes_nothing_is_cut_off_while_others_wait(unsent: UnsentReplies) -> None:
    stuck, slow, good, waiting = (Peer(unsent) for _ in range(4))
    stuck.send(9 * MIB)
    slow.send(7 * MIB)
    await after_looks()
    assert stuck.reasons == []  # no connection waits
    unsent.wait(waiting)
    await after_looks()
    assert len(stuck.reasons) == 1
    assert slow.reasons
    assert waiting.woken == 1
    assert good.reasons == waiting.reasons == []
    assert unsent.total_bytes == 0


async def test_who_takes_its_replies_is_not_cut_off(unsent: UnsentReplies) -> None:
    good, stuck, waiting = (Peer(unsent) for _ in range(3))
    good.send(12 * MIB)
    stuck.send(8 * MIB)
    unsent.wait(waiting)
    for _ in range(4):
        good.take(MIB)
        await after_looks()
        if waiting.woken:
            break
        unsent.wait(waiting)
    assert stuck.reasons
    assert unsent.total_bytes <= 12 * MIB


async def test_more_than_the_bound_is_dropped_though_none_waits(unsent: UnsentReplies) -> None:
    """Acknowledgements and small replies to those who hold nothing wait for no room."""
    stuck, good = [Peer(unsent) for _ in range(20)], Peer(unsent)
    good.send(MIB)
    for peer in stuck:
        peer.send(MIB)
    for _ in range(8):
        good.take(limits.SEND_PROGRESS_MIN_BYTES)
        await after_looks()
        if unsent.total_bytes <= 16 * MIB:
            break
    assert unsent.total_bytes <= 16 * MIB
    assert 4 <= len([peer for peer in stuck if peer.reasons]) <= 6, "no more than needed"
    assert good.reasons == []


async def test_small_replies_go_on_as_soon_as_they_fit(unsent: UnsentReplies) -> None:
    """Those who wait for a large one wait for more room, so others that take their replies must not keep it full."""
    holding, small, large = (Peer(unsent) for _ in range(3))
    holding.send(16 * MIB)
    unsent.wait(small, is_small=True)
    unsent.wait(large)
    holding.take(4 * MIB)
    unsent.holds(holding, holding.held)
    assert (small.woken, large.woken) == (1, 0)
    holding.take(6 * MIB)
    unsent.holds(holding, holding.held)
    assert (small.woken, large.woken) == (1, 1)


class StalledTransport:
    """A transport of a peer that takes nothing."""

    def __init__(self) -> None:
        self.held = 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.held += len(data)

    def get_write_buffer_size(self) -> int:
        return self.held


async def test_at_the_bound_only_the_smallest_replies_begin(unsent: UnsentReplies) -> None:
    """However many connections there are: each gets one, and further ones once it was taken."""
    loop, transport = asyncio.get_running_loop(), StalledTransport()
    outbox = Outbox(loop, transport, unsent, lambda reason: None)  # type: ignore[arg-type]
    other = Peer(unsent)
    other.send(16 * MIB - 1)
    assert not outbox.is_full(limits.SEND_GATHER_BYTES)
    other.send(1)
    assert outbox.is_full(limits.SEND_GATHER_BYTES)
    assert outbox.is_full(limits.REPLY_FREE_BYTES + 1)
    assert not outbox.is_full(limits.REPLY_FREE_BYTES)
    outbox.send(bytes(limits.REPLY_FREE_BYTES))
    outbox.flush()
    assert outbox.is_full(0)
    transport.held = 0
    assert not outbox.is_full(0)
    outbox.close()
    unsent.forget(other)


async def test_small_replies_do_not_wait_for_large_ones_that_are_being_made(unsent: UnsentReplies) -> None:
    """Large ones can take as long as Tier 2 does, and hold nothing that a peer could take."""
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop, StalledTransport(), unsent, lambda reason: None)  # type: ignore[arg-type]
    other, waiting = Peer(unsent), Peer(unsent)
    unsent.reserve(16 * MIB)
    assert outbox.is_full(limits.SEND_GATHER_BYTES + 1)
    assert not outbox.is_full(limits.SEND_GATHER_BYTES)
    other.send(4 * MIB)
    assert outbox.is_full(limits.SEND_GATHER_BYTES), "they have a bound of their own then"
    unsent.wait(waiting, is_small=True)
    await after_looks()
    assert other.reasons, "it takes nothing"
    assert waiting.woken == 1
    assert not outbox.is_full(limits.SEND_GATHER_BYTES)
    outbox.close()


async def fill_table(client: Any) -> None:
    await client.call(c.CreateTableSegment(1, TABLE, "", False, 0, 0))
    for number in range(8):
        entry = c.TableEntry(b"key%d" % number, bytes(limits.TABLE_VALUE_MAX_BYTES))
        assert isinstance(await client.call(c.UpdateTableEntries(1, TABLE, "", [entry])), c.TableEntriesUpdated)


async def test_table_replies_that_the_peer_does_not_take_are_not_made(model: Any) -> None:
    """A few hundred bytes of requests must not become gigabytes of replies."""
    client = await model.connect()
    await fill_table(client)
    begun = 0
    get = model.registry.tables.get

    async def counted(segment: str, keys: list[bytes]) -> Any:
        nonlocal begun
        begun += 1
        return await get(segment, keys)

    model.registry.tables.get = counted
    client.writer.transport.pause_reading()
    keys = [c.TableKey(b"key%d" % number) for number in range(8)]
    client.send(*(c.ReadTable(number, TABLE, "", keys) for number in range(100)))
    for _ in range(1000):
        await model.turn()
    assert 0 < begun < 10
    client.writer.transport.resume_reading()
    answered = {(await client.expect(c.TableRead)).request_id for _ in range(20)}
    assert answered == set(range(20))


async def test_reads_whose_replies_the_peer_does_not_take_are_not_made(setting: Any) -> None:
    """Reads that are sent at once begin one after the other, so that other connections are served between them."""
    client, count, size = await setting.connect(), 50, limits.READ_REPLY_MAX_BYTES
    await client.create(SEGMENT)
    await client.setup(W, SEGMENT)
    client.send(c.AppendBlockEnd(W, 0, bytes(4 * size), 1, 1, 1))
    await client.expect(c.DataAppended)
    container = setting.registry.container_for(SEGMENT)
    begun = 0
    read = container.read

    async def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal begun
        begun += 1
        return await read(*args, **keywords)

    container.read = counted
    client.writer.transport.pause_reading()
    client.send(*(c.ReadSegment(SEGMENT, number % 4 * size, size, "", number) for number in range(count)))
    await setting.until(lambda: begun > 0)
    for _ in range(1000):
        await setting.turn()
    assert begun < 10
    client.writer.transport.resume_reading()
    replies = [await client.expect(c.SegmentRead) for _ in range(count)]
    assert sorted(reply.request_id for reply in replies) == list(range(count))
    assert all(len(reply.data) == size for reply in replies)
    assert begun == count, "none was read twice"


async def test_large_reads_of_many_connections_begin_in_turns(setting: Any) -> None:
    """So that the small requests of others are answered between them."""
    size, count = limits.READ_REPLY_MAX_BYTES, 12
    clients = [await setting.connect() for _ in range(count)]
    await clients[0].create(SEGMENT)
    await clients[0].setup(W, SEGMENT)
    clients[0].send(c.AppendBlockEnd(W, 0, bytes(size), 1, 1, 1))
    await clients[0].expect(c.DataAppended)
    container = setting.registry.container_for(SEGMENT)
    turns, begun = 0, []
    read = container.read

    async def counted(*args: Any, **keywords: Any) -> Any:
        begun.append(turns)
        return await read(*args, **keywords)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await setting.turn()

    counting = asyncio.create_task(count_turns())
    container.read = counted
    for client in clients:
        client.send(c.ReadSegment(SEGMENT, 0, size, "", 1))
    replies = [await client.expect(c.SegmentRead) for client in clients]
    counting.cancel()
    assert [len(reply.data) for reply in replies] == [size] * count
    assert len(set(begun)) == len(begun) == count, f"several begin in one turn: {begun}"


@pytest.mark.parametrize(
    ("method", "command"),
    [
        ("measure_rates", lambda number: c.GetSegmentRates(0, "", number, -1, [120_000])),
        ("list_segments", lambda number: c.ListSegments(0, "", number, -1)),
    ],
    ids=["rates", "segments"],
)
async def test_looks_at_all_segments_begin_in_turns(setting: Any, method: str, command: Any) -> None:
    """Each costs milliseconds in a container with many segments."""
    client, count = await setting.connect(), 30
    container = setting.registry.container_by_id(0)
    turns, begun = 0, []
    work = getattr(container, method)

    def counted(*args: Any) -> Any:
        begun.append(turns)
        return work(*args)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await setting.turn()

    setattr(container, method, counted)
    counting = asyncio.create_task(count_turns())
    client.send(*(command(number) for number in range(count)))
    replies = [await client.receive() for _ in range(count)]
    counting.cancel()
    assert [reply.request_id for reply in replies] == list(range(count))
    assert len(set(begun)) == len(begun) == count, f"several begin in one turn: {begun}"


async def test_entries_that_fit_no_reply_are_not_all_read(model: Any) -> None:
    client = await model.connect()
    await fill_table(client)
    for number in range(8, 60):
        entry = c.TableEntry(b"key%d" % number, bytes(limits.TABLE_VALUE_MAX_BYTES))
        await client.call(c.UpdateTableEntries(1, TABLE, "", [entry]))
    before = model.model.reads
    refused = await client.call(c.ReadTable(7, TABLE, "", [c.TableKey(b"key%d" % number) for number in range(60)]))
    assert isinstance(refused, c.ErrorMessage)
    assert refused.request_id == 7
    assert model.model.reads - before < 2 * 40  # two reads for each entry


@pytest.mark.parametrize(("size", "count"), [(2 * MIB, 8), (32 * limits.KIB, 192)], ids=["large", "small"])
async def test_many_connections_together_are_bounded(
    tight: Any, capsys: pytest.CaptureFixture[str], size: int, count: int
) -> None:
    """Twenty readers that take nothing hold no more than the bound; another one is still served."""
    good = await tight.connect()
    await good.create(SEGMENT)
    await good.setup(W, SEGMENT)
    for number in range(1, 5):
        await good.call(c.AppendBlockEnd(W, 0, bytes(MIB), 1, number, 1))
    bad = [await tight.connect() for _ in range(20)]
    for client in bad:
        client.writer.transport.pause_reading()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(*(c.ReadSegment(SEGMENT, 0, size, "", number) for number in range(count)))
    most = steady = 0
    async with asyncio.timeout(120):
        while steady < 50:  # until the kernel's buffers are full, too, and nothing moves any more
            before = tight.unsent.total_bytes
            await asyncio.sleep(0.005)
            most = max(most, tight.unsent.total_bytes)
            steady = steady + 1 if before == tight.unsent.total_bytes > 0 else 0
    assert most < (8 + 2 + 1) * MIB
    for number in range(20):
        assert len((await good.call(c.ReadSegment(SEGMENT, 0, size, "", number))).data) == size
    lines = [line for line in capsys.readouterr().out.splitlines() if "connection closed" in line]
    assert lines
    assert all("while other connections wait" in line for line in lines)
