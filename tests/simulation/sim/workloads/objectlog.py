"""Two processes that both believe they own a container's object log, on an object store with every fault.

What must hold: a frame that anybody acknowledged, or that an opening accepted, is what every later owner finds, and
no other owner's frame ever gets its sequence; no owner acknowledges anything that a later owner does not have.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from sim.checks.undamaged import undamaged
from sim.knobs import turned
from sim.process import ProcessKilledError, SimProcess
from sim.store import AttachedStore
from sim.swarm import Swarm
from sim.violations import Violation, require
from sim.workloads.log import random_payload, split_randomly
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DataLossError, FencedError, StartError, UnavailableError
from tailrace.log.object import ObjectLog
from tailrace.log.object_keys import LogKeys, ObjectKind
from tailrace.log.probe import probe_conditions

CONTAINER = 3
KEYS = LogKeys(CONTAINER)
MAX_FRAME_BYTES = 16 * 1024
IN_FLIGHT_MAX = 40
ACTORS = 2
LIVENESS_S = 120.0
Entry = tuple[int, bytes]


@dataclass(frozen=True)
class View:
    """What an owner began with."""

    epoch: int
    log_start: int
    next_sequence: int


@dataclass
class ObjectLogModel:
    """What is decided for ever: `decided` by sequence, as (epoch, payload)."""

    written: dict[tuple[int, int], bytes] = field(default_factory=dict)
    decided: dict[int, Entry] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)
    """The greatest sequence that the owner of each epoch knows as durable."""
    truncated: int = 0

    def opened(self, epoch: int, log_start: int, recovered: list[tuple[int, int, bytes]]) -> None:
        """A confirmed owner returns what it found."""
        require(log_start <= self.truncated, f"the log starts at {log_start}, truncated was only {self.truncated}")
        sequences = [sequence for sequence, _, _ in recovered]
        end = log_start + len(sequences)
        require(sequences == list(range(log_start, end)), f"gaps in {sequences}")
        require(all(view.epoch != epoch for view in self.views), f"epoch {epoch} has two owners")
        for sequence, writer, payload in recovered:
            require(writer < epoch, f"epoch {epoch} found a frame of epoch {writer}")
            require(self.written.get((writer, sequence)) == payload, f"frame {sequence} is not what was appended")
        found = {sequence: (writer, payload) for sequence, writer, payload in recovered}
        for sequence, entry in self.decided.items():
            if entry[0] < epoch and sequence >= log_start:
                require(sequence in found, f"epoch {epoch} did not find frame {sequence}, which was acknowledged")
        for sequence, entry in found.items():
            self._decide(sequence, entry)
        self.views.append(View(epoch, log_start, end))
        self.known[epoch] = end - 1

    def acknowledged(self, epoch: int, sequence: int) -> None:
        """An owner learned that a frame is durable."""
        for view in self.views:
            missed = view.epoch > epoch and sequence >= view.next_sequence
            require(not missed, f"epoch {epoch} acknowledged {sequence}, epoch {view.epoch} began without it")
        require(sequence == self.known[epoch] + 1, f"{sequence} was acknowledged after {self.known[epoch]}")
        self.known[epoch] = sequence
        self._decide(sequence, (epoch, self.written[epoch, sequence]))

    def _decide(self, sequence: int, entry: Entry) -> None:
        before = self.decided.setdefault(sequence, entry)
        require(before == entry, f"frame {sequence} is one of epoch {before[0]} and one of epoch {entry[0]}")


class ObjectLogWorkload:
    """One seed: two actors, each some incarnations of a process that opens the log and works until its end."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed}-object-log-workload")
        self.random = rng
        self.world = SimWorld(seed)
        store = self.world.store
        store.failure_chance = rng.choice([0.0, 0.0, 0.02, 0.1])
        store.lost_reply_chance = rng.choice([0.0, 0.0, 0.02, 0.1])
        store.late_chance = rng.choice([0.0, 0.0, 0.03])
        store.duplicate_chance = rng.choice([0.0, 0.0, 0.05])
        store.late_max_s = rng.choice([1.0, 10.0, 60.0])
        store.stale_list_chance = rng.choice([0.0, 0.0, 0.5])
        store.slow_chance = rng.choice([0.0, 0.02, 0.1, 0.3])
        store.slow_max_s = rng.choice([1.0, 3.0, 8.0])
        self.appends_max = rng.choice([40, 150])
        self.append_pause_s = rng.choice([0.1, 1.0])
        self.pause_max_s = rng.choice([1.0, 6.0])
        self.uneven = False
        if rng.random() < 0.5:
            self.make_uneven()
        self.lying = rng.random() < 0.05
        self.crashes = rng.random() < 0.7
        self.pauses = rng.random() < 0.7
        self.was_troubled = False
        """Faults that ended may still have errors under way."""
        self.swarm = Swarm(self.world, store=True, every_s=10.0)
        self.model = ObjectLogModel()
        kept = random.Random(f"{seed}-object-log-kept")
        self.knobs: dict[tuple[Any, str], Any] = {
            (limits, "LOG_OBJECT_CACHE_BYTES"): kept.choice([0, 20_000, limits.LOG_OBJECT_CACHE_BYTES]),
            (limits, "LOG_OBJECT_CACHE_FRAME_MAX_BYTES"): kept.choice([1024, limits.LOG_OBJECT_CACHE_FRAME_MAX_BYTES]),
        }
        self.broken: list[BaseException] = []
        self.lease = 0
        self.steps = 0

    def make_uneven(self) -> None:
        """The network of some owners goes bad, that of all others is good."""
        self.uneven = True
        self.world.store.slow_chance, self.world.store.slow_max_s = 0.0, 8.0

    def run(self) -> None:
        """Raises Violation."""
        with turned(self.knobs), self.world as world:
            try:
                world.run(self._lies() if self.lying else self._main())
            finally:
                if self.broken:
                    raise self.broken[0]

    async def _main(self) -> None:
        self.swarm.begin()
        trouble = asyncio.create_task(self.swarm.trouble())
        await asyncio.gather(*(self._actor(number) for number in range(ACTORS)))
        trouble.cancel()
        self._end_faults()
        await asyncio.sleep(self.random.random() * 5)
        for zombie in list(self.world.processes):
            self.world.crash(zombie)
        await asyncio.sleep(self.world.store.late_max_s)  # the last late effects come
        await self._last_owner()
        if self.random.random() < 0.5:
            await self._damage()
        await self._nothing_is_left()

    def _end_faults(self) -> None:
        store = self.world.store
        self.was_troubled = self._troubled()
        self.swarm.end()
        store.failure_chance = store.lost_reply_chance = store.late_chance = 0.0
        store.duplicate_chance = store.stale_list_chance = store.slow_chance = 0.0
        self.crashes = self.pauses = False

    # -- actors

    async def _actor(self, number: int) -> None:
        for _ in range(self.random.randint(2, 6)):
            await asyncio.sleep(self.random.random() ** 2 * self.pause_max_s)
            await self._incarnation(f"actor-{number}")

    async def _incarnation(self, name: str) -> None:
        rng = self.random
        process = self.world.process(name)
        work = process.spawn(self._own(process))
        waiting: set[asyncio.Future[None]] = {work}
        if self.crashes:
            waiting.add(self.world.crash_at_store_request(process, int(rng.random() ** 2 * 250)))
        # A process that is left alone goes on beside the next incarnation of its actor: a zombie.
        await asyncio.wait(waiting, timeout=rng.choice([2, 10, 100]), return_when=asyncio.FIRST_COMPLETED)
        if work.done() and process.alive:
            work.result()
            self.world.crash(process)
        elif process.alive:
            work.add_done_callback(self._ended)

    def _ended(self, zombie: asyncio.Task[None]) -> None:
        error = None if zombie.cancelled() else zombie.exception()
        if error is not None and not isinstance(error, ProcessKilledError):
            self.broken.append(error)

    def _offered_epoch(self, floor: int) -> int:
        """What the lease gives: sometimes the same epoch twice, sometimes one far above, sometimes it was wiped."""
        chance = self.random.random()
        if chance < 0.1 and self.lease > floor:
            return self.lease
        if chance < 0.15:
            self.lease = 0
        self.lease = max(self.lease, floor) + (self.random.randint(2, 9) if chance > 0.9 else 1)
        return self.lease

    async def _own(self, process: SimProcess) -> None:
        """What a process does that believes that it owns the container."""
        store = self.world.store.attach(process)
        if self.random.random() < 0.05:
            await self._probe(store)
        floor = 0
        for _ in range(4):
            epoch = self._offered_epoch(floor)
            log = ObjectLog(store, CONTAINER, max_frame_bytes=MAX_FRAME_BYTES)
            try:
                with undamaged("an opening of the log"):
                    await log.open(epoch, self.random.randbytes(16))
                    await self._check_opened(log, epoch)
                await self._work(log, epoch, process, store)
                return
            except FencedError as error:
                floor = max(floor, error.epoch)
            except UnavailableError as error:
                require(self._troubled(), f"the store is well, and the log failed: {error}")
            finally:
                store.slow_chance = None
                await log.close()
            await asyncio.sleep(self.random.random())

    async def _probe(self, store: AttachedStore) -> None:
        """A store that is only unreliable is not refused."""
        try:
            await probe_conditions(store, self.random.randbytes(8).hex())
        except StartError as error:
            raise Violation(f"a good store was refused: {error}") from error
        except UnavailableError:
            require(self._troubled(), "the store is well, and the probe failed")

    def _troubled(self) -> bool:
        store = self.world.store
        slow = store.slow_chance > 0 and 2 * store.slow_max_s > limits.LOG_OBJECT_REQUEST_DEADLINE_S
        fails = store.failure_chance + store.lost_reply_chance + store.late_chance > 0
        fails = fails or self.swarm.hurts_store
        return slow or fails or self.pauses or self.uneven or self.was_troubled

    async def _check_opened(self, log: ObjectLog, epoch: int) -> None:
        recovered = [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover()]
        self.model.opened(epoch, log.log_start, recovered)
        require(log.next_sequence == log.log_start + len(recovered), "the next sequence does not follow the last frame")

    async def _work(self, log: ObjectLog, epoch: int, process: SimProcess, store: AttachedStore) -> None:
        if self.uneven and self.random.random() < 0.6:
            store.slow_chance = 0.7  # the network of an owner's machine goes bad, its successor's is good
        writers = (self._writer(log, epoch) for _ in range(self.random.randint(1, 2)))
        await asyncio.gather(*writers, self._others(log, epoch, process))

    async def _writer(self, log: ObjectLog, epoch: int) -> None:
        rng = self.random
        in_flight: list[asyncio.Future[int]] = []
        for _ in range(rng.randint(0, self.appends_max)):
            in_flight.append(self._append(log, epoch))
            if len(in_flight) >= IN_FLIGHT_MAX or rng.random() < 0.1:
                await in_flight.pop(0)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * self.append_pause_s)
        await asyncio.gather(*in_flight)

    def _append(self, log: ObjectLog, epoch: int) -> asyncio.Future[int]:
        payload = random_payload(self.random)
        sequence = log.next_sequence
        future = log.append(split_randomly(self.random, payload))
        if not future.done():
            self.model.written[epoch, sequence] = payload
        future.add_done_callback(lambda done: self._acknowledged(epoch, sequence, done))
        self.steps += 1
        return future

    def _acknowledged(self, epoch: int, sequence: int, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        try:
            require(future.result() == sequence, f"frame {sequence} was acknowledged as {future.result()}")
            self.model.acknowledged(epoch, sequence)
        except Violation as violation:
            self.broken.append(violation)

    async def _others(self, log: ObjectLog, epoch: int, process: SimProcess) -> None:
        """Truncations, reads and pauses beside the writers."""
        rng = self.random
        for _ in range(rng.randint(0, 25)):
            await asyncio.sleep(rng.random() * 0.2)
            durable = self.model.known[epoch] - rng.randint(0, 60)
            if self.pauses and rng.random() < 0.1:
                self.world.pause(process, rng.choice([1.0, 5.0, 30.0]) * rng.random())
            elif durable < log.log_start:
                continue
            elif rng.random() < 0.5:
                await self._truncate(log, durable)
            else:
                await self._read(log, durable)

    async def _truncate(self, log: ObjectLog, sequence: int) -> None:
        self.model.truncated = max(self.model.truncated, sequence)
        await log.truncate(sequence)

    async def _read(self, log: ObjectLog, sequence: int) -> None:
        try:
            found = await log.read(sequence, 0, MAX_FRAME_BYTES)
        except KeyError:
            require(sequence < log.log_start, f"frame {sequence} cannot be read")
            return
        require(found == self.model.decided[sequence][1], f"frame {sequence} reads otherwise than written")

    # -- the end

    async def _opened_log(self, process: SimProcess) -> tuple[ObjectLog, int]:
        """Once faults stopped, the log opens."""
        floor = 0
        async with asyncio.timeout(LIVENESS_S):
            while True:
                epoch = self._offered_epoch(floor)
                log = ObjectLog(self.world.store.attach(process), CONTAINER, max_frame_bytes=MAX_FRAME_BYTES)
                try:
                    await log.open(epoch, self.random.randbytes(16))
                    await self._check_opened(log, epoch)
                    return log, epoch
                except FencedError as error:
                    floor = max(floor, error.epoch)

    async def _last_owner(self) -> None:
        """Acknowledges one frame after the other: everything but the last is then known as acknowledged."""
        process = self.world.process("last")

        async def work() -> None:
            with undamaged("the last opening of the log"):
                log, epoch = await self._opened_log(process)
            async with asyncio.timeout(LIVENESS_S):
                for _ in range(6):
                    await self._append(log, epoch)
            await log.close()

        await process.spawn(work())
        self.world.crash(process)

    async def _damage(self) -> None:
        """An acknowledged frame that is gone, or has another bit, must be noticed and named; mended, all is well."""
        frames = []
        for key in sorted(self.world.store.objects):
            name = KEYS.parse(key)
            if name is not None and name.kind is ObjectKind.FRAME:
                entry = self.model.decided.get(name.number)
                if entry is not None and entry[0] == name.epoch and name.number >= self.model.truncated:
                    frames.append((name.number, key))
        key = self.random.choice(sorted(frames)[:-1])[1]
        content = self.world.store.objects[key]
        if self.random.random() < 0.7:
            del self.world.store.objects[key]
            expected: type[Exception] = DataLossError
        else:
            bit = self.random.randrange(len(content) * 8)
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            self.world.store.objects[key] = bytes(damaged)
            expected = CorruptionError
        process = self.world.process("damaged")
        try:
            await process.spawn(self._opened_log(process))
        except expected as error:
            require(key in str(error), f"the damage of {key} is reported as: {error}")
        else:
            raise Violation(f"{key} was damaged ({expected.__name__}), and no owner noticed")
        self.world.crash(process)
        self.world.store.objects[key] = content

    async def _nothing_is_left(self) -> None:
        """When everything is truncated, only claims, one START frame and few marks remain."""
        process = self.world.process("cleaner")

        async def work() -> None:
            with undamaged("an opening of the log at the end"):
                log, _ = await self._opened_log(process)
            if log.next_sequence > log.log_start:
                await self._truncate(log, log.next_sequence)
            await asyncio.sleep(60)
            await log.close()
            with undamaged("an opening of the log at the end"):
                log, epoch = await self._opened_log(process)
            await asyncio.sleep(60)
            require(log.stored_bytes == 0, f"{log.stored_bytes} bytes seem to be stored")
            left = [key for key in sorted(self.world.store.objects) if KEYS.parse(key) is not None]
            require(left == [KEYS.start(epoch)], f"objects without a reference are left: {left}")
            await log.close()

        await process.spawn(work())

    # -- a store that lies

    async def _lies(self) -> None:
        """A store that ignores conditions, or whose reads are stale, is refused with the reason."""
        store = self.world.store
        if self.random.random() < 0.6:
            store.ignores_conditions = True
            reason = "ignores conditions"
        else:
            store.remembers_misses_s = 5.0
            reason = "linearizable reads"
        process = self.world.process("probe")
        try:
            await process.spawn(probe_conditions(store.attach(process), "nonce", "the store"))
        except StartError as error:
            require(reason in str(error), f"the store {reason}, but is refused with: {error}")
        except UnavailableError:
            require(self._troubled(), "the store is well, and the probe failed")
        else:
            raise Violation(f"a store was accepted that fails at: {reason}")
