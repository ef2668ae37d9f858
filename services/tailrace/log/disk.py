"""The disk port of the file log, and its implementation on a real file system.

See docs/design.md#file-log, docs/performance.md#append-blocks.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeAlias, TypeVar

from tailrace.common import limits
from tailrace.common.durable_folder import NO_SPACE, FolderFiles, RealFolderFiles, sync_folder
from tailrace.common.errors import DiskFullError, StartError

Buffer: TypeAlias = bytes | bytearray | memoryview
_T = TypeVar("_T")

_IOV_MAX: Final = 1024
_EWMA_WEIGHT: Final = 0.1
_ZEROS: Final = bytes(limits.LOG_ZERO_CHUNK_BYTES)


class DiskFile(Protocol):
    """An open file. An OSError means that the disk failed."""

    @property
    def length_bytes(self) -> int:
        """Return the length of the file."""
        ...

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all joined buffers at `offset` into the page cache."""
        ...

    async def pread(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes from `offset`; less only at the end of the file."""
        ...

    async def sync(self) -> None:
        """Make all writes before the call durable (fdatasync). After an OSError the state is unknown."""
        ...

    async def zero(self, start: int = 0, end: int | None = None) -> None:
        """Overwrite the file with zeros from `start` to `end` (None: its end), durably, with little load at a time."""
        ...

    def truncate(self, length_bytes: int) -> None:
        """Shorten the file."""
        ...

    def close(self) -> None:
        """Close; idempotent."""
        ...


class DirectoryLock(Protocol):
    """An exclusive lock on a directory."""

    def release(self) -> None:
        """Unlock; idempotent."""
        ...


class ReadableDisk(Protocol):
    """The part of a disk that reading a log needs."""

    def open(self, path: str) -> DiskFile:
        """Open an existing file."""
        ...

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def lock(self, directory: str) -> DirectoryLock:
        """Lock the directory for this process.

        Raises:
            StartError: it is in use or not writable.
        """
        ...


class Disk(ReadableDisk, Protocol):
    """Files below directories, by path; `open` is for reading and writing."""

    async def create_zeroed(self, path: str, length_bytes: int, written_bytes: int | None = None) -> DiskFile:
        """Create a file of durable zeros; its directory entry is durable only after `sync_directory`.

        All of its space is taken. Behind `written_bytes` (None: the whole length) its zeros are not written: a sync of
        the first write there takes longer, because the file system has to note what is no longer zero.

        Raises:
            DiskFullError: the disk has no space or no inode; no file remains.
        """
        ...

    def make_directory(self, directory: str) -> None:
        """Create a directory durably, with its parents, unless it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename within a directory."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    async def sync_directory(self, directory: str) -> None:
        """Make creations, renames and removals in the directory durable."""
        ...

    def free_bytes(self, directory: str) -> int:
        """Return the free space of the directory's file system."""
        ...


class FolderDisk(Disk, FolderFiles, Protocol):
    """The disk of a data folder: its logs and its small files."""


async def _to_the_end(executor: ThreadPoolExecutor, function: Callable[[], _T]) -> _T:
    """Run in the executor; raise a cancellation only after the thread has finished with its file."""
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # mark as retrieved: the caller is cancelled
        raise


def _take_space(descriptor: int, length_bytes: int) -> None:
    os.posix_fallocate(descriptor, 0, length_bytes)
    os.fdatasync(descriptor)


class RealDisk(RealFolderFiles):
    """The machine's disk.

    fdatasync runs inline while its moving average is below ``limits.LOG_INLINE_SYNC_MAX_S``, because a switch to a
    thread costs as much. Otherwise it runs in a thread; zeroing runs in another.
    """

    def __init__(self) -> None:
        self._sync_executor = ThreadPoolExecutor(1, thread_name_prefix="log-sync")
        self._background_executor = ThreadPoolExecutor(1, thread_name_prefix="log-background")
        self._sync_average_s = 0.0

    def open(self, path: str) -> RealFile:
        """See Disk.open."""
        return RealFile(self, path, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    async def create_zeroed(self, path: str, length_bytes: int, written_bytes: int | None = None) -> RealFile:
        """See Disk.create_zeroed."""
        file: RealFile | None = None
        try:
            # Fails, too, when the disk is full: no inode may be left while there are free blocks.
            file = RealFile(self, path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
            descriptor = file.descriptor
            await self.in_background(lambda: _take_space(descriptor, length_bytes))
            await file.zero(0, written_bytes)
        except BaseException as error:
            if file is not None:
                file.close()
                os.unlink(path)
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                what = f"no space for {length_bytes} bytes of log in {os.path.dirname(path)}"
                raise DiskFullError(f"{what}: {error.strerror}") from error
            raise
        return file

    def list(self, directory: str) -> list[str]:
        """See Disk.list."""
        return sorted(os.listdir(directory))

    def rename(self, source: str, target: str) -> None:
        """See Disk.rename."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """See Disk.unlink."""
        os.unlink(path)

    async def sync_directory(self, directory: str) -> None:
        """See Disk.sync_directory."""
        await self.timed_sync(lambda: sync_folder(directory))

    def lock(self, directory: str) -> RealLock:
        """See Disk.lock."""
        path = os.path.join(directory, "lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StartError(f"log directory {directory} is not writable: {error.strerror}") from error
        return RealLock.taken(descriptor, directory)

    def free_bytes(self, directory: str) -> int:
        """See Disk.free_bytes."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    async def timed_sync(self, function: Callable[[], None]) -> None:
        """Run a sync inline while syncs are fast, else in the sync thread."""
        clock = asyncio.get_running_loop().time

        def timed() -> float:
            started = clock()
            function()
            return clock() - started

        if self._sync_average_s < limits.LOG_INLINE_SYNC_MAX_S:
            took_s = timed()
        else:
            took_s = await _to_the_end(self._sync_executor, timed)
        # Cap one stall: it must neither make a fast disk count as slow, nor hide a slow one for long.
        capped_s = min(took_s, 20 * limits.LOG_INLINE_SYNC_MAX_S)
        self._sync_average_s += _EWMA_WEIGHT * (capped_s - self._sync_average_s)

    async def in_background(self, function: Callable[[], _T]) -> _T:
        """Run in the background thread."""
        return await _to_the_end(self._background_executor, function)

    def close(self) -> None:
        """End the threads; all files must be closed."""
        self._sync_executor.shutdown()
        self._background_executor.shutdown()


class RealLock:
    """A lock that this process holds by flock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def taken(cls, descriptor: int, directory: str) -> RealLock:
        """Lock an open lock file. Closes it and raises StartError when another process holds the lock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise StartError(f"log directory {directory} is in use by another process") from error
        return cls(descriptor)

    def release(self) -> None:
        """See DirectoryLock.release."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_all(descriptor: int, offset: int, buffers: Sequence[Buffer]) -> int:
    rest = [memoryview(buffer) for buffer in buffers]
    while rest:
        written = os.pwritev(descriptor, rest, offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest and written:
            rest[0] = rest[0][written:]
    return offset


def _zero_step(descriptor: int, start: int, end: int) -> None:
    for offset in range(start, end, len(_ZEROS)):
        _write_all(descriptor, offset, [memoryview(_ZEROS)[: min(len(_ZEROS), end - offset)]])
        os.fdatasync(descriptor)


class RealFile:
    """A file of RealDisk."""

    def __init__(self, disk: RealDisk, path: str, descriptor: int) -> None:
        self._disk = disk
        self._path = path
        self.descriptor = descriptor

    @property
    def length_bytes(self) -> int:
        """See DiskFile.length_bytes."""
        return os.fstat(self.descriptor).st_size

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """See DiskFile.pwrite."""
        for first in range(0, len(buffers), _IOV_MAX):
            offset = _write_all(self.descriptor, offset, buffers[first : first + _IOV_MAX])

    async def pread(self, offset: int, length: int) -> bytes:
        """See DiskFile.pread."""
        return await self._disk.in_background(lambda: os.pread(self.descriptor, length, offset))

    async def sync(self) -> None:
        """See DiskFile.sync."""
        await self._disk.timed_sync(lambda: os.fdatasync(self.descriptor))

    async def zero(self, start: int = 0, end: int | None = None) -> None:
        """See DiskFile.zero."""
        end = self.length_bytes if end is None else end
        # Another open file than that of the frames: Linux reports a failed write to each once, and their sync must see
        # it, too. The zeros are synced in another thread, and with them frames that are not acknowledged yet.
        own = os.open(f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            # Few turns of the event loop: when it is busy, each takes as long as the writing itself.
            for first in range(start, end, limits.LOG_ZERO_STEP_BYTES):
                last = min(end, first + limits.LOG_ZERO_STEP_BYTES)
                await self._disk.in_background(lambda first=first, last=last: _zero_step(own, first, last))  # type: ignore[misc]
        finally:
            os.close(own)

    def truncate(self, length_bytes: int) -> None:
        """See DiskFile.truncate."""
        os.ftruncate(self.descriptor, length_bytes)

    def close(self) -> None:
        """See DiskFile.close."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
