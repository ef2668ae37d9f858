"""The file log: Tier 1 on a local disk, for the standalone server (docs/design.md#file-log, docs/formats/log.md)."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    CorruptionError,
    DiskFullError,
    FencedError,
    IllegalStateError,
    StartError,
    TailraceError,
    UnavailableError,
)
from tailrace.log import frames
from tailrace.log.base import SequencedLog
from tailrace.log.files import FileStock, LogFile
from tailrace.log.frames import FrameIdentity, FrameKind, StartRecord, Verdict
from tailrace.log.port import Buffer, RecoveredFrame
from tailrace.log.recovery import AcceptedFile, Decision, decide
from tailrace.log.scan import Window, file_name, frame_at, is_spare, read_frames, scan_directory
from tailrace.log.space import FrameSpace

if TYPE_CHECKING:
    from tailrace.log.disk import DirectoryLock, Disk, DiskFile

_MARKS_MAX_BYTES: Final = 8 * frames.SECTOR_BYTES
"""Room at the end of each file that only MARK frames use, so that a truncation can always free space."""
_START_MAX_BYTES: Final = 64 * limits.KIB
"""Room for a START frame with the history of some 2,700 epochs."""


@dataclass(slots=True)
class _Append:
    """An append that is not durable yet. ``future`` is None for the log's own frames."""

    kind: FrameKind
    sequence: int
    payload: list[memoryview]
    length_bytes: int
    future: asyncio.Future[int] | None


