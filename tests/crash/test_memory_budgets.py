"""The memory of a server stays below what it prints at start, whatever is written, and every byte is read back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from harness.minio import MinioProcess
from harness.server import Server
from tailrace.wire import codec
from tailrace.wire import commands as c

FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
CACHE = "128MiB"
AWAY_S = 60.0
ANSWER_DEADLINE_S = 300.0
READ_BYTES = 1 << 20
T = TypeVar("T")
_HEAD = struct.Struct(">IQ")


@dataclass(frozen=True)
class Load:
    """What is written: by each connection ``groups`` of ``writers`` one after another, each writer ``rounds`` appends.

    A writer has ``in_flight`` appends without an acknowledgement. All connections write one segment, or each its own.
    """

    connections: int
    writers: int
    rounds: int
    length_bytes: int
    in_flight: int
    groups: int = 1
    shared: bool = False

    def segment(self, connection: int) -> str:
        """The segment of a connection."""
        return f"memory/stream/{0 if self.shared else connection}.#epoch.0"

    def content(self, writer: int, number: int) -> bytes:
        """What a writer appends."""
        return _HEAD.pack(writer, number) + bytes([writer & 0xFF]) * (self.length_bytes - _HEAD.size)


SHORT = {"large appends": Load(connections=8, writers=1, rounds=10, length_bytes=8_000_000, in_flight=10)}
LONG = {
    "large appends": Load(connections=8, writers=1, rounds=40, length_bytes=8_000_000, in_flight=10),
    "appends of 10 KB": Load(connections=4, writers=4, rounds=12_000, length_bytes=10_000, in_flight=100),
    "small appends": Load(connections=4, writers=25, rounds=20_000, length_bytes=100, in_flight=50),
    "many writers": Load(connections=4, writers=2000, rounds=1, length_bytes=24, in_flight=1, groups=13, shared=True),
}
LOADS = LONG if FULL else SHORT


class Connection:
    """A connection to the segment store that speaks its protocol, without a client that limits itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, server: Server) -> AsyncIterator[Connection]:
        """Connect and exchange the first messages."""
        connection = cls(*await asyncio.open_connection("127.0.0.1", server.ports["store"], limit=1 << 25))
        try:
            await connection.send(c.Hello(17, 5))
            await connection.answer(c.Hello)
            yield connection
        finally:
            connection._writer.close()
            with suppress(ConnectionError):
                await connection._writer.wait_closed()

    async def send(self, command: c.Command) -> None:
        """Send a command."""
        self._writer.write(codec.encode(command))
        await self._writer.drain()

    async def answer(self, kind: type[T]) -> T:
        """The next command, which must be of that kind."""
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            code, length = struct.unpack(">ii", await self._reader.readexactly(8))
            command = codec.decode(code, await self._reader.readexactly(length))
        assert isinstance(command, kind), f"{command} in place of {kind.__name__}"
        return command


class Writers:
    """The writers of one connection."""

    def __init__(self, load: Load, number: int, connection: Connection) -> None:
        self._load, self._number, self._connection = load, number, connection
        self._segment = load.segment(number)

    async def write(self) -> None:
        """Write everything; return when all of it is acknowledged."""
        load = self._load
        for group in range(load.groups):
            first = (self._number * load.groups + group) * load.writers
            ids = {uuid.uuid4().bytes: first + index for index in range(load.writers)}
            await self._set_up(list(ids))
            for begin in range(0, load.rounds, load.in_flight):
                await self._round(ids, begin, min(load.rounds, begin + load.in_flight))

    async def _set_up(self, ids: list[bytes]) -> None:
        for at in range(0, len(ids), 500):
            part = ids[at : at + 500]
            for writer in part:
                await self._connection.send(c.SetupAppend(1, writer, self._segment, ""))
            for _ in part:
                await self._connection.answer(c.AppendSetup)

    async def _round(self, ids: dict[bytes, int], begin: int, end: int) -> None:
        load = self._load

        async def send() -> None:
            for number in range(begin, end):
                for writer, index in ids.items():
                    data = load.content(index, number)
                    await self._connection.send(c.AppendBlockEnd(writer, 0, data, 1, number + 1, number))

        sending = asyncio.create_task(send())
        waiting = set(ids)
        while waiting:
            reply = await self._connection.answer(c.DataAppended)
            if reply.event_number == end:
                waiting.discard(bytes(reply.writer_id))
        await sending


