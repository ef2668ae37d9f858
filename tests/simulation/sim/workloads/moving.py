"""Transactions, scales and reader groups while their containers move between workers (docs/design.md#ownership).

The cluster and its faults are those of the fleet workload; the clients are those of the cluster workload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sim.process import SimProcess
from sim.violations import Violation
from sim.workloads.clusterclients import GROUP, StreamClients, persist
from sim.workloads.fleet import CALM_DEADLINE_S, FleetWorkload
from sim.workloads.fleetnodes import ControllerLink
from tailrace.client.async_client import Client
from tailrace.client.model import StreamName
from tailrace.common.errors import DataError, TailraceError
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig

SCOPE = "scope"
WORK_DEADLINE_S = 6 * CALM_DEADLINE_S
"""From the last fault: readers wait for leases of transactions and of readers that died, one after the other."""


class MovingWorkload(FleetWorkload):
    """One seed: everything that clients do with a stream, in a cluster whose containers move."""

    def __init__(self, seed: int, faults: Sequence[str] = ()) -> None:
        super().__init__(seed, faults)
        rng = self.random
        # The name decides which containers have the segments, and so which workers.
        self.main = StreamClients(StreamName(SCOPE, f"stream{rng.randrange(1000)}"), rng)
        self.main.turns = min(self.main.turns, 20)

    @property
    def steps(self) -> int:
        """Events written and read."""
        return self.main.steps

    async def _clients(self, process: SimProcess) -> None:
        world, main = self.world, self.main
        link = ControllerLink(world, process, lambda: list(self.controllers.values()))
        client = Client(link, clock=world.clock(), entropy=world.entropy("clients"))
        config = StreamConfig(ScalingPolicy.fixed(self.segments))
        await persist(lambda: client.streams.create_scope(SCOPE))
        await persist(lambda: client.streams.create_stream(main.stream, config))
        settled_at_s = await self._settled()
        working = asyncio.create_task(self._work(client))
        nemesis = world.spawn(self.nemesis.run())
        while not nemesis.done():
            await asyncio.wait([nemesis], timeout=1)
            self._check_nodes()
        nemesis.result()
        if self.nemesis.harmless:
            self.maps.check_stood_still(settled_at_s, self.nemesis.causes)
        await self._settled()
        done, _ = await asyncio.wait([working], timeout=WORK_DEADLINE_S)
        self._check_nodes()
        if not done:
            raise Violation(f"clients did not come to an end within {WORK_DEADLINE_S:g} s without faults")
        working.result()
        await self._check_stored(client)
        if self.starts_from_nothing:
            await world.spawn(self._start_from_nothing())
            await self._settled()
            await self._check_stored(client)
        await self._take_down(client)
        await client.close()

    async def _work(self, client: Client) -> None:
        try:
            await self.main.live(client)
        except DataError as error:
            raise Violation(f"a client gets {type(error).__name__}, and nothing was damaged: {error}") from error
        except TailraceError as error:
            raise Violation(f"a client gets an error that no fault explains: {error!r}") from error

    async def _check_stored(self, client: Client) -> None:
        async with asyncio.timeout(CALM_DEADLINE_S):
            await self.main.check(client)

    async def _take_down(self, client: Client) -> None:
        """The stream and its group can be removed."""
        stream = self.main.stream
        async with asyncio.timeout(CALM_DEADLINE_S):
            await persist(lambda: client.streams.seal_stream(stream))
            await persist(lambda: client.reader_groups(SCOPE).delete(GROUP))
            await persist(lambda: client.streams.delete_stream(stream))
