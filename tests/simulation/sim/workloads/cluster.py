"""Clients of all kinds against segment store and controllers, under crashes, pauses, resets and lost answers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim.knobs import silent_logs, turned
from sim.swarm import Swarm
from sim.violations import Violation, require
from sim.workloads.clusterclients import GROUP, StreamClients, persist
from sim.workloads.clusternodes import Controllers, SimControllerTransport, StoreNode
from sim.workloads.clusterrecreation import RecreatedStream, RecreatedTable
from sim.world import SimWorld
from tailrace.client.async_client import Client
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import DataError, TailraceError
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig

SCOPE = "scope"
STREAM = StreamName(SCOPE, "stream")
AGAIN = StreamName(SCOPE, "again")
CALM_DEADLINE_S = 3600.0
PENDING_DEADLINE_S = 90
SWEEP_DEADLINE_S = 60


class ClusterWorkload:
    """One seed: clients while store and controllers are killed now and then, then calm, then the check."""

    def __init__(self, seed: int) -> None:
        rng = self.random = random.Random(f"{seed}-cluster-workload")
        self.world = SimWorld(seed)
        self.store: StoreNode | None = None
        self.controllers = Controllers(self.world, rng)
        self.lost_answers = rng.choice([0.0, 0.0, 0.02])
        self.segments = rng.randint(1, 4)
        self.crashes = rng.randint(0, 3)
        self.controller_faults = rng.random() < 0.8
        self.swarm = Swarm(
            self.world,
            store=True,
            processes=["server", "clients"],
            clocks=["server", "controller", "clients"],
            connections=[("clients", "server"), ("controller", "server")],
            longest_s=20.0,
        )
        self.main = StreamClients(STREAM, rng)
        self.recreated = RecreatedStream(AGAIN, rng)
        self.tables = RecreatedTable(SCOPE, rng)
        self.epochs: dict[int, int] = {}
        self.knobs: dict[tuple[Any, str], Any] = {
            (limits, "METADATA_BUCKETS"): 2,
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([50, 100_000]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.5, 30.0]),
            (limits, "READER_REQUEST_BYTES"): rng.choice([200, 10_000, limits.MIB]),
            (limits, "WRITER_BLOCK_MAX_BYTES"): rng.choice([300, 10_000, limits.MIB]),
            (limits, "READER_GROUP_COMPACT_BYTES"): rng.choice([500, 512 * limits.KIB]),
            (limits, "READER_GROUP_COMPACT_PROBABILITY"): rng.choice([0.05, 0.5]),
            (limits, "COMPLETED_TRANSACTIONS_PER_CHUNK"): rng.choice([2, 128]),
            (limits, "TRANSACTION_COMMIT_BATCH_MAX"): rng.choice([2, 100]),
        }

    @property
    def steps(self) -> int:
        """Events written and read, rounds of the stream that is created again, and table updates."""
        return self.main.steps + self.recreated.steps + self.tables.steps

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.knobs), self.world as world:
            try:
                world.run(self._main())
            except DataError as error:
                raise Violation(f"a client gets {type(error).__name__}, and nothing was damaged: {error}") from error
            except TailraceError as error:
                raise Violation(f"a client got an unexpected answer: {error!r}") from error
            except TimeoutError as error:
                raise Violation(f"no end within {CALM_DEADLINE_S:g} s after the last fault") from error

    async def _main(self) -> None:
        clients = self.world.process("clients")
        await self._start_store()
        await self.controllers.start()
        await self.controllers.until_ready()
        work = clients.spawn(self._clients())
        self.swarm.begin()
        troubles = [asyncio.create_task(self.swarm.trouble())]
        if self.controller_faults:
            troubles.append(asyncio.create_task(self.controllers.trouble()))
        for _ in range(self.crashes):
            await self._until_killed(work)
            if work.done():
                break
            await asyncio.sleep(self.random.random() ** 2 * 3)
            await self._start_store()
        if not work.done():
            await asyncio.wait([work], timeout=self.random.random() * 40)
        for trouble in troubles:
            trouble.cancel()
        await asyncio.wait(troubles)
        self.swarm.end()
        await self.controllers.calm()
        async with asyncio.timeout(CALM_DEADLINE_S):
            await work
        await self._check_nothing_pends()
        await self._check_no_segment_stays()

    async def _check_nothing_pends(self) -> None:
        """Without any call, live controllers finish what dead ones left; all was deleted, so nothing stays pending."""
        left: list[str] = []
        for _ in range(PENDING_DEADLINE_S):
            left = await self.controllers.pending()
            if not left:
                return
            await asyncio.sleep(1)
        raise Violation(f"work is not finished {PENDING_DEADLINE_S} s after the last call: {left}")

    async def _check_no_segment_stays(self) -> None:
        """All streams were deleted; what paused controllers created since is deleted too."""
        left: list[str] = []
        for _ in range(SWEEP_DEADLINE_S):
            left = await self.controllers.segments()
            if not left:
                return
            await asyncio.sleep(1)
        raise Violation(f"segments of deleted streams stay {SWEEP_DEADLINE_S} s after the last call: {left}")

    async def _start_store(self) -> None:
        self.store = StoreNode(self.world, self.epochs)
        await self.store.process.spawn(self.store.serve())

    async def _until_killed(self, work: asyncio.Future[None]) -> None:
        """Kill the store at some moment, often inside an operation of its disk; now and then a controller with it."""
        store = self.store
        assert store is not None
        power = self.random.random() < 0.5
        waiting: set[asyncio.Future[None]] = {work}
        if self.random.random() < 0.7:
            operations = int(self.random.random() ** 2 * 300)
            waiting.add(self.world.crash_at_disk_operation(store.process, operations, power=power))
        seconds = self.random.random() ** 2 * 10
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and store.process.alive:
            return
        if store.process.alive:
            self.world.crash(store.process, power=power)
        self.store = None
        if self.random.random() < 0.3 and self.controllers.current is not None:
            self.controllers.kill(self.controllers.current)
            await self.controllers.start()

    # -- clients

    async def _clients(self) -> None:
        transport = SimControllerTransport(self.controllers, self.random, self.lost_answers)
        client = Client(transport, clock=self.world.clock("clients"), entropy=self.world.entropy("clients"))
        await persist(lambda: client.streams.create_scope(SCOPE))
        config = StreamConfig(ScalingPolicy.fixed(self.segments))
        await persist(lambda: client.streams.create_stream(STREAM, config))
        await asyncio.gather(self.main.live(client), self.recreated.run(client), self.tables.run(client))
        await self.main.check(client)
        await self._take_down(client)
        await client.close()

    async def _take_down(self, client: Client) -> None:
        """Everything can be sealed, is then still there, and can be deleted, and the scope is empty after that."""
        await persist(lambda: client.streams.seal_stream(STREAM))
        await self.main.check(client)
        await persist(lambda: client.reader_groups(SCOPE).delete(GROUP))
        await persist(lambda: client.streams.delete_stream(STREAM))
        for table in [name async for name in client.context.controller.list_tables(SCOPE)]:  # created late
            await persist(lambda: client.context.controller.delete_table(SCOPE, table))  # noqa: B023
        left = await persist(lambda: client.streams.list_streams(SCOPE, internal=True))
        require(not left, f"an empty scope lists {left}")
        require(await persist(lambda: client.streams.delete_scope(SCOPE)), "the scope was gone before it was deleted")