async def read_back(server: Server, segment: str, length_bytes: int) -> AsyncIterator[bytes]:
    """The bytes of a segment, in pieces."""
    offset = 0
    async with Connection.to(server) as connection:
        while offset < length_bytes:
            await connection.send(c.ReadSegment(segment, offset, READ_BYTES, "", 1))
            reply = await connection.answer(c.SegmentRead)
            assert reply.data
            yield bytes(reply.data)
            offset += len(reply.data)


async def check_content(server: Server, load: Load) -> None:
    """Each append is there once, unchanged, and those of a writer in their order."""
    found: dict[int, int] = {}
    of_a_connection = load.groups * load.writers * load.rounds * load.length_bytes
    length_bytes = of_a_connection * (load.connections if load.shared else 1)
    for segment in dict.fromkeys(load.segment(number) for number in range(load.connections)):
        left = b""
        async for piece in read_back(server, segment, length_bytes):
            left += piece
            whole = len(left) // load.length_bytes * load.length_bytes
            for at in range(0, whole, load.length_bytes):
                writer, number = _HEAD.unpack_from(left, at)
                assert number == found.get(writer, 0), f"writer {writer}: {number} after {found.get(writer, 0)}"
                assert left[at : at + load.length_bytes] == load.content(writer, number)
                found[writer] = number + 1
            left = left[whole:]
        assert not left
    assert found == dict.fromkeys(range(load.connections * load.groups * load.writers), load.rounds)


def resident_bytes(pid: int) -> int:
    """The largest resident size of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.fixture(params=("folder", "MinIO", "MinIO away") if FULL else ("folder",))
def tier2(request: pytest.FixtureRequest) -> str:
    """Where Tier 2 is, and whether it does not answer for a minute."""
    return str(request.param)


@pytest.fixture
async def server(tier2: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    options, environment = ["--cache", CACHE], {}
    if tier2 != "folder":
        minio: MinioProcess = request.getfixturevalue("minio_server")
        options += ["--tier2", f"s3://{minio.new_bucket()}", "--s3-endpoint", minio.endpoint]
        environment = minio.credentials
    async with Server(tmp_path / "server", options=options, environment=environment) as made:
        await made.start()
        yield made


async def pause_store(minio: MinioProcess) -> None:
    """The store takes connections and does not answer, for a minute."""
    await asyncio.sleep(2)
    assert minio.process is not None
    os.kill(minio.process.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(AWAY_S)
    finally:
        os.kill(minio.process.pid, signal.SIGCONT)


async def loop_stalls(server: Server) -> str:
    """How often the server's event loop was late, and how late at most."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.ports['admin']}", timeout=60) as client:
        text = (await client.get("/metrics")).raise_for_status().text
    found = dict(line.split(" ") for line in text.splitlines() if line.startswith("tailrace_loop_"))
    longest_ms = 1000 * float(found["tailrace_loop_stall_longest_seconds"])
    return f"{float(found['tailrace_loop_stalls_total']):.0f} stalls of the loop, the longest {longest_ms:.0f} ms"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LOADS)
async def test_the_peak_stays_below_the_printed_total(
    server: Server, tier2: str, name: str, request: pytest.FixtureRequest
) -> None:
    load = LOADS[name]
    (printed,) = server.log_events("budgets")
    async with Connection.to(server) as connection:
        for segment in dict.fromkeys(load.segment(number) for number in range(load.connections)):
            await connection.send(c.CreateSegment(1, segment, 0, 0, ""))
            await connection.answer(c.SegmentCreated)
    pause = asyncio.create_task(pause_store(request.getfixturevalue("minio_server"))) if "away" in tier2 else None

    async def write(number: int) -> None:
        async with Connection.to(server) as connection:
            await Writers(load, number, connection).write()

    try:
        await asyncio.gather(*map(write, range(load.connections)))
        if pause is not None:
            await pause
    finally:
        if pause is not None:
            pause.cancel()
            await asyncio.gather(pause, return_exceptions=True)
    written = resident_bytes(server.pid)
    await check_content(server, load)
    peak = resident_bytes(server.pid)
    figures = f"{written >> 20} MiB at the peak, {peak >> 20} after reading, {printed['total'] >> 20} printed"
    print(f"{name}, {tier2}: {figures}; {await loop_stalls(server)}")
    assert peak < printed["total"]
