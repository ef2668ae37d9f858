"""The blocking facade at its edges: several threads, closing under others, its own thread, forks, the program's end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.localtransport import LocalTransport
from tailrace.client import BlockingClient, StreamName, group_config
from tailrace.client.blocking.portal import Portal
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, IllegalStateError, TailraceError
from tailrace.kernel import pack_events
from tailrace.wire import commands as c

STREAM = StreamName("s", "t")
DEADLINE_S = 120.0


@pytest.fixture
async def client(controller: Any) -> AsyncIterator[BlockingClient]:
    controller.begin((0, 0.0, 1.0))
    client = await asyncio.to_thread(BlockingClient, LocalTransport(controller.handle))
    yield client
    await asyncio.to_thread(client.close)


async def in_thread(function: Any, *arguments: Any) -> Any:
    """Run in a daemon thread, which does not delay the process's exit when it hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(result) if error is None else done.set_exception(error)

    def work() -> None:
        try:
            result, error = function(*arguments), None
        except BaseException as raised:
            result, error = None, raised
        loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    async with asyncio.timeout(DEADLINE_S):
        return await done


async def test_closing_ends_calls_of_other_threads(store: Any, client: BlockingClient) -> None:
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)
    writer = await in_thread(client.writer, "s/t")
    groups = client.reader_groups("s")
    await in_thread(groups.create, "g", group_config({STREAM: None}))
    reader = await in_thread(client.reader, "s", "g", "r")
    await in_thread(writer.write_event, b"x")
    flushing = asyncio.create_task(in_thread(writer.flush))
    reading = asyncio.create_task(in_thread(reader.read_event, 60_000))
    await asyncio.sleep(0.1)
    await in_thread(client.close)
    for task in (flushing, reading):
        with pytest.raises(TailraceError, match="closed"):
            await task


async def test_a_closed_client_refuses_calls(client: BlockingClient) -> None:
    writer = await in_thread(client.writer, "s/t")
    await in_thread(client.close)
    await in_thread(client.close)
    for call in (client.streams.list_scopes, writer.flush):
        with pytest.raises(IllegalStateError, match="closed"):
            await in_thread(call)


async def interrupted(reader: Any, call: Any, *arguments: Any) -> None:
    """Make a call whose caller an interrupt, as of Ctrl-C, meets when the call has ended on the client's loop."""
    run = reader._run

    def run_and_interrupt(work: Any) -> Any:
        run(work)
        raise KeyboardInterrupt

    reader._run = run_and_interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            await in_thread(call, *arguments)
    finally:
        reader._run = run


GROUP = group_config({STREAM: None}, group_refresh_ms=10, automatic_checkpoint_ms=-1)


@pytest.mark.parametrize("iterate", [False, True])
async def test_events_of_an_interrupted_read_are_not_lost(iterate: bool, store: Any, client: BlockingClient) -> None:
    store.segments[STREAM.segment(0)].data += pack_events([b"%d" % i for i in range(6)])
    await in_thread(client.reader_groups("s").create, "g", GROUP)
    reader = await in_thread(client.reader, "s", "g", "r1")
    got = await in_thread(reader.read_events, 2, 20_000)
    if iterate:
        await interrupted(reader, next, reader.events(idle_ms=20_000))
    else:
        await interrupted(reader, reader.read_events, 2, 20_000)
    assert (await in_thread(lambda: reader.position)).positions == {STREAM.segment(0): 18}
    got += await in_thread(reader.read_events, 1, 20_000)
    await interrupted(reader, reader.read_events, 2, 20_000)
    await in_thread(reader.close)
    heir = await in_thread(client.reader, "s", "g", "r2")
    while len(got) < 6:
        got += await in_thread(heir.read_events, 6, 20_000)
    await in_thread(heir.close)
    assert [item.event for item in got] == [b"%d" % i for i in range(6)]


async def test_a_checkpoint_of_an_interrupted_read_is_returned_again(client: BlockingClient) -> None:
    await in_thread(client.reader_groups("s").create, "g", GROUP)
    group = await in_thread(client.reader_groups("s").open, "g")
    reader = await in_thread(client.reader, "s", "g", "r1")
    asking = asyncio.create_task(in_thread(lambda: group.checkpoint("cp", deadline_s=DEADLINE_S)))
    await interrupted(reader, reader.read_event, 20_000)
    assert (await in_thread(reader.read_event, 20_000)).checkpoint == "cp"
    while not asking.done():
        assert await in_thread(reader.read_event, 20) is None
    await asking
    await in_thread(reader.close)


