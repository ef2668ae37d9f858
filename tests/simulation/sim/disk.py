"""A disk with a page cache that is lost in a power cut, sector by sector (docs/design.md#faults).

Durable is only what a sync covered: file contents by `sync`, directory entries by `sync_directory`. A power cut keeps
any subset of the other sectors and directory changes. The death of a process alone loses nothing that it wrote,
except the end of a write that it was killed in.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from sim.faults import FaultCounter
from sim.loop import SimLoop
from sim.process import ProcessKilledError, SimProcess
from tailrace.common.errors import DiskFullError, StartError

T = TypeVar("T")

SECTOR_BYTES = 512


class Inode:
    """A file's contents: what programs see, what is on the platter, and which sectors differ on their way there."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.dirty: dict[int, int] = {}
        self.shortened_to: int | None = None
        self._writes = 0

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Into the page cache."""
        end = offset + len(data)
        if end > len(self.seen):
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[offset:end] = data
        self._writes += 1
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self.dirty[sector] = self._writes

    def shorten(self, length: int) -> None:
        """Cut the end off, in the page cache."""
        del self.seen[length:]
        self.shortened_to = length if self.shortened_to is None else min(length, self.shortened_to)
        for sector in [sector for sector in self.dirty if sector * SECTOR_BYTES >= length]:
            del self.dirty[sector]

    def settle(self, sectors: dict[int, int], with_length: bool = True) -> None:
        """Put sectors (with the write that dirtied them) on the platter."""
        if with_length and self.shortened_to is not None:
            del self.durable[self.shortened_to :]
            self.shortened_to = None
        for sector, write in sectors.items():
            piece = self.seen[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
            end = sector * SECTOR_BYTES + len(piece)
            if end > len(self.durable):
                self.durable.extend(bytes(end - len(self.durable)))
            self.durable[sector * SECTOR_BYTES : end] = piece
            if self.dirty.get(sector) == write:
                del self.dirty[sector]

    def cut_power(self, rng: random.Random, chance: float) -> None:
        """Keep a random subset of what is dirty."""
        kept = {sector: write for sector, write in self.dirty.items() if rng.random() < chance}
        self.settle(kept, with_length=rng.random() < 0.5)
        self.seen = bytearray(self.durable)
        self.dirty.clear()
        self.shortened_to = None


@dataclass
class Directory:
    """Entries that programs see, durable entries, and the changes in between, oldest first."""

    seen: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    changes: list[tuple[str, str, Inode | None]] = field(default_factory=list)

    def apply(self, entries: dict[str, Inode], change: tuple[str, str, Inode | None]) -> None:
        """A change is (removed name or "", added name or "", inode added)."""
        removed, added, inode = change
        entries.pop(removed, None)
        if added and inode is not None:
            entries[added] = inode

    def change(self, removed: str, added: str, inode: Inode | None) -> None:
        """Change what programs see."""
        change = (removed, added, inode)
        self.apply(self.seen, change)
        self.changes.append(change)

    def settle(self, count: int) -> None:
        """Make the oldest changes durable."""
        for change in self.changes[:count]:
            self.apply(self.durable, change)
        del self.changes[:count]

    def cut_power(self, rng: random.Random) -> None:
        """Keep a prefix of the changes (a journal) or any subset (no journal)."""
        if rng.random() < 0.5:
            kept = self.changes[: rng.randint(0, len(self.changes))]
        else:
            kept = [change for change in self.changes if rng.random() < 0.5]
        for change in kept:
            self.apply(self.durable, change)
        self.seen = dict(self.durable)
        self.changes.clear()


class SimDisk(FaultCounter):
    """What survives: shared by the incarnations of a process. `attach` gives a process its Disk port."""

    CHANCES = MappingProxyType({"sync_error_chance": "sync error", "slow_sync_chance": "slow disk"})

    def __init__(self, loop: SimLoop, seed: int, capacity_bytes: int = 1 << 40) -> None:
        super().__init__()
        self.loop = loop
        self.random = random.Random(f"{seed}-disk")
        self.capacity_bytes = capacity_bytes
        self.directories: dict[str, Directory] = {}
        self.sync_error_chance = 0.0
        self.slow_sync_chance = 0.02
        self._stalled_until_s = 0.0
        self._full_until_s = 0.0
        self.operations = 0
        self.counts: dict[str, int] = {}
        self._locks: dict[str, SimProcess] = {}
        self._countdown: tuple[SimProcess, int, Callable[[SimProcess], None]] | None = None
        self.forget_enabled()

    def attach(self, process: SimProcess) -> AttachedDisk:
        """The Disk port of a process."""
        return AttachedDisk(self, process)

    def kill_at(self, process: SimProcess, operations: int, kill: Callable[[SimProcess], None]) -> None:
        """Kill the process in its n-th disk operation from now; `kill` is called in the world to clean up."""
        self._countdown = (process, operations, kill)

    def operation(self, process: SimProcess, name: str, *details: object) -> bool:
        """Count an operation of a process; True when the process is to die in the middle of it."""
        process.check()
        self.operations += 1
        self.counts[name] = self.counts.get(name, 0) + 1
        self.loop.trace(name, *details)
        if self._countdown is None or self._countdown[0] is not process:
            return False
        _, left, kill = self._countdown
        self._countdown = (process, left - 1, kill)
        if left > 0:
            return False
        self._countdown = None
        process.alive = False
        self.loop.call_world(0, kill, process)
        return True

    def used_bytes(self) -> int:
        """Space taken by the files that have a name."""
        inodes = {id(inode): inode for directory in self.directories.values() for inode in directory.seen.values()}
        return sum(len(inode.seen) for inode in inodes.values())

    def release(self, process: SimProcess) -> None:
        """Drop the locks of a dead process."""
        self._locks = {directory: owner for directory, owner in self._locks.items() if owner is not process}

    def cut_power(self) -> None:
        """Lose a random part of what was not synced. All processes on the disk must be dead."""
        chance = self.random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        self.count("power cut")
        for name in sorted(self.directories):
            directory = self.directories[name]
            directory.cut_power(self.random)
            for inode in {id(inode): inode for inode in directory.seen.values()}.values():
                inode.cut_power(self.random, chance)

    def lose(self, folder: str, fault: str) -> None:
        """Delete a folder with all that is below it, counted as that fault. All processes on the disk must be dead."""
        self.count(fault)
        for name in [name for name in self.directories if name == folder or name.startswith(f"{folder}/")]:
            del self.directories[name]

    def stall(self, seconds: float) -> None:
        """Nothing that was asked of the disk ends before that time, as when another takes all of it."""
        self.count("disk stall")
        self._stalled_until_s = max(self._stalled_until_s, self.loop.time() + seconds)

    def fill(self, seconds: float) -> None:
        """Another process takes all free space for some time."""
        self._full_until_s = max(self._full_until_s, self.loop.time() + seconds)

    def free_bytes(self) -> int:
        """Space that is left."""
        return 0 if self.loop.time() < self._full_until_s else max(0, self.capacity_bytes - self.used_bytes())

    def end_episodes(self) -> None:
        """The disk is as fast as ever, and others take no space."""
        self._stalled_until_s = self._full_until_s = 0.0

    def takes_s(self, most_s: float) -> float:
        """How long an operation takes that usually takes `most_s` at most."""
        slow = self.random.random() < self.slow_sync_chance
        if slow:
            self.count("slow disk")
        return max(self.random.random() * (0.2 if slow else most_s), self._stalled_until_s - self.loop.time())

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage one bit of a file, on the platter and in the page cache."""
        inode = self.inode(path)
        for image in (inode.seen, inode.durable):
            if bit // 8 < len(image):
                image[bit // 8] ^= 1 << (bit % 8)
        self.count("bit flip")

    def inode(self, path: str) -> Inode:
        """The file at a path. Raises FileNotFoundError."""
        directory, name = path.rsplit("/", 1)
        found = self.directories.get(directory, Directory()).seen.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return found

    def take_lock(self, directory: str, process: SimProcess) -> None:
        """Lock a directory for a process. Raises StartError."""
        if directory in self._locks:
            raise StartError(f"log directory {directory} is in use by another process")
        self._locks[directory] = process

    def drop_lock(self, directory: str, process: SimProcess) -> None:
        """Unlock, if that process holds the lock."""
        if self._locks.get(directory) is process:
            del self._locks[directory]


class AttachedDisk:
    """The Disk port of one process."""

    def __init__(self, disk: SimDisk, process: SimProcess) -> None:
        self.disk = disk
        self.process = process

    def step(self, name: str, *details: object) -> None:
        """Count an operation; raise in it when the process dies."""
        if self.disk.operation(self.process, name, *details):
            raise ProcessKilledError(self.process.name)

    async def pause(self, most_s: float = 0.002) -> None:
        """Time that an operation takes."""
        await asyncio.sleep(self.disk.takes_s(most_s))
        self.process.check()

    def _directory(self, path: str) -> tuple[Directory, str]:
        directory, name = path.rsplit("/", 1)
        if directory not in self.disk.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        return self.disk.directories[directory], name

    def open(self, path: str) -> SimFile:
        """See Disk.open."""
        self.step("open", path)
        return SimFile(self, path, self.disk.inode(path))

    async def create_zeroed(self, path: str, length_bytes: int, written_bytes: int | None = None) -> SimFile:
        """See Disk.create_zeroed; zeros that are not written are as durable."""
        self.step("create", path, length_bytes)
        directory, name = self._directory(path)
        inode = Inode()
        directory.change("", name, inode)
        await self.pause()
        if length_bytes > self.disk.free_bytes():
            self.disk.count("disk full")
            directory.change(name, "", None)
            raise DiskFullError(f"no space for {length_bytes} bytes of log in {path}")
        inode.seen = bytearray(length_bytes)
        inode.dirty = dict.fromkeys(range(-(-length_bytes // SECTOR_BYTES)), 0)
        await self.pause()
        self.step("created", path)
        inode.settle(dict(inode.dirty))
        return SimFile(self, path, inode)

    def list(self, directory: str) -> list[str]:
        """See Disk.list."""
        self.step("list", directory)
        if directory not in self.disk.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        return sorted(self.disk.directories[directory].seen)

    def make_directory(self, directory: str) -> None:
        """See Disk.make_directory."""
        self.step("mkdir", directory)
        self.disk.directories.setdefault(directory, Directory())

    def rename(self, source: str, target: str) -> None:
        """See Disk.rename."""
        self.step("rename", source, target)
        directory, name = self._directory(source)
        directory.change(name, target.rsplit("/", 1)[1], self.disk.inode(source))

    def unlink(self, path: str) -> None:
        """See Disk.unlink."""
        self.step("unlink", path)
        directory, name = self._directory(path)
        self.disk.inode(path)
        directory.change(name, "", None)

    async def sync_directory(self, directory: str) -> None:
        """See Disk.sync_directory."""
        self.step("sync directory", directory)
        state = self.disk.directories[directory]
        count = len(state.changes)
        await self.pause()
        state.settle(count)

    def lock(self, directory: str) -> SimLock:
        """See Disk.lock."""
        self.step("lock", directory)
        self.disk.take_lock(directory, self.process)
        return SimLock(self, directory)

    def free_bytes(self, directory: str) -> int:
        """See Disk.free_bytes."""
        return self.disk.free_bytes()

    # -- small files

    def read_file(self, path: str) -> bytes | None:
        """See FolderFiles.read_file."""
        self.step("read file", path)
        try:
            return bytes(self.disk.inode(path).seen)
        except FileNotFoundError:
            return None

    def is_directory(self, path: str) -> bool:
        """See FolderFiles.is_directory."""
        self.step("list", path)
        return path in self.disk.directories

    def replace_file(self, path: str, content: bytes) -> None:
        """See FolderFiles.replace_file. The process may die between any two of its steps."""
        temporary = path.rpartition(".")[0] + ".part"
        directory, name = self._directory(temporary)
        self.step("create", temporary)
        inode = Inode()
        directory.change("", name, inode)
        self.step("pwrite", temporary, content)
        inode.write(0, content)
        self.step("sync", temporary)
        self.settle_file(inode)
        self.rename(temporary, path)
        self.step("sync directory", path)
        self.settle_entries(directory)

    def keep_room(self, path: str, length_bytes: int) -> None:
        """See FolderFiles.keep_room: small files have room here also when log files have none."""

    def settle_file(self, inode: Inode) -> None:
        """Sync a small file."""
        inode.settle(dict(inode.dirty))

    def settle_entries(self, directory: Directory) -> None:
        """Sync the directory of a small file."""
        directory.settle(len(directory.changes))

    def try_lock_file(self, path: str) -> SimLock | None:
        """See FolderFiles.try_lock_file."""
        self.step("lock", path)
        try:
            self.disk.take_lock(path, self.process)
        except StartError:
            return None
        return SimLock(self, path)

    async def in_background(self, function: Callable[[], T]) -> T:
        """See FolderFiles.in_background."""
        await self.pause()
        return function()


class SimLock:
    """See DirectoryLock."""

    def __init__(self, disk: AttachedDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def release(self) -> None:
        """See DirectoryLock.release."""
        self._disk.disk.drop_lock(self._directory, self._disk.process)


class SimFile:
    """See DiskFile."""

    def __init__(self, disk: AttachedDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._closed = False

    def _step(self, name: str, *details: object) -> bool:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return self._disk.disk.operation(self._disk.process, name, self._path, *details)

    @property
    def length_bytes(self) -> int:
        """See DiskFile.length_bytes."""
        return len(self._inode.seen)

    def pwrite(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """See DiskFile.pwrite. A process that dies in it leaves a prefix of the bytes."""
        data = b"".join(buffers)
        dies = self._step("pwrite", offset, len(data), data[:64], data[-16:])
        if dies:
            self._disk.disk.count("write cut short")
            data = data[: self._disk.disk.random.randint(0, len(data))]
        if data:
            self._inode.write(offset, data)
        if dies:
            raise ProcessKilledError(self._disk.process.name)

    async def pread(self, offset: int, length: int) -> bytes:
        """See DiskFile.pread."""
        if self._step("pread", offset, length):
            raise ProcessKilledError(self._disk.process.name)
        await self._disk.pause(0.0005)
        return bytes(self._inode.seen[offset : offset + length])

    async def sync(self) -> None:
        """See DiskFile.sync. After an error the rest counts as clean and is not on the platter."""
        disk = self._disk.disk
        dies = self._step("sync")
        covered = dict(self._inode.dirty)
        if dies:
            raise ProcessKilledError(self._disk.process.name)
        await self._disk.pause()
        if disk.random.random() < disk.sync_error_chance:
            disk.count("sync error")
            self._inode.settle({sector: write for sector, write in covered.items() if disk.random.random() < 0.5})
            for sector in covered:
                self._inode.dirty.pop(sector, None)
            raise OSError(errno.EIO, "input/output error", self._path)
        self._inode.settle(covered)

    async def zero(self, start: int = 0, end: int | None = None) -> None:
        """See DiskFile.zero."""
        chunk = 64 * SECTOR_BYTES
        end = len(self._inode.seen) if end is None else end
        for offset in range(start, end, chunk):
            if self._step("zero", offset):
                raise ProcessKilledError(self._disk.process.name)
            self._inode.write(offset, bytes(min(chunk, end - offset)))
            await self._disk.pause()
            self._inode.settle(dict(self._inode.dirty))

    def truncate(self, length_bytes: int) -> None:
        """See DiskFile.truncate."""
        if self._step("truncate", length_bytes):
            raise ProcessKilledError(self._disk.process.name)
        self._inode.shorten(length_bytes)

    def close(self) -> None:
        """See DiskFile.close."""
        self._closed = True
