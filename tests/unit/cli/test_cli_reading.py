"""`tailrace read --group`: when it ends, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from harness.localtransport import LocalTransport
from tailrace.cli import reading
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.group.state import policy
from tailrace.client.model import StreamName
from tailrace.common.errors import BadRequestError
from tailrace.kernel import pack_events
from tailrace.rpc import controller_pb2 as pb

from ..client.conftest import TinyController, TinyStore

STREAM = StreamName("s", "t")
E1 = 1 << 32
DEADLINE_S = 120.0
IDLE_MS = 2000


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClientContext]:
    """A client of a stream that was scaled twice, with an event in each of its segments."""
    monkeypatch.setattr(policy, "TIME_UNIT_S", 0.01)
    store = TinyStore()
    await store.start()
    controller = TinyController(store)
    controller.answers["checkStreamExists"] = lambda _: pb.ExistsResponse(exists=True)
    controller.begin((0, 0.0, 1.0))
    controller.scale([0], (E1 + 1, 0.0, 1.0))
    controller.scale([E1 + 1], (2 * E1 + 2, 0.0, 1.0))
    for epoch, identifier in enumerate((0, E1 + 1, 2 * E1 + 2)):
        store.segments[STREAM.segment(identifier)].data += pack_events([b"%d" % epoch])
    context = ClientContext(LocalTransport(controller.handle))
    yield context
    await context.close()
    await store.stop()


async def create(client: ClientContext, checkpoint_ms: int) -> None:
    """Create a group with automatic checkpoints; −1 turns them off."""
    config = group_config({STREAM: None}, automatic_checkpoint_ms=checkpoint_ms, group_refresh_ms=10)
    await ReaderGroupManager(client, "s").create("g", config)


def into(seen: list[bytes]) -> reading.Write:
    """What keeps events in place of printing them."""

    async def write(segment: str, offset: int, events: list[bytes]) -> None:
        seen.extend(events)

    return write


async def go_on(client: ClientContext, write: reading.Write, limit: int | None = None) -> None:
    """Read as a reader of the group."""
    async with asyncio.timeout(DEADLINE_S):
        await reading.read_with_group(client, STREAM, "g", None, write, follow=False, limit=limit, idle_ms=IDLE_MS)


async def read(client: ClientContext, checkpoint_ms: int) -> list[bytes]:
    """Read through a new group."""
    await create(client, checkpoint_ms)
    seen: list[bytes] = []
    await go_on(client, into(seen))
    return seen


async def test_a_group_is_read_past_the_scales_of_its_stream(
    client: ClientContext, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await read(client, IDLE_MS + 500) == [b"0", b"1", b"2"]
    assert capsys.readouterr().err == ""


async def test_events_that_are_left_behind_a_scale_are_reported(
    client: ClientContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reading, "SEGMENTS_TO_COME_S", 0.01)
    assert await read(client, -1) == [b"0"]
    assert "reader group s/g has segments that no reader has yet" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), asyncio.CancelledError()])
async def test_events_that_could_not_be_printed_are_read_again(client: ClientContext, failure: BaseException) -> None:
    async def fail(*_: object) -> None:
        raise failure

    await create(client, -1)
    with pytest.raises(type(failure)):
        await go_on(client, fail)
    seen: list[bytes] = []
    await go_on(client, into(seen), limit=1)
    assert seen == [b"0"]


@pytest.mark.parametrize(("count", "named"), [(1, "s/u0"), (3, "s/u0, s/u1, s/u2"), (5, "s/u0, s/u1, s/u2 and 2 more")])
async def test_a_group_of_several_streams_is_not_read_as_one_of_them(
    client: ClientContext, count: int, named: str
) -> None:
    """The events of the others would be printed, too, and count as read."""
    others = {StreamName("s", f"u{number}"): None for number in range(count)}
    manager = ReaderGroupManager(client, "s")
    await manager.create("g", group_config({STREAM: None, **others}, group_refresh_ms=10))
    seen: list[bytes] = []
    with pytest.raises(BadRequestError, match=f"reader group s/g reads {named}, too: this command reads groups of one"):
        await go_on(client, into(seen))
    assert seen == []
    assert await (await manager.open("g")).online_readers() == []