@pytest.mark.parametrize("method", ["read", "read_exactly"])
async def test_bytes_of_an_interrupted_read_are_not_lost(method: str, store: Any, client: BlockingClient) -> None:
    store.segments[STREAM.segment(0)].data += b"0123456789"
    reader = await in_thread(client.byte_reader, "s/t")
    read = getattr(reader, method)
    got = await in_thread(read, 3)
    await interrupted(reader, read, 3)
    got += await in_thread(read, 3)
    assert got == b"012345"
    await interrupted(reader, read, 2)
    reader.seek(1)
    assert await in_thread(read, 2) == b"12", "a seek holds after an interrupted read"
    with pytest.raises(BadRequestError):
        reader.seek(-1)
    assert await in_thread(read, 2) == b"34", "a refused seek changes nothing"


async def test_a_read_of_bytes_waits_for_an_interrupted_one_that_still_ends(store: Any, client: BlockingClient) -> None:
    """The interrupt ends the wait of the caller; the call on the client's loop may find its bytes later."""
    reader = await in_thread(client.byte_reader, "s/t")
    run = reader._run
    interrupted_calls: list[asyncio.Task[bytes]] = []

    def begin_and_interrupt(work: Any) -> Any:
        async def begin() -> None:
            interrupted_calls.append(asyncio.create_task(work))

        run(begin())
        raise KeyboardInterrupt

    reader._run = begin_and_interrupt
    with pytest.raises(KeyboardInterrupt):
        await in_thread(reader.read, 3)
    reader._run = run
    reading = asyncio.create_task(in_thread(reader.read_exactly, 5))
    await asyncio.sleep(0.1)
    store.segments[STREAM.segment(0)].data += b"0123456789"
    async with store.grown:
        store.grown.notify_all()
    assert await reading == b"01234"
    assert await in_thread(reader.read, 5) == b"56789"
    assert interrupted_calls[0].result() == b"012"


async def test_a_call_from_the_clients_own_thread_does_not_wait_for_itself() -> None:
    portal = Portal()

    async def nothing() -> None:
        return None

    async def nested() -> None:
        portal.run(nothing())

    try:
        with pytest.raises(IllegalStateError, match="own thread"):
            await in_thread(portal.run, nested())
    finally:
        await in_thread(portal.close)


async def test_threads_share_a_writer(
    store: Any, client: BlockingClient, monkeypatch: pytest.MonkeyPatch, split: Any
) -> None:
    """More threads than room for their events: every write waits, none is refused."""
    monkeypatch.setattr(limits, "WRITER_BUFFERED_MAX_BYTES", 1000)
    writer = await in_thread(client.writer, "s/t")

    def write(number: int) -> None:
        for turn in range(20):
            writer.write_event(b"%d:%d:" % (number, turn) + bytes(800), str(number))

    await asyncio.gather(*(in_thread(write, number) for number in range(8)))
    await in_thread(writer.close)
    events = [event.split(b":") for event in split(store.segments[STREAM.segment(0)].data)]
    for number in range(8):
        assert [int(turn) for who, turn, _ in events if int(who) == number] == list(range(20))


async def test_an_exception_does_not_wait_for_a_server_that_is_away(store: Any, client: BlockingClient) -> None:
    store.rules.append(lambda command: [] if isinstance(command, c.AppendBlockEnd) else None)

    def fail(make: Any, write: str) -> None:
        with make("s/t") as writer:
            getattr(writer, write)(b"x")
            raise ZeroDivisionError

    for make, write in ((client.writer, "write_event"), (client.byte_writer, "write")):
        with pytest.raises(ZeroDivisionError):
            await in_thread(fail, make, write)


async def test_a_wrong_address_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(BadRequestError):
        await asyncio.to_thread(BlockingClient, "http://nowhere")
    assert threading.active_count() <= before + 1, "the thread of to_thread may stay"


def test_a_forked_child_must_create_its_own_client() -> None:
    portal = Portal()

    async def answer() -> int:
        return 42

    assert portal.run(answer()) == 42
    child = os.fork()
    if child == 0:
        code = 1
        try:
            portal.run(answer())
        except IllegalStateError:
            portal.close()
            code = 0
        finally:
            os._exit(code)
    ends_at = time.monotonic() + DEADLINE_S
    ended, status = 0, 0
    while not ended and time.monotonic() < ends_at:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended, "the child waits for a thread that it does not have"
    assert status == 0
    assert portal.run(answer()) == 42, "the parent's client goes on"
    portal.close()


PROGRAM = """
import logging, sys, threading
logging.getLogger("asyncio").setLevel(logging.ERROR)  # without its warnings of callbacks that a slow machine makes slow
from tailrace.client import BlockingClient
from tailrace.common.errors import IllegalStateError

def wait_for_no_reply():
    try:
        client.streams.list_scopes()
    except IllegalStateError:  # the end of the program closes the client
        pass

client = BlockingClient(sys.argv[1])
for source in sys.argv[2:]:
    exec(source)
print("end")
"""


@pytest.mark.parametrize(
    "work",
    [
        "pass",
        "threading.Thread(target=wait_for_no_reply, daemon=True).start()",
        "keep = client.read_slice(None)",
    ],
)
def test_a_program_may_end_without_closing_its_client(work: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, "tcp://127.0.0.1:1", work],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
