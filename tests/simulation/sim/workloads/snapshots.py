"""The workload of a container whose snapshots must be restorable at every moment, under any owner."""

from __future__ import annotations

import asyncio

from sim.checks.copies import copied
from sim.checks.tiers import Contents, _from_tier2, check_same_contents, contents
from sim.checks.undamaged import undamaged
from sim.process import SimProcess
from sim.violations import Violation, require
from sim.workloads.container import CLUSTER_ID, CONTAINER, FILE_BYTES
from sim.workloads.tier2 import Tier2Workload
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.common.errors import DataError
from tailrace.kernel import BlockCache
from tailrace.log.file import FileLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.restore.container import newest_state, write_log
from tailrace.segmentstore.restore.survey import survey
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName, parse_key

LOOK_S = 0.25


class SnapshotWorkload(Tier2Workload):
    """See Tier2Workload: zombies beside their successors, in a store that fails, is late and lists old states."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.random
        self.knobs |= {
            (limits, "SNAPSHOT_FIRST_S"): rng.choice([0.05, 1.0, 10.0]),
            (limits, "SNAPSHOT_INTERVAL_S"): rng.choice([0.2, 2.0, 30.0]),
            (limits, "SNAPSHOT_RETRY_S"): rng.choice([0.1, 5.0]),
            (limits, "SNAPSHOT_COPY_MAX_BYTES"): rng.choice([0, limits.MIB]),
            (limits, "SNAPSHOT_FLUSH_WAIT_S"): rng.choice([0.3, 3.0, 60.0]),
            (limits, "DELETE_DELAY_S"): 10.0,
        }
        self._newest: SnapshotName | None = None
        self._final: Contents = {}
        self.looks = 0

    async def _main(self) -> None:
        looking = asyncio.create_task(self._look_again_and_again())
        try:
            await super()._main()
        finally:
            looking.cancel()
            await asyncio.wait([looking])
        if not looking.cancelled():
            looking.result()

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self, *, whole: bool = False) -> None:
        """A restore at this moment would work, and never go back; ``whole``: each byte is read. Raises Violation."""
        objects = self.world.store.objects
        names = [found[1] for key in objects if (found := parse_key(key)) is not None]
        if not names:
            require(self._newest is None, "all snapshots are gone")
            return
        newest = max(names)
        require(self._newest is None or self._newest <= newest, f"restore goes back from {self._newest} to {newest}")
        if newest == self._newest and not whole and self.looks % 8:
            self.looks += 1
            return
        self._newest = newest
        self.looks += 1
        key = newest.key(CONTAINER)
        try:
            state = Snapshot.decode(key, objects[key]).load(key)
        except DataError as error:
            raise Violation(f"the newest snapshot cannot be restored: {error}") from error
        for object_key in state.object_uses:
            require(object_key in objects, f"the newest snapshot, {key}, needs {object_key}, which was deleted")
        if whole:
            for name, segment in state.by_name.items():
                for ref in segment.chunks:
                    _from_tier2(name, self.world.store, ref)

    async def _incarnation(self) -> None:
        await super()._incarnation()
        self.look(whole=True)

    async def _check_places(self, container: Container, *, flushed: bool) -> None:
        await super()._check_places(container, flushed=flushed)
        self._final = await contents(container)

    async def _calm(self, process: SimProcess) -> None:
        """The container is closed in order: its last snapshot has everything, also for who has nothing else."""
        await super()._calm(process)
        self.look(whole=True)
        twin = copied(self.world)
        restored = twin.process("restored")
        reading = restored.spawn(self._restored_contents(twin, restored))
        await asyncio.wait([reading])
        check_same_contents(self._final, reading.result(), "a restore from the newest snapshot")
        twin.crash(restored)

    async def _restored_contents(self, world: SimWorld, process: SimProcess) -> Contents:
        store = world.store.attach(process)
        _, state = await newest_state(store, CLUSTER_ID, await survey(store, CONTAINER))
        assert state is not None
        seen = max([0, *self.world_segment_ids()])
        require(state.next_sequence > seen, "a restored container gives numbers that the lost one gave")
        await write_log(self._new_log(world, process), state, world.clock(), bytes(16))
        ports = ContainerPorts(
            log=self._new_log(world, process),
            store=store,
            cache=CacheManager(BlockCache(self.cache_bytes)),
            clock=world.clock(),
            entropy=world.entropy("restored"),
            cluster_id=CLUSTER_ID,
        )
        container = Container(CONTAINER, state.epoch + 1, ports)
        with undamaged("a restored container"):
            await container.start(bytes(16))
        found = await contents(container)
        await container.close()
        return found

    def world_segment_ids(self) -> list[int]:
        """Of all segments that ever had an object which is there yet."""
        keys = (key for key in self.world.store.objects if key.startswith((f"c{CONTAINER}/", f"a{CONTAINER}/")))
        return [int(key.split("/")[1], 16) for key in keys]

    def _new_log(self, world: SimWorld, process: SimProcess) -> FileLog:
        disk = world.disk.attach(process)
        return FileLog(disk, "/restored/log", CONTAINER, file_bytes=FILE_BYTES, max_frame_bytes=64 * 1024)
