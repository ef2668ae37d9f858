"""One object is damaged while writers and readers use its container: only what needs it is refused, and it is named.

Each kind of stored object has a class: how its damage comes about, what is refused, where verify finds it, and the way
back of docs/operations/troubleshoot.md#damaged-data. Nothing here depends on the pace of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.damage import WITHIN_S, Bench, Traffic, flip, refusal
from harness.pods import until
from harness.server import Server
from tailrace.client import NO_VERSION, Client, StreamName, TableEntry
from tailrace.client.control.tables import TableConfig
from tailrace.client.reader.batch import SegmentSlice
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import names
from tailrace.common.errors import TailraceError, UnavailableError
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.log.disk import RealDisk
from tailrace.log.frames import SECTOR_BYTES
from tailrace.log.scan import scan_directory
from tailrace.storage.chunks import BLOCK_BYTES, BLOCK_STRIDE

SCOPE = "damaged"
BESIDE = 3
"""Streams in the container of the damage, or, where a whole container is in doubt, in other ones."""
EVENT_BYTES = 4000
STORED_BYTES = EVENT_BYTES + 8
"""Of an event in its segment: with the header of the protocol."""
ROUND_EVENTS = 120
ROUNDS = 3
TABLE_KEYS = 2000
VALUE_BYTES = 600
REFUSED_S = 5.0
"""Of a client's tries, before it says why."""
TEST_TIMEOUT_S = 1800


class Kind(ABC):
    """One kind of stored object. ``place`` is how errors, log lines and verify name what is damaged."""

    containers = 1
    place = ""
    object = ""

    async def prepare(self, bench: Bench, client: Client) -> None:  # noqa: B027  # not all kinds need more
        """Make what will be damaged; afterwards everything is moved to Tier 2 and the server is started again."""

    @abstractmethod
    async def damage(self, bench: Bench, client: Client) -> None:
        """Damage one object in place, while there is load."""

    @abstractmethod
    async def check(self, bench: Bench, client: Client) -> None:
        """What needs the object is refused and named, in the way that is documented; all else is right."""

    @abstractmethod
    async def way_back(self, bench: Bench) -> None:
        """Do what troubleshoot.md says, a dry run first. The server is started, and runs at the end."""


