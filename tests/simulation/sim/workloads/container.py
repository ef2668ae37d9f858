"""Write / crash / recover / verify against a segment container over the file log and a simulated object store."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

from sim.checks.copies import copied
from sim.checks.damaged_index import Attributes, attributes, check_damaged_index
from sim.checks.tidy import come_to_order, tidy_knobs
from sim.checks.tiers import Contents, check_same_contents, check_tiers, contents
from sim.checks.undamaged import undamaged
from sim.checks.watch import ContainerWatch
from sim.knobs import silent_logs, turned
from sim.loop import StuckError
from sim.process import SimProcess
from sim.swarm import Swarm
from sim.violations import Violation, require
from sim.workloads.replay import check_replayed
from sim.workloads.segment_model import SoleClient
from sim.workloads.streams import SharedStream
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, DataError, UnavailableError
from tailrace.kernel import BlockCache
from tailrace.log.file import FileLog
from tailrace.log.port import DurableLog
from tailrace.segmentstore.background import storage_writer
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container import operation_processor
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
from tailrace.segmentstore.metadata.value_room import ValueRoom
from tailrace.storage.port import ObjectStore

CONTAINER = 2
FILE_BYTES = 256 * 1024
CLUSTER_ID = b"simulated-clustr"
CALM_DEADLINE_S = 3600.0


def large_index_knobs(seed: int, *, always: bool = False) -> dict[tuple[Any, str], Any]:
    """In a quarter of all runs each attribute index is a large one, of which a flush rewrites few leaves."""
    if seed % 4 != 3 and not always:
        return {}
    rng = random.Random(f"{seed}-large-index")
    return {
        (limits, "FLUSH_INDEX_MAX_BYTES"): 0,
        (limits, "FLUSH_ATTRIBUTE_LEAVES_MAX"): rng.choice([1, 2, 128]),
        (limits, "FLUSH_ATTRIBUTES_BATCH_MAX"): rng.choice([2, 10, 8192]),
        (limits, "ATTRIBUTE_MOVES_MAX"): rng.choice([1, 64]),
        (limits, "ATTRIBUTE_PAGE_MAX_BYTES"): rng.choice([400, 2_000]),
    }


class ContainerWorkload:
    """One seed: some incarnations of a container under crashes and faults, then calm, then the check."""

    cache_sizes: tuple[int, ...] = (4 * limits.MIB, 8 * limits.MIB)
    calm_deadline_s = CALM_DEADLINE_S

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed}-container-workload")
        self.random = rng
        self.world = SimWorld(seed)
        self.sync_error_chance = rng.choice([0.0, 0.0, 0.0, 0.003])
        self.store_failure_chance = rng.choice([0.0, 0.0, 0.05, 0.3])
        self.store_loss_chance = rng.choice([0.0, 0.0, 0.05, 0.2])
        self.power_cuts = rng.random() < 0.7
        self.max_frame_bytes = rng.choice([4 * 1024, 16 * 1024, 64 * 1024])
        self.cache_bytes = rng.choice(self.cache_sizes)
        self.swarm = Swarm(self.world, disk=True, store=True, processes=["store"], clocks=[""])
        self.epoch = 0
        self.watch = ContainerWatch(self.world.loop, self.cache_bytes)
        self._last: Container | None = None
        self.sole = [SoleClient(number, rng) for number in range(rng.randint(0, 2))]
        self.streams = [SharedStream(number, rng, rng.randint(1, 3)) for number in range(rng.randint(0, 2))]
        for stream in self.streams:
            stream.may_forget_merges = lambda: self.world.clocks_ahead_s > limits.MERGED_SOURCES_REMEMBERED_S
        self.work = rng.randint(5, 60)
        self.knobs = {
            (limits, "CHECKPOINT_INTERVAL_OPERATIONS"): rng.choice([20, 100, 100_000]),
            (limits, "CHECKPOINT_INTERVAL_BYTES"): rng.choice([100_000, 1 << 30]),
            (limits, "CHECKPOINT_LAST_OPERATIONS_MIN"): random.Random(f"{seed}-last").choice([10, 1000]),
            (limits, "LOG_EPOCHS_PER_CHECKPOINT"): rng.choice([2, 64]),
            (limits, "FLUSH_THRESHOLD_BYTES"): rng.choice([3_000, 100_000]),
            (limits, "FLUSH_INTERVAL_S"): rng.choice([0.1, 1.0, 30.0]),
            (limits, "FLUSH_TICK_S"): rng.choice([0.02, 0.5]),
            (limits, "FLUSH_ATTRIBUTES_THRESHOLD"): rng.choice([2, 8, 1000]),
            (limits, "FLUSH_ATTRIBUTES_AGED_THRESHOLD"): rng.choice([1, 200]),
            (limits, "ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX"): rng.choice([1, 5, 4096]),
            (limits, "DELETE_DELAY_S"): rng.choice([10.0, 120.0]),  # longer than reads take in this world
            (storage_writer, "_SHARED_MAX_BYTES"): rng.choice([4_000, 100_000]),
            (operation_processor, "_ARENA_BYTES"): rng.choice([4_096, 65_536, 1024 * 1024]),
        }
        self.knobs |= tidy_knobs(seed) | large_index_knobs(seed)
        turns = random.Random(f"{seed}-turns")
        items, pause_s = turns.choice([(1, 0.005), (10, 0.05), (2000, 0.0), (2000, 0.0)])
        self.knobs |= {(limits, "CHECKPOINT_ITEMS_PER_TURN"): items, (limits, "CHECKPOINT_PAUSE_S"): pause_s}
        scarce = random.Random(f"{seed}-scarce")
        self.untiered_max_bytes = scarce.choice([3_000, 30_000, limits.UNTIERED_RECORDS_MAX_BYTES])
        self.arenas_max_bytes = scarce.choice([0, 100_000, limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES])
        self.values_max_bytes = scarce.choice([0, 5_000, limits.ATTRIBUTE_VALUES_MAX_BYTES])

    @property
    def steps(self) -> int:
        """Operations that clients did."""
        return sum(client.steps for client in self.sole) + sum(client.steps for client in self.streams)

    def run(self) -> None:
        """Raises Violation."""
        with silent_logs(), turned(self.knobs), self.world as world:
            try:
                world.run(self._main())
            except (TimeoutError, StuckError) as error:
                raise Violation(f"no progress though nothing fails any more: {error!r}") from error
            except UnavailableError as error:
                raise Violation(f"unavailable though nothing fails any more: {error}") from error
            require(not world.store.overwritten, f"objects were overwritten: {world.store.overwritten}")

    async def _main(self) -> None:
        trouble = asyncio.create_task(self.swarm.trouble())
        for _ in range(self.random.randint(2, 7)):
            self._faults(on=True)
            await self._incarnation()
        trouble.cancel()
        self._faults(on=False)
        for _ in range(2):  # the second time everything comes from Tier 2
            process = self.world.process("calm")
            async with asyncio.timeout(self.calm_deadline_s):
                await process.spawn(self._calm(process))
            self.world.crash(process, power=True)

    def _faults(self, *, on: bool) -> None:
        if on:
            self.swarm.begin()
        else:
            self.swarm.end()
        self.world.disk.sync_error_chance = self.sync_error_chance if on else 0.0
        self.world.store.failure_chance = self.store_failure_chance if on else 0.0
        self.world.store.lost_reply_chance = self.store_loss_chance if on else 0.0

    async def _incarnation(self) -> None:
        rng = self.random
        process = self.world.process("store")
        power = self.power_cuts and rng.random() < 0.6
        work = process.spawn(self._serve(process))
        waiting: set[asyncio.Future[None]] = {work}
        if rng.random() < 0.7:
            waiting.add(self._crash_point(process, int(rng.random() ** 2 * 500), power))
        await asyncio.wait(waiting, timeout=rng.random() ** 2 * 30, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            if dying := waiting - {work}:
                await asyncio.wait(dying)
            return
        if work.done():
            work.result()
        self.world.crash(process, power=power)

    def _crash_point(self, process: SimProcess, operations: int, power: bool) -> asyncio.Future[None]:
        return self.world.crash_at_disk_operation(process, operations, power=power)

    def _log(self, process: SimProcess) -> DurableLog:
        return FileLog(
            self.world.disk.attach(process),
            "/data/log",
            CONTAINER,
            file_bytes=FILE_BYTES,
            max_frame_bytes=self.max_frame_bytes,
            reserve_bytes=0,
        )

    def _may_stay_closed(self) -> bool:
        """Whether a fault may keep the container from opening."""
        return self.sync_error_chance > 0 or self.swarm.has("disk full")

    def _store(self, process: SimProcess) -> ObjectStore:
        """The Tier 2 that a process sees."""
        return self.world.store.attach(process)

    def make_container(self, process: SimProcess, epoch: int) -> Container:
        """The container in a process, not yet started."""
        entropy = self.world.entropy(process.name)
        ports = ContainerPorts(
            log=self._log(process),
            store=self._store(process),
            cache=CacheManager(BlockCache(self.cache_bytes)),
            clock=self.world.clock(),
            entropy=entropy,
            cluster_id=CLUSTER_ID,
            untiered=UntieredRoom(self.untiered_max_bytes),
            values=ValueRoom(self.values_max_bytes),
            arenas=ArenaPool(self.arenas_max_bytes),
        )
        return Container(CONTAINER, epoch, ports)

    async def _open(self, process: SimProcess) -> Container:
        self.epoch += 1
        self.watch.ended()
        container = self.make_container(process, self.epoch)
        with undamaged("a recovery"):
            await container.start(self.world.entropy(f"{process.name}-nonce").token(16))
        self.watch.follow(container)
        if self._last is not None:
            check_replayed(self._last.state, container.state)
        self._last = container
        return container

    async def _serve(self, process: SimProcess) -> None:
        try:
            container = await self._open(process)
        except UnavailableError as error:
            require(self._may_stay_closed(), f"the container did not open without a fault: {error}")
            return
        await self._drive(container)
        if self.random.random() < 0.2:
            try:
                await self._check_places(container, flushed=False)
            except UnavailableError as error:
                self._judge(error)
        if self.random.random() < 0.3:
            try:
                await container.close(flush=self.random.random() < 0.5)
            except UnavailableError as error:
                self._judge(error)

    def _clients(self, container: Container) -> list[asyncio.Task[None]]:
        clients: list[SoleClient | SharedStream] = [*self.sole, *self.streams]
        return [asyncio.create_task(client.live(container, self.work)) for client in clients]

    async def _drive(self, container: Container) -> None:
        for result in await asyncio.gather(*self._clients(container), return_exceptions=True):
            self._judge(result)

    def _judge(self, result: BaseException | None) -> None:
        """Errors of clients must have a fault as their reason."""
        if isinstance(result, ContainerStoppedError):
            require(self.sync_error_chance > 0, f"the container stopped without a fault: {result}")
        elif isinstance(result, UnavailableError):
            faulty = self.store_failure_chance > 0 or self.store_loss_chance > 0 or self.sync_error_chance > 0
            faulty = faulty or self.swarm.hurts_log or self.swarm.hurts_store
            require(faulty, f"unavailable without a fault: {result}")
        elif isinstance(result, DataError):
            raise Violation(f"a client gets {type(result).__name__}, and nothing was damaged: {result}") from result
        elif result is not None:
            raise result

    async def _calm(self, process: SimProcess) -> None:
        container = await self._open(process)
        await self._drive_calmly(container)
        await container.flush_to_storage()
        require(container.status().untiered_bytes == 0, "bytes are left after a flush of everything")
        await self._check_clients(container)
        await come_to_order(container, self.world.store)
        self._check_objects(container)
        await self._check_places(container, flushed=True)
        await self._check_damaged_index(container)
        await container.close()
        self.watch.closed()

    async def _drive_calmly(self, container: Container) -> None:
        """A little of everything, one client after another."""
        for client in self.sole:
            await client.live(container, 3)
        for stream in self.streams:
            await stream.live(container, 1)
            await stream.check(container)

    async def _check_clients(self, container: Container) -> None:
        """Everything is as the clients know it."""
        for client in self.sole:
            await client.reconcile(container)
        for stream in self.streams:
            await stream.check(container)

    async def _check_places(self, container: Container, *, flushed: bool) -> None:
        """Without changes cache, Tier 2, and another owner's recovery of the log hold the same bytes."""
        await self.watch.idle()
        known = await contents(container)
        check_tiers(container, self.world.store, known, flushed=flushed)
        other = copy.copy(self)
        other.world = copied(self.world)
        process = other.world.process("copy")
        reading = process.spawn(other._recovered_contents(process))
        await asyncio.wait([reading])
        check_same_contents(known, reading.result(), "a recovery of a copy")
        other.world.crash(process)

    async def _check_damaged_index(self, container: Container) -> None:
        """In a copy of the world, with one index damaged."""
        known, values = await contents(container), await attributes(container)
        other = copy.copy(self)
        other.world = copied(self.world)
        process = other.world.process("damaged")
        checking = process.spawn(other._recovered_with_damage(process, known, values))
        await asyncio.wait([checking])
        checking.result()
        other.world.crash(process)

    async def _recovered_with_damage(self, process: SimProcess, known: Contents, values: Attributes) -> None:
        container = self.make_container(process, self.epoch + 1)
        await container.start(bytes(16))
        await check_damaged_index(self.world, container, known, values)
        await container.close()

    async def _recovered_contents(self, process: SimProcess) -> Contents:
        container = self.make_container(process, self.epoch + 1)
        with undamaged("a recovery of a copy"):
            await container.start(bytes(16))
        found = await contents(container)
        await container.close()
        return found

    def _check_objects(self, container: Container) -> None:
        """Every object that is referenced is there, and none of them is about to be deleted."""
        state = container.state
        for segment in state.segments.values():
            for ref in (*segment.chunks, *segment.index_pages):
                there = ref.object_key in self.world.store.objects and ref.object_key not in state.pending_deletes
                require(there, f"{segment.name} needs object {ref.object_key}, which is deleted or will be")
