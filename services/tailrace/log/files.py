"""Prepares the next file of an open file log ahead, and recycles truncated ones.

See docs/design.md#faults-of-the-log, docs/design.md#file-log.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import DiskFullError
from tailrace.log.scan import spare_name

if TYPE_CHECKING:
    from tailrace.log.disk import Disk, DiskFile


_READY_MAX: Final = 2


@dataclass(slots=True)
class LogFile:
    """A file with frames. ``sectors`` are the first sectors of its DATA frames, from ``first_sequence`` on.

    Frames are written to its first ``prepared_bytes`` only.
    """

    path: str
    handle: DiskFile
    first_sequence: int
    length_bytes: int
    sectors: array[int] = field(default_factory=lambda: array("I"))
    position: int = 0
    first_readable: int = 0
    readers: int = 0
    prepared_bytes: int = 0

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the file's last frame."""
        return self.first_sequence + len(self.sectors)


class FileStock:
    """Keeps an empty file ready. It recycles retired files, so that a log of steady size creates none.

    An empty file takes its space at once, so that the disk cannot fill up below it; its zeros are written when it is
    wanted, as those of the rest of a file that is prepared in part: many containers are hardly written to.

    One background task runs it and calls `on_ready` on the loop when a file is ready. While the disk is full it retries
    every ``limits.LOG_PREALLOCATE_RETRY_S`` and whenever a file is retired.
    """

    def __init__(self, disk: Disk, directory: str, file_bytes: int, on_ready: Callable[[], None]) -> None:
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._on_ready = on_ready
        self._ready: deque[tuple[str, DiskFile]] = deque()
        self._reserved: deque[tuple[str, DiskFile]] = deque()
        """Empty files whose zeros are not written."""
        self._growing: LogFile | None = None
        self._retired: list[LogFile] = []
        self._names_used = 0
        self._wake = asyncio.Event()
        self._wanted = 0
        self._changed: asyncio.Future[None] | None = None
        self.full_reason: DiskFullError | None = None

    @property
    def empty_files(self) -> int:
        """Return how many files there are for later frames: ready ones, and ones that have their space."""
        return len(self._ready) + len(self._reserved)

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the empty and the retired files."""
        return self._file_bytes * self.empty_files + sum(file.length_bytes for file in self._retired)

    def take(self) -> tuple[str, DiskFile] | None:
        """Return path and handle of a ready file, if any, and prepare another one.

        This resets the number of wanted files: callers that wait for several ask again.
        """
        self._wanted = 1
        self._wake.set()
        self.announce()
        return self._ready.popleft() if self._ready else None

    def want(self, files: int) -> None:
        """Prepare so many files, until the next one is taken."""
        if files > self._wanted:
            self._wanted = files
            self._wake.set()

    def grow(self, file: LogFile) -> None:
        """Prepare the rest of a file in steps, before all other files."""
        if self._growing is not file:
            self._growing = file
            self._wake.set()

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done when there is a new file, the disk is found full, or the log ends."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def announce(self) -> None:
        """Wake the waiters of `changed`."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def wake(self) -> None:
        """Wake the task, which checks for work."""
        self._wake.set()

    def retire(self, file: LogFile) -> None:
        """Take a file whose frames are all truncated, durably."""
        if self._growing is file:  # all its frames are truncated: nothing more is written to it
            self._growing = None
        self._retired.append(file)
        self._wake.set()

    async def make(self, length_bytes: int, prepared_bytes: int | None = None) -> tuple[str, DiskFile]:
        """Create an empty file now, with zeros written to its first `prepared_bytes`. Raises DiskFullError."""
        path = self._next_path()
        return path, await self._disk.create_zeroed(path, length_bytes, prepared_bytes)

    async def run(self) -> None:
        """Work until cancelled. OSError: the disk failed."""
        while True:
            self._wake.clear()
            try:
                await self._step()
                self.full_reason = None
            except DiskFullError as error:
                self.full_reason = error
                self.announce()
            if self.full_reason is None:
                await self._wake.wait()
            else:
                await self._wake_or_retry()

    async def _wake_or_retry(self) -> None:
        try:
            async with asyncio.timeout(limits.LOG_PREALLOCATE_RETRY_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _step(self) -> None:
        while self._retired:
            file = self._retired[0]
            if file.readers:
                break
            await self._recycle(file)
        if self._growing is not None:
            await self._prepare_rest(self._growing)
            self._growing = None
        while len(self._ready) < self._wanted:
            if self._reserved:
                await self._reserved[0][1].zero()
                self._become_ready(self._reserved.popleft())
            else:
                self._become_ready(await self.make(self._file_bytes))
        if not self.empty_files:
            self._reserved.append(await self.make(self._file_bytes, 0))
            self.announce()

    async def _prepare_rest(self, file: LogFile) -> None:
        while file.prepared_bytes < file.length_bytes:
            end = min(file.length_bytes, file.prepared_bytes + limits.LOG_ZERO_STEP_BYTES)
            await file.handle.zero(file.prepared_bytes, end)
            file.prepared_bytes = end
            self._on_ready()

    async def _recycle(self, file: LogFile) -> None:
        """Turn a retired file into a ready one, or remove it."""
        path = self._next_path()
        self._disk.rename(file.path, path)
        self._retired.remove(file)
        try:
            # The rename is durable before the zeros: under its old name the file must never look damaged.
            await self._disk.sync_directory(self._directory)
            if len(self._ready) < max(_READY_MAX, self._wanted) and file.length_bytes == self._file_bytes:
                await file.handle.zero()
                self._become_ready((path, file.handle))
                return
        except BaseException:
            file.handle.close()
            raise
        file.handle.close()
        self._disk.unlink(path)

    def _become_ready(self, made: tuple[str, DiskFile]) -> None:
        self._ready.append(made)
        self._on_ready()
        self.announce()

    def _next_path(self) -> str:
        self._names_used += 1
        return f"{self._directory}/{spare_name(self._names_used)}"

    def close(self) -> None:
        """Close the handles; the task must have ended."""
        self.announce()
        for _, handle in (*self._ready, *self._reserved):
            handle.close()
        for file in self._retired:
            file.handle.close()
