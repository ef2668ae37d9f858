"""Write / crash / recover / verify against the file log on a simulated disk."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from sim.checks.undamaged import undamaged
from sim.process import SimProcess
from sim.swarm import Swarm
from sim.violations import Violation, require
from sim.world import SimWorld
from tailrace.common.errors import CorruptionError, DataLossError, DiskFullError, UnavailableError
from tailrace.log.closed import ClosedLog
from tailrace.log.disk import Disk
from tailrace.log.file import FileLog
from tailrace.log.recovery import decide
from tailrace.log.scan import scan_directory

DIRECTORY = "/data/log"
CONTAINER = 3
MAX_FRAME_BYTES = 16 * 1024
FILE_BYTES = 128 * 1024
IN_FLIGHT_MAX = 24
WRITTEN_DEADLINE_S = 60.0
"""Many times the longest pause."""


@dataclass
class LogModel:
    """What the log must hold: `entries` by sequence, those through `acknowledged` for certain."""

    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    acknowledged: int = -1
    truncated: int = 0
    epoch: int = 0

    def check(self, log_start: int, recovered: list[tuple[int, int, bytes]]) -> None:
        """Compare with what a recovery found, and take over its decision about what was not acknowledged."""
        require(log_start <= self.truncated, f"the log starts at {log_start}, truncated was only {self.truncated}")
        sequences = [sequence for sequence, _, _ in recovered]
        require(sequences == list(range(log_start, log_start + len(sequences))), f"gaps in {sequences}")
        end = log_start + len(sequences)
        require(end > self.acknowledged, f"{self.acknowledged} was acknowledged, recovered only below {end}")
        for sequence, epoch, payload in recovered:
            require(self.entries.get(sequence) == (epoch, payload), f"frame {sequence} is not what was appended")
        for sequence in [sequence for sequence in self.entries if not log_start <= sequence < end]:
            del self.entries[sequence]
        self.acknowledged = end - 1


def random_payload(rng: random.Random) -> bytes:
    """Small ones, large ones, and ones with zeros in every arrangement."""
    kind = rng.random()
    if kind < 0.5:
        return rng.randbytes(rng.randint(0, 600))
    if kind < 0.7:
        return rng.randbytes(rng.randint(0, MAX_FRAME_BYTES))
    lengths = [rng.randint(1, 3000) for _ in range(8)]
    pieces = [bytes(length) if rng.random() < 0.5 else rng.randbytes(length // 2 + 1) for length in lengths]
    return b"".join(pieces)[:MAX_FRAME_BYTES]


def split_randomly(rng: random.Random, payload: bytes) -> list[memoryview]:
    """The same bytes in several buffers."""
    cuts = sorted(rng.randint(0, len(payload)) for _ in range(rng.randint(0, 4)))
    return [memoryview(payload)[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]


class LogWorkload:
    """One seed: some ten incarnations of an owner, each ended by a crash, an error of the disk, or a clean close."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed}-log-workload")
        self.random = rng
        small = rng.random() < 0.3
        self.world = SimWorld(seed, disk_bytes=rng.randint(4, 8) * FILE_BYTES if small else 1 << 40)
        self.world.disk.sync_error_chance = rng.choice([0.0, 0.0, 0.0, 0.01])
        self.flips = rng.random() < 0.4
        self.power_cuts = rng.random() < 0.7
        self.swarm = Swarm(self.world, disk=True, processes=["log"], longest_s=5.0, every_s=0.5)
        self.model = LogModel()
        self.steps = 0

    def run(self) -> None:
        """Raises Violation."""
        with self.world as world:
            world.run(self._main())

    async def _main(self) -> None:
        self.swarm.begin()
        trouble = asyncio.create_task(self.swarm.trouble())
        for _ in range(self.random.randint(4, 12)):
            await self._incarnation()
            if self.flips and self.model.entries and self.random.random() < 0.5:
                await self._damage_one_bit()
        trouble.cancel()
        self.swarm.end()
        self.world.disk.sync_error_chance = 0.0
        self.world.disk.capacity_bytes = 1 << 40
        process = self.world.process("last")
        with undamaged("a tool that reads the log"):
            await process.spawn(self._verify_only(self.world.disk.attach(process)))
        await process.spawn(self._open_and_check(process))

    async def _incarnation(self) -> None:
        rng = self.random
        process = self.world.process("log")
        power = self.power_cuts and rng.random() < 0.6
        dead = self.world.crash_at_disk_operation(process, int(rng.random() ** 2 * 300), power=power)
        work = process.spawn(self._own(process))
        await asyncio.wait({work, dead}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if not process.alive:
            await dead
            return
        if work.done():
            work.result()
        self.world.crash(process, power=power)

    async def _own(self, process: SimProcess) -> None:
        """What an owner does until it dies."""
        try:
            log = await self._open_and_check(process)
        except DiskFullError:
            small = self.world.disk.capacity_bytes < 1 << 40
            require(small or self.swarm.has("disk full"), "the disk is not full")
            return
        except UnavailableError:
            require(self.world.disk.sync_error_chance > 0, "opening failed without a fault")
            return
        try:
            await asyncio.gather(*(self._writer(log) for _ in range(self.random.randint(1, 3))), self._others(log))
        except UnavailableError:
            require(self.world.disk.sync_error_chance > 0, "the log failed without a fault")
        if self.random.random() < 0.3:
            await log.close()

    async def _open_and_check(self, process: SimProcess) -> FileLog:
        self.model.epoch += 1
        log = FileLog(
            self.world.disk.attach(process),
            DIRECTORY,
            CONTAINER,
            file_bytes=FILE_BYTES,
            prepared_bytes=FILE_BYTES if self.model.epoch % 2 else 0,  # all of its first file, or as little as possible
            max_frame_bytes=MAX_FRAME_BYTES,
            reserve_bytes=FILE_BYTES // 8,
        )
        with undamaged("an opening of the log"):
            await log.open(self.model.epoch, self.random.randbytes(16))
            recovered = [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover()]
        self.model.check(log.log_start, recovered)
        require(log.next_sequence == self.model.acknowledged + 1, "the next sequence does not follow the last frame")
        return log

    async def _writer(self, log: FileLog) -> None:
        rng = self.random
        in_flight: list[asyncio.Future[int]] = []
        for _ in range(rng.randint(0, 150)):
            payload = random_payload(rng)
            try:
                more_space = log.check_space(len(payload))
            except DiskFullError:
                await asyncio.sleep(0.3)
                continue
            if more_space is not None:
                await more_space
                continue
            sequence = log.next_sequence
            self.model.entries[sequence] = (self.model.epoch, payload)
            future = log.append(split_randomly(rng, payload))
            future.add_done_callback(self._acknowledged)
            in_flight.append(future)
            self.steps += 1
            if len(in_flight) >= IN_FLIGHT_MAX or rng.random() < 0.1:
                await in_flight.pop(0)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.002)
        try:
            async with asyncio.timeout(WRITTEN_DEADLINE_S):
                for future in in_flight:  # one after the other: no future keeps an error when this writer is killed
                    await future
        except TimeoutError as error:
            raise Violation("frames for which there was room are not written") from error

    def _acknowledged(self, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        require(future.result() == self.model.acknowledged + 1, "acknowledgements out of order")
        self.model.acknowledged = future.result()

    async def _others(self, log: FileLog) -> None:
        """Truncations and reads beside the writers."""
        rng = self.random
        for _ in range(rng.randint(0, 40)):
            await asyncio.sleep(rng.random() * 0.02)
            acknowledged = self.model.acknowledged
            if rng.random() < 0.5 and acknowledged >= 0:
                target = rng.randint(max(0, acknowledged - 40), acknowledged + 1)
                self.model.truncated = max(self.model.truncated, target)
                await log.truncate(target)
            elif acknowledged >= log.log_start:
                await self._read(log, rng.randint(log.log_start, acknowledged))

    async def _read(self, log: FileLog, sequence: int) -> None:
        payload = self.model.entries[sequence][1]
        offset, length = self.random.randint(0, len(payload)), self.random.randint(0, len(payload))
        try:
            found = await log.read(sequence, offset, length)
        except KeyError:
            require(sequence < log.log_start, f"frame {sequence} cannot be read")
            return
        require(found == payload[offset : offset + length], f"frame {sequence} reads otherwise than written")

    async def _verify_only(self, disk: Disk) -> None:
        """The tools' way of reading finds the same and changes nothing."""
        before = [disk.list(DIRECTORY)]
        log = ClosedLog(disk, DIRECTORY, CONTAINER)
        await log.open()
        async for frame in log.recover():
            known = self.model.entries.get(frame.sequence)
            payload = bytes(frame.payload)
            require(known == (frame.epoch, payload), f"a tool is shown another frame {frame.sequence}")
            offset = self.random.randint(0, len(payload))
            require(
                await log.read(frame.sequence, offset, 10) == payload[offset : offset + 10], "a tool reads other bytes"
            )
        log.close()
        require([disk.list(DIRECTORY)] == before, "a tool changed the directory")

    async def _damage_one_bit(self) -> None:
        """Flip a bit inside a frame that counts: opening must name the place, and mending it must bring all back."""
        process = self.world.process("scanner")
        with undamaged("a scan of the log"):
            scans = await process.spawn(scan_directory(self.world.disk.attach(process), DIRECTORY, CONTAINER))
            decision = decide(scans)
        if not decision.files:
            return
        file = self.random.choice(decision.files)
        start = file.scan.sectors[file.first - file.scan.first_sequence] * 512
        end = file.scan.end_offset
        if file.scan.epoch != decision.previous_epoch:  # what follows the last frame of an older epoch does not count
            end = file.scan.sectors[file.last - file.scan.first_sequence] * 512 + 128
        bit = self.random.randint(start * 8, end * 8 - 1)
        self.world.disk.flip_bit(file.scan.name, bit)
        disk = self.world.disk.attach(process)
        try:
            await process.spawn(self._verify_only(disk))
        except CorruptionError as error:
            require(file.scan.name in error.place, f"the place {error.place} is not the damaged file {file.scan.name}")
        except DataLossError as error:
            raise Violation(f"a flipped bit {bit} in {file.scan.name} looks like a loss: {error}") from error
        else:
            raise Violation(f"a flipped bit {bit} in {file.scan.name} was not noticed")
        self.world.disk.flip_bit(file.scan.name, bit)
        self.world.crash(process)