class FileLog(SequencedLog):
    """A DurableLog in a directory of its own; see the port for the contract.

    Frames are written when they are appended; one fdatasync makes all earlier writes durable. A disk error stops the
    log for good, because after a failed fdatasync the content of the disk is unknown. ``opened_epoch`` is the last
    epoch for which the log is known to have been opened; a log that ends before it is refused. With ``opens_full`` a
    log that was opened before opens on a full disk too: it is read, and its first frames wait for a file. Construct it
    inside a running event loop.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        container: int,
        *,
        file_bytes: int = limits.LOG_FILE_BYTES,
        prepared_bytes: int = limits.LOG_PREPARED_BYTES,
        max_frame_bytes: int = limits.LOG_FRAME_MAX_BYTES,
        reserve_bytes: int = limits.LOG_RESERVE_BYTES,
        opened_epoch: int = 0,
        opens_full: bool = False,
    ) -> None:
        self._smallest_file_bytes = frames.frame_length_max(max_frame_bytes) + _START_MAX_BYTES + _MARKS_MAX_BYTES
        if file_bytes % frames.SECTOR_BYTES or file_bytes < self._smallest_file_bytes:
            raise BadRequestError(f"file_bytes: {file_bytes} bytes of file cannot hold frames of {max_frame_bytes}")
        super().__init__(max_frame_bytes)
        self._disk = disk
        self._directory = directory
        self._container = container
        self._file_bytes = file_bytes
        self._prepared_bytes = min(file_bytes, max(prepared_bytes, self._smallest_file_bytes))
        self._reserve_bytes = reserve_bytes
        self._opened_epoch = opened_epoch
        self._opens_full = opens_full and opened_epoch > 0
        self._lock: DirectoryLock | None = None
        self._decision = Decision()
        self._garbage: list[str] = []
        self._identity = FrameIdentity(container, 0, b"")
        self._files: list[LogFile] = []
        self._current: LogFile | None = None
        self._stock = FileStock(disk, directory, file_bytes, self._write_waiting)
        self._frame_overhead_bytes = frames.frame_length_max(max_frame_bytes) - max_frame_bytes
        self._space = FrameSpace(
            file_bytes - _START_MAX_BYTES - _MARKS_MAX_BYTES, frames.frame_length_max(max_frame_bytes)
        )
        self._stock_task: asyncio.Task[None] | None = None
        self._sync_task: asyncio.Task[None] | None = None
        self._waiting: deque[_Append] = deque()  # for a file to write them to
        self._written: deque[_Append] = deque()  # for the next sync
        self._unsynced: list[LogFile] = []
        self._directory_unsynced = False
        self._acknowledged_through = -1
        self._written_log_start = 0
        self._durable_log_start = 0
        self._failure: TailraceError | None = None

    # -- properties ----------------------------------------------------------------------------------------------

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of all files, the prepared one included."""
        return sum(file.length_bytes for file in self._files) + self._stock.stored_bytes

    @property
    def owned_at_s(self) -> float:
        """See DurableLog.owned_at_s: its directory is locked."""
        return float("inf") if self._failure is None else float("-inf")

    async def confirm_owner(self) -> None:
        """See DurableLog.confirm_owner."""
        if self._failure is not None:
            raise self._failure

    # -- opening -------------------------------------------------------------------------------------------------

    async def open(self, epoch: int, nonce: bytes) -> None:
        """See DurableLog.open. StartError: the directory is in use or not writable. DiskFullError: no space.

        With ``opens_full`` and without space, `check_space` raises DiskFullError until a first file is made.
        """
        if self._lock is not None or self._failure is not None:
            raise IllegalStateError(f"log {self._directory} was opened before")
        try:
            self._disk.make_directory(self._directory)
        except OSError as error:
            raise StartError(f"log directory {self._directory} cannot be created: {error}") from error
        self._lock = self._disk.lock(self._directory)
        try:
            await self._recover_and_begin(epoch, nonce)
        except OSError as error:
            self._release()
            raise UnavailableError(f"log {self._directory} cannot be opened: {error}") from error
        except BaseException:
            self._release()
            raise

    async def _recover_and_begin(self, epoch: int, nonce: bytes) -> None:
        decision = decide(await scan_directory(self._disk, self._directory, self._container))
        decision.check_opened(self._directory, self._opened_epoch)
        if epoch <= decision.known_epoch:
            known = decision.known_epoch
            raise FencedError(f"log {self._directory} knows epoch {known}, {epoch} is not above it", known)
        self._decision = decision
        self._identity = FrameIdentity(self._container, epoch, nonce)
        self._next_sequence = decision.next_sequence
        self._log_start = decision.log_start
        self._epochs_at_opening = len(decision.history)
        for name in self._disk.list(self._directory):
            if is_spare(name):
                self._disk.unlink(f"{self._directory}/{name}")
        for accepted in decision.files:
            await self._settle(accepted)
        await self._disk.sync_directory(self._directory)
        self._acknowledged_through = decision.next_sequence - 1
        self._garbage = list(decision.garbage)
        try:
            await self._begin_epoch()
        except DiskFullError as error:
            # Nothing of this epoch is stored: until its first file, the directory's lock alone keeps others away.
            if not self._opens_full:
                raise
            self._stock.full_reason = error
            self._stock.want(1)
        else:
            if self._prepared_bytes == self._file_bytes:  # no rest of it is prepared later, and the next one with that
                self._stock.want(1)
            self._remove_garbage()
            await self._disk.sync_directory(self._directory)
        self._stock_task = asyncio.get_running_loop().create_task(self._run_stock())

    def _remove_garbage(self) -> None:
        """Remove the files that recovery did not accept, once a durable START frame of this epoch says so too."""
        while self._garbage:
            self._disk.unlink(self._garbage.pop())

    async def _settle(self, accepted: AcceptedFile) -> None:
        """Make the valid frames durable, and free the space behind them.

        Frames without a known acknowledgement may be in the page cache alone, even marked clean after a failed
        fdatasync of the earlier owner. Rewriting them in place makes the pages dirty.
        """
        scan = accepted.scan
        handle = self._disk.open(scan.name)
        file = LogFile(scan.name, handle, scan.first_sequence, scan.length_bytes, scan.sectors, scan.end_offset)
        del file.sectors[accepted.last + 1 - scan.first_sequence :]
        file.first_readable = accepted.first
        self._files.append(file)
        if accepted.last > self._decision.acknowledged_through:
            # From the last acknowledged frame on, not from the one after it: a MARK may be between them.
            sure = self._decision.acknowledged_through - scan.first_sequence
            offset = file.sectors[sure] * frames.SECTOR_BYTES if sure >= 0 else 0
            await self._rewrite(handle, offset, scan.end_offset)
        if scan.end_offset < scan.length_bytes:
            handle.truncate(scan.end_offset)
            file.length_bytes = scan.end_offset
        await handle.sync()

    async def _rewrite(self, handle: DiskFile, offset: int, end: int) -> None:
        while offset < end:
            piece = await handle.pread(offset, min(end - offset, limits.LOG_SCAN_WINDOW_BYTES))
            handle.pwrite(offset, [piece])
            offset += len(piece)

    async def _begin_epoch(self) -> None:
        """Begin this epoch's first file, smaller than usual when the disk is nearly full, and prepared in part."""
        length = self._file_bytes
        while True:
            try:
                prepared = min(length, self._prepared_bytes)
                made = await self._stock.make(length, prepared)
                break
            except DiskFullError:
                if length == self._smallest_file_bytes:
                    raise
                length = self._shorter(length)
        self._begin_file(*made, prepared)
        for file in self._unsynced:
            await file.handle.sync()
        await self._disk.sync_directory(self._directory)
        self._unsynced.clear()
        self._directory_unsynced = False
        self._durable_log_start = self._written_log_start

    def _shorter(self, length_bytes: int) -> int:
        """Return the length of a file that may fit on the disk: most of what is free, or half of one that did not."""
        free = self._disk.free_bytes(self._directory) // 8 * 7
        fitting = free if self._smallest_file_bytes <= free < length_bytes else length_bytes // 2
        return max(fitting // frames.SECTOR_BYTES * frames.SECTOR_BYTES, self._smallest_file_bytes)

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See DurableLog.recover."""
        for accepted in self._decision.files:
            async for frame in read_frames(self._disk, accepted, first_sequence):
                yield RecoveredFrame(frame.header.sequence, frame.header.epoch, frame.payload)

    # -- writing -------------------------------------------------------------------------------------------------

    def check_space(
        self, length_bytes: int, frame_count: int = 1, *, reserved: bool = False
    ) -> asyncio.Future[None] | None:
        """See DurableLog.check_space. Counts room in existing files only, so that a full disk cannot break it."""
        frame_count += len(self._waiting)
        needed = length_bytes + frame_count * self._frame_overhead_bytes
        if self._waiting:
            needed += sum(item.length_bytes for item in self._waiting)
        if not reserved:
            needed += self._reserve_bytes
            frame_count += -(-self._reserve_bytes // self._space.frame_bytes)
        if self._space.fits(needed, frame_count, self._room(), self._stock.empty_files):
            return None
        if self._stock.full_reason is not None:
            raise DiskFullError(f"the log has no room for {length_bytes} bytes: {self._stock.full_reason}")
        self._stock.want(self._space.files_for(needed, frame_count))
        return self._stock.changed()

    def _room(self) -> int:
        current = self._current
        return current.length_bytes - current.position - _MARKS_MAX_BYTES if current is not None else 0

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """See DurableLog.append."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        views = [memoryview(buffer).cast("B") for buffer in payload if len(buffer)]
        length = sum(map(len, views))
        if length > self._max_frame_bytes:
            raise BadRequestError(f"payload: {length} bytes do not fit in a log frame of {self._max_frame_bytes}")
        if self._failure is None and self._stock_task is None:
            raise IllegalStateError(f"log {self._directory} is not open")
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        item = _Append(FrameKind.DATA, self._next_sequence, views, length, future)
        self._next_sequence += 1
        self._unsynced_bytes += length
        self._waiting.append(item)
        self._write_waiting()
        return future

    def _write_waiting(self) -> None:
        """Write as many waiting frames as the files have room for; a sync follows at the end of the loop's turn."""
        try:
            while self._waiting and self._failure is None:
                item = self._waiting[0]
                if not self._write(item):
                    break
                self._waiting.popleft()
        except OSError as error:
            self._fail(error)
            return
        if self._written and self._sync_task is None:
            self._sync_task = asyncio.get_running_loop().create_task(self._sync_written())

    def _write(self, item: _Append) -> bool:
        """Write one frame; False when no file has room for it."""
        file = self._current
        buffers, length = ([], 0) if file is None else self._encode(item, file)
        kept_bytes = _MARKS_MAX_BYTES if item.kind is FrameKind.DATA else 0
        if file is None or file.position + length > file.length_bytes - kept_bytes:
            if item.kind is FrameKind.MARK:
                return True  # no room for the MARK: the next frame carries the log start
            taken = self._stock.take()
            if taken is None:
                return False
            file = self._begin_file(*taken, taken[1].length_bytes)
            buffers, length = self._encode(item, file)
        if file.position + length > file.prepared_bytes:
            self._stock.grow(file)
            return False
        file.handle.pwrite(file.position, buffers)
        if item.kind is FrameKind.DATA:
            file.sectors.append(file.position // frames.SECTOR_BYTES)
        file.position += length
        if file.position >= limits.LOG_PREPARE_AFTER_BYTES:
            self._prepare(file)
        self._written_log_start = self._log_start
        self._written.append(item)
        if self._unsynced[-1:] != [file]:
            self._unsynced.append(file)
        return True

    def _prepare(self, file: LogFile) -> None:
        """Prepare the rest of a file that is in use, and the next one."""
        if file.prepared_bytes < file.length_bytes:
            self._stock.grow(file)
        self._stock.want(1)

    def _encode(self, item: _Append, file: LogFile) -> tuple[list[Buffer], int]:
        return frames.encode_frame(
            self._identity,
            item.kind,
            item.payload,
            sequence=item.sequence,
            acknowledged_through=self._acknowledged_through,
            log_start=self._log_start,
            offset=file.position,
        )

    def _begin_file(self, spare_path: str, handle: DiskFile, prepared_bytes: int) -> LogFile:
        """Name an empty file and write its START frame. The directory is synced with the file's first frames."""
        first_sequence = self._waiting[0].sequence if self._waiting else self._next_sequence
        path = f"{self._directory}/{file_name(first_sequence, self._identity.epoch)}"
        self._disk.rename(spare_path, path)
        file = LogFile(path, handle, first_sequence, handle.length_bytes, first_readable=first_sequence)
        file.prepared_bytes = prepared_bytes
        self._files.append(file)
        self._current = file
        self._directory_unsynced = True
        history = tuple(entry for entry in self._decision.history if entry.last >= self._log_start)
        record = StartRecord(self._decision.next_sequence, self._decision.previous_epoch, history).encode()
        start = _Append(FrameKind.START, first_sequence, [memoryview(record)], 0, None)
        buffers, length = self._encode(start, file)
        if length > _START_MAX_BYTES:
            raise IllegalStateError(f"log {self._directory} was opened {len(history)} times without a truncation")
        handle.pwrite(0, buffers)
        file.position = length
        self._written_log_start = self._log_start
        self._unsynced.append(file)
        return file

    # -- making durable ------------------------------------------------------------------------------------------

    async def _sync_written(self) -> None:
        """Sync in rounds (group commit): each covers the writes before it began (docs/design.md#file-log)."""
        try:
            while self._written and self._failure is None:
                await self._sync_round()
        except OSError as error:
            self._fail(error)
        finally:
            self._sync_task = None

    async def _sync_round(self) -> None:
        count = len(self._written)
        log_start = self._written_log_start
        files, self._unsynced = self._unsynced, []
        directory, self._directory_unsynced = self._directory_unsynced, False
        for file in files:
            await file.handle.sync()
        if directory:
            await self._disk.sync_directory(self._directory)
        if self._failure is not None:
            return
        done = [self._written.popleft() for _ in range(count)]
        for item in done:
            if item.future is not None:
                self._acknowledged_through = item.sequence
                self._unsynced_bytes -= item.length_bytes
        for item in done:
            if item.future is not None and not item.future.done():
                item.future.set_result(item.sequence)
        if log_start > self._durable_log_start:
            self._durable_log_start = log_start
            self._retire_files()
        if self._garbage:  # the log was opened without room for its first file, and has one now
            self._remove_garbage()
            self._directory_unsynced = True

    def _fail(self, error: Exception) -> None:
        """Stop for good: frames that are not acknowledged never will be."""
        if self._failure is None:
            self._failure = UnavailableError(f"log {self._directory} stopped: {error}")
            self._failure.__cause__ = error
            self._stock.announce()
        self._end_pending(self._failure)

    def _end_pending(self, error: TailraceError) -> None:
        pending = [*self._written, *self._waiting]
        self._written.clear()
        self._waiting.clear()
        for item in pending:
            if item.future is not None and not item.future.done():
                item.future.set_exception(error)

    # -- truncation ----------------------------------------------------------------------------------------------

    async def truncate(self, sequence: int) -> None:
        """See DurableLog.truncate. Frees whole files once a durable frame records the new start."""
        if self._failure is not None:
            raise self._failure
        if sequence > self._acknowledged_through + 1:
            raise BadRequestError(f"sequence: frame {sequence} is not durable, the log cannot start there")
        if sequence <= self._log_start:
            return
        self._log_start = sequence
        if self._truncated_files(sequence) and not self._waiting:
            self._waiting.append(_Append(FrameKind.MARK, self._next_sequence, [], 0, None))
            self._write_waiting()

    def _truncated_files(self, log_start: int) -> list[LogFile]:
        return [file for file in self._files if file is not self._current and file.next_sequence <= log_start]

    def _retire_files(self) -> None:
        for file in self._truncated_files(self._durable_log_start):
            self._files.remove(file)
            self._stock.retire(file)

    async def _run_stock(self) -> None:
        try:
            await self._stock.run()
        except OSError as error:
            self._fail(error)

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See DurableLog.read."""
        file = self._file_of(sequence)
        file.readers += 1
        try:
            place = file.sectors[sequence - file.first_sequence] * frames.SECTOR_BYTES
            found = await frame_at(Window(file.handle), place)
        finally:
            file.readers -= 1
            if not file.readers:
                self._stock.wake()
        if isinstance(found, Verdict):
            reason = found.reason or f"the frame is {found.condition.value}"
            raise CorruptionError(f"{file.path} at offset {place}", reason)
        header, payload = found
        if header.sequence != sequence:
            raise CorruptionError(f"{file.path} at offset {place}", f"frame {header.sequence} instead of {sequence}")
        return bytes(payload[offset : offset + length])

    def _file_of(self, sequence: int) -> LogFile:
        if sequence <= self._acknowledged_through:
            index = bisect.bisect_right(self._files, sequence, key=lambda file: file.first_sequence) - 1
            if index >= 0 and self._files[index].first_readable <= sequence < self._files[index].next_sequence:
                return self._files[index]
        raise KeyError(f"log frame {sequence} does not exist")

    # -- closing -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See DurableLog.close. Written frames become durable; waiting ones fail."""
        if self._sync_task is not None:
            await asyncio.wait([self._sync_task])
        if self._failure is None:
            self._failure = FencedError(f"log {self._directory} is closed")
        self._end_pending(self._failure)
        if self._stock_task is not None:
            self._stock_task.cancel()
            await asyncio.wait([self._stock_task])
        self._release()
        if self._stock_task is not None and not self._stock_task.cancelled():
            self._stock_task.result()

    def _release(self) -> None:
        try:
            for file in self._files:
                file.handle.close()
            self._stock.close()
        finally:
            self._files.clear()
            self._current = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None
