"""A streaming query copies a stream while its processes and the server are killed: each event once, in order by key.

Source and sink are a real server's, whose Tier 2 is a real MinIO (docs/spark.md, docs/spark-sink.md). After every end
of its driver the query is started again at its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from harness.copyingquery import Copy
from harness.minio import MinioProcess
from harness.sequences import Sequences, differences
from harness.server import Server
from harness.sparkdrivers import PLANNER, PROGRESS_DEADLINE_S, TASKS, Drivers
from harness.workload import create_stream, read_from_head
from tailrace.client import Client, StreamName
from tailrace.common import limits
from tailrace.common.errors import NotFoundError
from tailrace.pipelines.sink.query_record import NO_BATCH, QueryRecord
from tailrace.pipelines.sink.query_table import QueryTable

FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
SEEDS = range(1, 21) if FULL else (1,)
KILLS_PER_SCENARIO = 5
SCENARIO_DEADLINE_S = 1800
SOURCE, TARGET = StreamName("spark", "from"), StreamName("spark", "to")
OPTIONS = ("--cache", "64MiB", "--containers", "2")
KEYS = 20
EVENT_BYTES = 200
WRITE_INTERVAL_S = 0.02
"""Between two writes of one event for each of some keys: at most 250 events a second."""
KEYS_PER_WRITE = 5
MOMENT_MAX_S = 2.0
START_MAX_S = 8.0
POLL_S = 0.002


@dataclass
class Scenario:
    """A server, a writer of the source, and the query that copies it into the target."""

    server: Server
    client: Client
    drivers: Drivers
    rng: random.Random
    written: dict[str, int] = field(default_factory=dict)
    _is_written: bool = False

    async def write(self) -> None:
        """Write numbered events for each key, until there are enough; all are acknowledged then."""
        rng = random.Random(self.rng.random())
        keys = [f"k{number}" for number in range(KEYS)]
        async with self.client.writer(SOURCE) as writer:
            while not self._is_written:
                await writer.ready()
                for key in rng.sample(keys, KEYS_PER_WRITE):
                    number = self.written.get(key, 0)
                    self.written[key] = number + 1
                    event = json.dumps({"key": key, "n": number}).ljust(EVENT_BYTES)
                    writer.write_event(event.encode(), key)
                await asyncio.sleep(WRITE_INTERVAL_S)
            await writer.flush()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write while the block runs; afterwards every event is acknowledged."""
        task = asyncio.create_task(self.write())
        try:
            yield
        finally:
            self._is_written = True
            await task

    async def moment(self) -> None:
        """Let the query complete a batch, and let a random time pass."""
        await self.drivers.progress()
        await asyncio.sleep(self.rng.uniform(0, MOMENT_MAX_S))
        await self.drivers.revive()

    async def until_recorded(self, what: Callable[[QueryRecord], bool]) -> None:
        """Wait until the record of the query in the target's scope says so."""
        table: QueryTable | None = None
        async with asyncio.timeout(PROGRESS_DEADLINE_S):
            while True:
                await self.drivers.revive()
                if table is None and (query := self.drivers.query_id()) is not None:
                    table = QueryTable(self.client.context, TARGET, query, limits.TRANSACTION_LEASE_MAX_MS)
                    try:
                        await table.open()
                    except NotFoundError:
                        table = None
                if table is not None and what((await table.load())[0]):
                    return
                await asyncio.sleep(POLL_S)

    async def drain(self) -> None:
        """Wait until Spark knows that all of the source is copied."""
        tail = (await self.client.streams.tail(SOURCE)).positions
        async with asyncio.timeout(PROGRESS_DEADLINE_S):
            while (position := self.drivers.position()) is None or position.positions != tail:
                await self.drivers.revive()
                await asyncio.sleep(POLL_S * 10)

    async def check(self) -> None:
        """The target has each event once, and those of a key in order."""
        read = Sequences()
        for segment in await read_from_head(self.client, TARGET):
            for event in segment:
                fields = json.loads(event)
                read.see(fields["key"], fields["n"])
        assert not read.violations, read.report()
        assert not differences(self.written, read.following)


Step = Callable[[Scenario], Awaitable[None]]


async def driver_at_any_moment(scenario: Scenario) -> None:
    """Kill the driver in the middle of what it does."""
    await scenario.moment()
    await scenario.drivers.kill()


async def driver_that_starts(scenario: Scenario) -> None:
    """Kill a driver that may not have come to its first batch."""
    await scenario.drivers.progress()
    await scenario.drivers.kill()
    await scenario.drivers.start()
    await asyncio.sleep(scenario.rng.uniform(0, START_MAX_S))
    await scenario.drivers.kill()


async def driver_that_commits(scenario: Scenario) -> None:
    """Kill the driver between the record of a batch and the record that it is complete."""
    await scenario.moment()
    await scenario.until_recorded(lambda record: record.pending is not None)
    await scenario.drivers.kill()


async def driver_before_its_checkpoint(scenario: Scenario) -> None:
    """Kill the driver when a batch is complete, and Spark has not noted that in the checkpoint."""
    await scenario.moment()
    completed = scenario.drivers.completed
    await scenario.until_recorded(lambda record: NO_BATCH != record.last_batch > completed())
    await scenario.drivers.kill()