class Chunk(Kind):
    """A data chunk, the second of three, in its second block. The way back: give the stream up to the next chunk."""

    async def prepare(self, bench: Bench, client: Client) -> None:
        for _ in range(ROUNDS):
            async with client.writer(bench.victim.stream) as writer:
                for _ in range(ROUND_EVENTS):
                    await writer.ready()
                    writer.write_event(bench.victim.event(bench.victim.acknowledged), "key")
                    bench.victim.acknowledged += 1
            await bench.server.flush()

    async def damage(self, bench: Bench, client: Client) -> None:
        listed = (await bench.chunks(bench.victim.segment))[1:-1]
        chunk = next(each for each in listed if each["begins_event"] and each["length_bytes"] >= 2 * BLOCK_BYTES)
        first, rest = divmod(chunk["start_offset"], STORED_BYTES)
        assert not rest
        path = bench.objects / chunk["object_key"]
        data = path.read_bytes().index(bench.victim.event(first)[:40]) - 8
        self.object, self.place = chunk["object_key"], f"object {chunk['object_key']} at {data + BLOCK_STRIDE}"
        self.start = chunk["start_offset"] + BLOCK_BYTES
        flip(path, data + BLOCK_STRIDE + bench.rng.randrange(BLOCK_BYTES))

    async def check(self, bench: Bench, client: Client) -> None:
        segment, end = bench.victim.segment, self.start + BLOCK_BYTES
        await refusal(lambda: client.context.segments.read(segment, self.start, 1000), self.place)
        bench.reported(segment, self.place)
        await bench.wait_for_health(f"bytes {self.start} to {end} of {segment} are damaged", self.place)
        await bench.progress(bench.victim, *bench.beside)  # the damaged stream is written
        length = (await client.context.segments.segment_info(segment)).length
        whole = self.start // STORED_BYTES
        assert await first_events(client, bench.victim, SegmentSlice(segment, 0, length), whole) == list(range(whole))
        behind = -(-end // STORED_BYTES)
        events = SegmentSlice(segment, behind * STORED_BYTES, length)
        assert await first_events(client, bench.victim, events, 3) == list(range(behind, behind + 3))

    async def way_back(self, bench: Bench) -> None:
        server, stream = bench.server, str(bench.victim.stream)
        await server.start()
        chunks = await bench.chunks(bench.victim.segment)
        starts = [each["start_offset"] for each in chunks if each["begins_event"]]
        cut = next(start for start in starts if start > self.start)
        words = ("stream", "truncate", stream, f"{bench.victim.segment}:{cut}", "--controller", server.controller)
        would = json.loads(await bench.command(*words, "--dry-run", "--json"))
        piece = {"segment": bench.victim.segment, "from": 0, "to": cut, "bytes": cut}
        assert (would["bytes"], would["segments"]) == (cut, [piece])
        assert (await bench.chunks(bench.victim.segment))[0]["start_offset"] == 0, "a dry run changes nothing"
        async with Client(server.controller) as client, bench.load(client):
            await bench.command(*words)
            await until("the stream is read again", lambda: self.is_whole(bench, client, cut // STORED_BYTES), WITHIN_S)
            await bench.wait_for_health()

    async def is_whole(self, bench: Bench, client: Client, first: int) -> bool:
        before = bench.victim.acknowledged
        try:
            found = await bench.victim.numbers(client)
        except UnavailableError:
            return False
        assert found == list(range(first, first + len(found)))
        assert len(found) >= before - first
        return True


async def first_events(client: Client, traffic: Traffic, piece: SegmentSlice, count: int) -> list[int]:
    """The first events of a slice."""
    found: list[int] = []
    async with asyncio.timeout(WITHIN_S):
        async for events in client.read_slice(piece):
            found += map(traffic.number_of, events)
            if len(found) >= count:
                break
    return found[:count]


class Table(Kind):
    """A table whose segment is in the container of the streams."""

    segment = ""
    damaged = TABLE_KEYS // 3
    """The key that is asked for; one of those that the first flush of the index took."""

    async def prepare(self, bench: Bench, client: Client) -> None:
        await client.context.controller.create_table(SCOPE, "table", TableConfig(1, 8))
        (part,) = await client.context.controller.table_segments(SCOPE, "table")
        self.segment = StreamName(SCOPE, "table" + names.TABLE_SUFFIX).segment(part.identifier)
        assert container_of(self.segment, bench.containers) == bench.container
        for first in range(0, TABLE_KEYS, 500):
            rows = [TableEntry(self.key(each), self.value(each), NO_VERSION) for each in range(first, first + 500)]
            await client.context.segments.table_update(self.segment, rows)

    @staticmethod
    def key(number: int) -> bytes:
        return number.to_bytes(8, "big")

    @staticmethod
    def value(number: int) -> bytes:
        return (b"value of %08d;" % number * VALUE_BYTES)[:VALUE_BYTES]

    async def get(self, client: Client, number: int) -> bytes:
        (found,) = await client.context.segments.table_get(self.segment, [self.key(number)])
        assert found is not None
        return found.value

    async def put(self, client: Client, number: int) -> None:
        await client.context.segments.table_update(self.segment, [TableEntry(self.key(number), b"new", NO_VERSION)])

    @abstractmethod
    def repair(self, bench: Bench) -> None:
        """Put the object back as it was."""

    async def way_back(self, bench: Bench) -> None:
        await bench.server.start()
        async with Client(bench.server.controller) as client, bench.load(client):
            client.context.segments._deadline_s = REFUSED_S
            await refusal(lambda: self.get(client, self.damaged), self.place)
            self.repair(bench)

            async def is_read() -> bool:
                with contextlib.suppress(UnavailableError):
                    return await self.get(client, self.damaged) == self.value(self.damaged)
                return False

            await until("the key is read again", is_read, WITHIN_S)
            for number in range(0, TABLE_KEYS, 100):
                assert await self.get(client, number) == self.value(number)
            await bench.wait_for_health()


class Entry(Table):
    """An entry of a table, in a data chunk. The way back: put the object back; it is read again at once."""

    async def damage(self, bench: Bench, client: Client) -> None:
        chunks = {each["object_key"] for each in await bench.chunks(self.segment)}
        contents = {key: (bench.objects / key).read_bytes() for key in chunks}
        self.damaged, self.object = next(  # some values go on in the next block
            (number, key)
            for number in range(TABLE_KEYS // 3, TABLE_KEYS // 2)
            for key, content in contents.items()
            if self.value(number) in content
        )
        at = contents[self.object].index(self.value(self.damaged)) + bench.rng.randrange(VALUE_BYTES)
        self.flipped = bench.objects / self.object, at
        self.place = f"object {self.object} at "  # the block's: where its section begins is not known here
        flip(*self.flipped)

    async def keys(self, client: Client) -> list[bytes]:
        async with client.table(SCOPE, "table") as table:
            return [entry.key.primary async for entry in table.entries()]

    def repair(self, bench: Bench) -> None:
        flip(*self.flipped)

    async def check(self, bench: Bench, client: Client) -> None:
        await refusal(lambda: self.get(client, self.damaged), self.place)
        await refusal(lambda: self.put(client, self.damaged), self.place)  # its version is unknown
        await refusal(lambda: self.keys(client), self.place)  # an iteration does not skip it
        bench.reported(self.segment, self.place)
        position = int(re.findall(re.escape(self.place) + r"(\d+)", bench.server.log)[0])
        assert position <= self.flipped[1] < position + BLOCK_STRIDE
        self.place += str(position)
        await bench.wait_for_health(f" of {self.segment} are damaged", self.place)
        far = BLOCK_BYTES // VALUE_BYTES + 1
        for number in (0, self.damaged - far, self.damaged + far, TABLE_KEYS - 1):
            assert await self.get(client, number) == self.value(number)
        await self.put(client, TABLE_KEYS + 1)
        assert await self.get(client, TABLE_KEYS + 1) == b"new"


class Page(Table):
    """The newest object of a table's attribute index. The way back: put it back; within a minute it is read again."""

    async def prepare(self, bench: Bench, client: Client) -> None:
        await super().prepare(bench, client)
        await until("the index is in Tier 2", lambda: [*bench.objects.glob("a0/*/*")], WITHIN_S)

    async def damage(self, bench: Bench, client: Client) -> None:
        while any(each["details"]["index_page_bytes"] for each in await bench.containers_listed()):
            await bench.server.kill()  # a flush was due: the pages are in memory
            await bench.server.start()
        self.path = max(bench.objects.glob("a0/*/*"), key=lambda path: path.name)
        self.object = str(self.path.relative_to(bench.objects))
        self.place = f"object {self.object} at "
        self.repair(bench)

    def repair(self, bench: Bench) -> None:
        """Flip bits, or take that back: in every page, because which one a key needs is not known here."""
        for offset in range(500, self.path.stat().st_size, 500):
            flip(self.path, offset)

    async def check(self, bench: Bench, client: Client) -> None:
        await refusal(lambda: self.get(client, self.damaged), self.place)
        bench.reported(self.segment, self.place)
        (line,) = bench.server.log_events("attribute_index_damaged")
        assert line["segment"] == self.segment
        assert line["place"].startswith(self.place)
        await bench.wait_for_health(f"the attribute index of {self.segment} is damaged", self.place)
        length = (await client.context.segments.segment_info(self.segment)).length
        data = await client.context.segments.read(self.segment, length - STORED_BYTES, STORED_BYTES)
        assert data.data, "the bytes of the segment are read"

    async def way_back(self, bench: Bench) -> None:
        await super().way_back(bench)
        assert bench.server.log_events("attribute_index_read_again")


class Snapshot(Kind):
    """The newest snapshot. Nothing is refused but a restore; the way back: the next snapshot replaces it."""

    async def damage(self, bench: Bench, client: Client) -> None:
        await bench.server.flush()
        self.harm(bench, max(bench.objects.glob("s0/*"), key=lambda path: path.name))

    def harm(self, bench: Bench, path: Path) -> None:
        """Damage one snapshot."""
        self.path, self.whole = path, bench.server.folder / "whole"
        self.object = str(path.relative_to(bench.objects))
        self.place = f"object {self.object}"
        shutil.copy(path, self.whole)
        flip(path, bench.rng.randrange(path.stat().st_size))

    async def check(self, bench: Bench, client: Client) -> None:
        await bench.progress(bench.victim, *bench.beside)
        assert await bench.health() == {"state": "running", "reason": ""}

    async def dry_run(self, bench: Bench, code: int) -> str:
        words = ("restore", "--tier2", f"file://{bench.objects}", "--data", str(bench.server.folder / "new"))
        found = await bench.command(*words, "--dry-run", "--json", code=code)
        assert not (bench.server.folder / "new").exists()
        return found

    async def way_back(self, bench: Bench) -> None:
        server = bench.server
        newest = max(bench.objects.glob("s0/*"), key=lambda path: path.name)
        if newest != self.path:  # one was due meanwhile
            shutil.copy(self.whole, self.path)
            self.harm(bench, newest)
        assert self.place in await self.dry_run(bench, 1), "a restore never takes what is damaged"
        await server.start()
        async with Client(server.controller) as client, bench.load(client):
            await server.flush()
            newest = max(bench.objects.glob("s0/*"), key=lambda path: path.name)
            assert newest.name > self.path.name
        await server.kill()
        found = json.loads(await self.dry_run(bench, 0))
        assert found["whole"]
        assert found["dry_run"]
        await server.start()
        async with Client(server.controller) as client, bench.load(client):
            async with asyncio.timeout(WITHIN_S):
                while self.path.exists():
                    await server.flush()  # the newest three are kept


class Frame(Kind):
    """A log frame, found when its container opens: all of that is in doubt. The way back: restore the snapshots."""

    containers = 4

    async def damage(self, bench: Bench, client: Client) -> None:
        """The machine is restarted under load, and a frame is not what it was; it is none of the last ones."""
        server, written = bench.server, bench.victim.acknowledged
        self.restored = {each.stream: each.acknowledged for each in (bench.victim, *bench.beside)}
        await server.flush()  # so the newest snapshots have that
        await until("there are more frames", lambda: bench.victim.acknowledged > written + 20, WITHIN_S)
        await server.kill()
        found = await scan_directory(RealDisk(), str(server.data / "log" / str(bench.container)), bench.container)
        scan = max(found, key=lambda scan: scan.epoch)
        assert len(scan.sectors) > 4
        index = bench.rng.randrange(1, len(scan.sectors) - 1)
        start, end = (scan.sectors[at] * SECTOR_BYTES for at in (index, index + 1))
        self.flipped = Path(scan.name), bench.rng.randrange(start, end)
        self.object, self.place, self.position = scan.name, scan.name, start
        flip(*self.flipped)
        await server.start()

    async def check(self, bench: Bench, client: Client) -> None:
        health = await bench.health()
        assert health["state"] == "stopped"
        assert self.place in health["reason"]
        assert f"offset {self.position}" in health["reason"]
        assert health["reason"] in [line["reason"] for line in bench.server.log_events("container_stopped")]
        bench.is_victim_stuck = True
        states = {each["container_id"]: each["state"] for each in await bench.containers_listed()}
        others = set(range(self.containers)) - {bench.container}
        assert states == {bench.container: "stopped"} | dict.fromkeys(others, "running")
        with pytest.raises(TailraceError):
            await client.context.segments.segment_info(bench.victim.segment)

    async def way_back(self, bench: Bench) -> None:
        server = bench.server
        aside = server.folder / "aside"
        shutil.move(server.data, aside)
        words = ("restore", "--tier2", f"file://{server.folder}/objects", "--data", str(server.data), "--json")
        would = json.loads(await bench.command(*words, "--dry-run"))
        assert not server.data.exists()
        assert would["whole"]
        done = json.loads(await bench.command(*words))
        assert [segments(each) for each in done["containers"]] == [segments(each) for each in would["containers"]]
        bench.is_victim_stuck = False
        await server.start()
        async with Client(server.controller) as client:
            for traffic in (bench.victim, *bench.beside):
                found = await traffic.numbers(client)
                assert found == list(range(len(found)))
                assert len(found) >= self.restored[traffic.stream], "what the snapshot had is there"
                traffic.acknowledged = len(found)
            async with bench.load(client):
                await bench.progress(bench.victim, *bench.beside)


def segments(container: dict[str, Any]) -> list[tuple[str, int, int]]:
    """What a restore brings back of a container."""
    return [(each["name"], each["start_offset"], each["length"]) for each in container["segments"]]


def streams(containers: int) -> tuple[Traffic, list[Traffic]]:
    """A stream to damage and those beside it: in the same container, if there is one only, else in other ones.

    Then the records of all these streams are in other containers, too.
    """
    found = [Traffic(StreamName(SCOPE, f"s{number}")) for number in range(100)]
    if containers == 1:
        return found[0], found[1 : BESIDE + 1]

    def containers_of(traffic: Traffic) -> tuple[int, int]:
        return container_of(traffic.segment, containers), container_of(StreamKey(*traffic.stream).table, containers)

    victim = next(each for each in found if containers_of(each)[0] == 0 != containers_of(each)[1])
    return victim, [each for each in found if 0 not in containers_of(each)][:BESIDE]


KINDS: dict[str, Callable[[], Kind]] = {
    "chunk": Chunk,
    "table entry": Entry,
    "index page": Page,
    "snapshot": Snapshot,
    "log frame": Frame,
}


@pytest.mark.timeout(TEST_TIMEOUT_S)
@pytest.mark.parametrize("name", KINDS)
async def test_damage_is_named_refuses_only_what_needs_it_and_has_a_way_back(
    name: str, tmp_path: Path, test_seed: int
) -> None:
    print(f"seed {test_seed}")
    kind = KINDS[name]()
    options = ("--cache", "64MiB", "--containers", str(kind.containers), "--tier2", f"file://{tmp_path}/objects")
    (tmp_path / "objects").mkdir()
    async with Server(tmp_path, options=options) as server:
        bench = Bench(server, kind.containers, random.Random(test_seed), *streams(kind.containers))
        bench.victim.event_bytes = EVENT_BYTES
        await server.start()
        async with Client(server.controller) as client:
            await client.streams.create_scope(SCOPE)
            for traffic in (bench.victim, *bench.beside):
                await traffic.create(client)
            async with bench.load(client):
                await bench.progress(bench.victim, *bench.beside)
            await kind.prepare(bench, client)
            await server.flush_until_tiered()
        await server.stop()  # what the cache had is gone: the damaged bytes will be read where they are
        await server.start()
        async with Client(server.controller) as client, bench.load(client):
            client.context.segments._deadline_s = REFUSED_S
            await kind.damage(bench, client)
            await kind.check(bench, client)
        await server.kill()
        # What an index says of entries that cannot be read is a consequence.
        problems = [each for each in await bench.verify() if not each["reason"].startswith("table index: ")]
        assert problems
        assert all(kind.object in problem["place"] for problem in problems), problems
        await kind.way_back(bench)
        async with Client(server.controller) as client:
            for traffic in bench.beside:
                assert await traffic.numbers(client) == list(range(traffic.acknowledged))
        await server.stop()
        await server.verify()