async def python_worker(scenario: Scenario) -> None:
    """Kill a process that runs tasks: Spark repeats the task, or the query ends."""
    await kill_one(scenario, TASKS)


async def python_planner(scenario: Scenario) -> None:
    """Kill the process that plans the batches: the query ends."""
    await kill_one(scenario, PLANNER)


async def kill_one(scenario: Scenario, module: str) -> None:
    """Kill one of the driver's Python processes of a module."""
    await scenario.moment()
    async with asyncio.timeout(PROGRESS_DEADLINE_S):
        while not (found := scenario.drivers.python_processes(module)):
            await asyncio.sleep(POLL_S)
            await scenario.drivers.revive()
    scenario.drivers.excused = True
    with contextlib.suppress(psutil.NoSuchProcess):
        scenario.rng.choice(found).kill()


async def server_under_the_query(scenario: Scenario) -> None:
    """Kill the server and start it again; what it has moved to MinIO is read from there."""
    await scenario.moment()
    if scenario.rng.random() < 0.5:
        await scenario.server.flush()
    scenario.drivers.excused = True
    await scenario.server.kill()
    await scenario.server.start()


async def server_and_driver(scenario: Scenario) -> None:
    """Kill the server, and the driver while the server is away."""
    await scenario.moment()
    await scenario.server.kill()
    await asyncio.sleep(scenario.rng.uniform(0, MOMENT_MAX_S))
    await scenario.drivers.kill()
    await scenario.server.start()


KILLS: tuple[Step, ...] = (
    driver_that_commits,
    server_under_the_query,
    python_worker,
    driver_before_its_checkpoint,
    driver_at_any_moment,
    driver_that_starts,
    python_planner,
    server_and_driver,
)


async def scale_the_source(scenario: Scenario) -> None:
    """Replace segments of the source."""
    await scale(scenario, SOURCE)


async def scale_the_target(scenario: Scenario) -> None:
    """Replace segments of the target."""
    await scale(scenario, TARGET)


async def scale(scenario: Scenario, stream: StreamName) -> None:
    """Replace all segments by another number of them."""
    segments = len((await scenario.client.streams.tail(stream)).positions)
    await scenario.client.streams.scale_to(stream, scenario.rng.choice([n for n in (2, 3, 4) if n != segments]))


async def truncate_the_source(scenario: Scenario) -> None:
    """Truncate the source behind the last batch that is complete."""
    position = scenario.drivers.position()
    assert position is not None
    await scenario.client.streams.truncate_stream(SOURCE, position)
    assert await scenario.client.streams.head(SOURCE) == position


CHANGES: tuple[Step, ...] = (scale_the_source, truncate_the_source, scale_the_target)


SHORT: tuple[Step, ...] = (scale_the_source, python_worker, truncate_the_source, driver_that_commits)
"""Few starts of drivers: each takes some ten seconds of processor time. The long form kills the server, too."""


def planned(rng: random.Random, seed: int) -> tuple[Step, ...]:
    """The steps of a scenario: in the long form some kills, each kind in its turn, with a change before each."""
    if not FULL:
        return SHORT
    first = (seed - 1) * KILLS_PER_SCENARIO
    kills = [KILLS[(first + each) % len(KILLS)] for each in range(KILLS_PER_SCENARIO)]
    changes = [CHANGES[(first + each) % len(CHANGES)] for each in range(KILLS_PER_SCENARIO)]
    rng.shuffle(kills)
    rng.shuffle(changes)
    return tuple(step for pair in zip(changes, kills, strict=True) for step in pair)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_query_over_kills(minio: MinioProcess, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    steps = planned(rng, seed)
    repeats = not FULL or rng.random() < 0.5
    tier2 = ("--tier2", f"s3://{minio.new_bucket()}/tier2", "--s3-endpoint", minio.endpoint)
    print(f"seed {seed}: {', '.join(step.__name__ for step in steps)}")
    async with Server(tmp_path / "server", options=(*OPTIONS, *tier2), environment=minio.credentials) as server:
        await server.start()
        async with Client(server.controller) as client:
            for stream in (SOURCE, TARGET):
                await create_stream(client, stream, 2)
            copy = Copy(
                controller=server.controller,
                source=str(SOURCE),
                target=str(TARGET),
                folder=str(tmp_path / "spark"),
                repeats=repeats,
                faults_every=20 if repeats else 0,
                options=rng.choice([{}, {"maxBytesPerTrigger": "500000"}]),
            )
            scenario = Scenario(server, client, Drivers(copy), rng)
            try:
                async with scenario.writing():
                    await scenario.drivers.progress()
                    for step in steps:
                        await step(scenario)
                        print(f"{step.__name__}, batch {scenario.drivers.completed()}")
                    await scenario.drivers.progress()
                await scenario.drivers.revive()
                await scenario.drain()
            finally:
                await scenario.drivers.close()
            await scenario.check()
    faults = len(list(copy.faults.iterdir()))
    print(
        f"{sum(scenario.written.values())} events, {scenario.drivers.completed() + 1} batches, "
        f"{scenario.drivers.starts} starts, {faults} planted faults, ends {scenario.drivers.ends}"
    )
    assert bool(faults) == repeats
