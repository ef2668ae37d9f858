"""The file log's own behaviour: group commit, full and failing disks, recycling, damage on a real disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

import pytest

from sim import SimWorld
from sim.disk import AttachedDisk, SimFile
from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    CorruptionError,
    DataLossError,
    DiskFullError,
    FormatVersionError,
    StartError,
    UnavailableError,
)
from tailrace.kernel import crc32c
from tailrace.log.closed import ClosedLog, ReadOnlyDisk
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.files import FileStock, LogFile

KIB = 1024
NONCE = bytes(16)


def simulated(main: Callable[[SimWorld, FileLog], Awaitable[None]], **world_options: int) -> None:
    """Run a test on an open log on a simulated disk."""
    with SimWorld(1, **world_options) as world:
        process = world.process("log")

        async def run() -> None:
            log = new_log(world.disk.attach(process))
            await log.open(1, NONCE)
            await main(world, log)
            await log.close()

        world.run(_spawned(world, process.spawn(run())))


async def _spawned(world: SimWorld, task: asyncio.Task[None]) -> None:
    await task


def new_log(
    disk: object,
    directory: str = "/data/log",
    *,
    file_bytes: int = 128 * KIB,
    prepared_bytes: int = 128 * KIB,
    opened_epoch: int = 0,
    opens_full: bool = False,
) -> FileLog:
    return FileLog(
        disk,  # type: ignore[arg-type]
        directory,
        1,
        file_bytes=file_bytes,
        prepared_bytes=prepared_bytes,
        max_frame_bytes=16 * KIB,
        reserve_bytes=32 * KIB,
        opened_epoch=opened_epoch,
        opens_full=opens_full,
    )


partly_prepared_log = partial(new_log, file_bytes=1024 * KIB, prepared_bytes=256 * KIB)


def on_simulated_disk(main: Callable[[SimWorld, object], Coroutine[None, None, None]]) -> None:
    """Run a test that opens logs by itself."""
    with SimWorld(1) as world:
        process = world.process("log")
        disk = world.disk.attach(process)
        world.run(_spawned(world, process.spawn(main(world, disk))))


class Zeroed:
    """The bytes of zeros that a disk was asked to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        create, zero = AttachedDisk.create_zeroed, SimFile.zero

        async def counted_create(disk: AttachedDisk, path: str, length: int, given: int | None = None) -> SimFile:
            self.bytes += length if given is None else given
            return await create(disk, path, length, given)

        async def counted_zero(file: SimFile, start: int = 0, end: int | None = None) -> None:
            self.bytes += (file.length_bytes if end is None else end) - start
            await zero(file, start, end)

        monkeypatch.setattr(AttachedDisk, "create_zeroed", counted_create)
        monkeypatch.setattr(SimFile, "zero", counted_zero)


async def fill(log: FileLog) -> int:
    """Append until the log refuses; returns how often it did not."""
    appended = 0
    while True:
        try:
            more_space = log.check_space(8 * KIB)
        except DiskFullError:
            return appended
        if more_space is not None:
            await more_space
            continue
        await log.append([bytes([appended + 1]) * (8 * KIB)])
        appended += 1


def test_frames_of_one_turn_share_a_sync() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        before = world.disk.counts["sync"]
        await asyncio.gather(*(log.append([b"x" * 100]) for _ in range(50)))
        assert world.disk.counts["sync"] == before + 1

    simulated(main)


def test_frames_written_during_a_sync_share_the_next_one() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        before = world.disk.counts["sync"]
        first = log.append([b"a"])
        while world.disk.counts["sync"] == before:  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)
        rest = [log.append([b"b"]) for _ in range(20)]
        await first
        assert not any(future.done() for future in rest)
        await asyncio.gather(*rest)
        assert world.disk.counts["sync"] == before + 2

    simulated(main)


def test_an_opening_writes_few_zeros_and_the_others_follow_once_the_log_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOG_PREPARE_AFTER_BYTES", 64 * KIB)
    monkeypatch.setattr(limits, "LOG_ZERO_STEP_BYTES", 256 * KIB)

    async def main(world: SimWorld, disk: object) -> None:
        zeroed = Zeroed(monkeypatch)
        log = partly_prepared_log(disk)
        await log.open(1, NONCE)
        await asyncio.sleep(60)
        assert log.stored_bytes == 2 * 1024 * KIB, "it has its space, and that of its next file"
        await log.append([bytes(100)])
        await asyncio.sleep(60)
        assert zeroed.bytes == 256 * KIB, "no more for a log that is hardly written to"
        for _ in range(4):
            await log.append([bytes(16 * KIB)])
        while zeroed.bytes < 2 * 1024 * KIB:  # noqa: ASYNC110 - in simulated time
            await asyncio.sleep(0.01)
        await asyncio.sleep(60)
        assert zeroed.bytes == log.stored_bytes == 2 * 1024 * KIB
        await log.close()

    on_simulated_disk(main)


def test_frames_wait_for_the_zeros_of_their_place_and_are_all_there() -> None:
    """More at once than is prepared, and than the file has room for."""

    async def main(world: SimWorld, disk: object) -> None:
        log = partly_prepared_log(disk)
        await log.open(1, NONCE)
        payloads = [bytes([number]) * (16 * KIB) for number in range(100)]
        appended = [log.append([payload]) for payload in payloads]
        assert await asyncio.gather(*appended) == list(range(100))
        await log.close()
        again = partly_prepared_log(disk)
        await again.open(2, NONCE)
        assert [bytes(frame.payload) async for frame in again.recover()] == payloads
        await again.close()

    on_simulated_disk(main)


def test_frames_are_written_only_where_zeros_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that are written later would destroy them."""
    monkeypatch.setattr(limits, "LOG_ZERO_STEP_BYTES", 64 * KIB)
    prepared: dict[SimFile, int] = {}
    written: list[tuple[int, int]] = []
    create, zero, pwrite = AttachedDisk.create_zeroed, SimFile.zero, SimFile.pwrite

    async def noted_create(disk: AttachedDisk, path: str, length: int, given: int | None = None) -> SimFile:
        file = await create(disk, path, length, given)
        prepared[file] = length if given is None else given
        return file

    async def noted_zero(file: SimFile, start: int = 0, end: int | None = None) -> None:
        assert start == prepared[file], "behind all frames"
        await zero(file, start, end)
        prepared[file] = file.length_bytes if end is None else end

    def checked_pwrite(file: SimFile, offset: int, buffers: Sequence[bytes]) -> None:
        written.append((offset + sum(len(memoryview(buffer).cast("B")) for buffer in buffers), prepared[file]))
        pwrite(file, offset, buffers)

    async def main(world: SimWorld, disk: object) -> None:
        log = partly_prepared_log(disk)
        await log.open(1, NONCE)
        for _ in range(10):
            await asyncio.gather(*(log.append([bytes(15 * KIB)]) for _ in range(10)))
        await log.close()

    monkeypatch.setattr(AttachedDisk, "create_zeroed", noted_create)
    monkeypatch.setattr(SimFile, "zero", noted_zero)
    monkeypatch.setattr(SimFile, "pwrite", checked_pwrite)
    on_simulated_disk(main)
    assert len(written) > 100
    assert all(end <= prepared_bytes for end, prepared_bytes in written), written


async def test_an_error_that_the_sync_of_zeros_meets_fails_the_frames_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a failed write once to each open file; what it was to write may be a frame."""
    loop_thread, sync = threading.get_ident(), os.fdatasync
    opened, appended, failed = threading.Event(), threading.Event(), threading.Event()
    errors: dict[int, int] = {}
    seen: dict[int, int] = {}

    def fdatasync(descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if opened.is_set() and threading.get_ident() != loop_thread:
            assert appended.wait(120)
            errors[inode] = errors.get(inode, 0) + 1
        if seen.get(descriptor, 0) < errors.get(inode, 0):
            seen[descriptor] = errors[inode]
            failed.set()
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(limits, "LOG_PREPARE_AFTER_BYTES", 64 * KIB)
    monkeypatch.setattr(limits, "LOG_INLINE_SYNC_MAX_S", 3600.0)  # frames are synced on the loop
    disk = RealDisk()
    log = partly_prepared_log(disk, str(tmp_path / "log"))
    await log.open(1, NONCE)
    async with asyncio.timeout(120):
        while log.stored_bytes < 2 * 1024 * KIB:  # noqa: ASYNC110 - the next file is made in the background
            await asyncio.sleep(0.001)
    opened.set()
    for _ in range(5):  # then the zeros of the rest are written
        await log.append([bytes(15 * KIB)])
    frame = log.append([b"not on the disk"])
    appended.set()
    assert failed.wait(120)  # before the sync of the frame, which the loop begins
    with pytest.raises(UnavailableError, match="Input/output error"):
        await frame
    await log.close()
    disk.close()


async def test_a_file_that_is_retired_before_it_grew_grows_no_more(tmp_path: Path) -> None:
    """As a short one on a disk that was nearly full: the next frame may not fit into it."""
    disk = RealDisk()
    path = str(tmp_path / "0-1.log")
    handle = await disk.create_zeroed(path, 64 * KIB, 32 * KIB)
    stock = FileStock(disk, str(tmp_path), 256 * KIB, lambda: None)
    file = LogFile(path, handle, 0, 64 * KIB, prepared_bytes=32 * KIB)
    stock.grow(file)
    stock.retire(file)
    running = asyncio.create_task(stock.run())
    async with asyncio.timeout(120):
        while not stock.empty_files and not running.done():  # noqa: ASYNC110 - files are made in the background
            await asyncio.sleep(0.001)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    stock.close()
    disk.close()


def test_a_disk_that_fills_up_leaves_an_unused_log_its_two_files() -> None:
    async def main(world: SimWorld, disk: object) -> None:
        log = partly_prepared_log(disk)
        await log.open(1, NONCE)
        await asyncio.sleep(1)
        world.disk.capacity_bytes = world.disk.used_bytes()
        appended = await fill(log)
        assert appended > 200, "of 8 KiB: most of both"
        log.check_space(8 * KIB, reserved=True)
        await log.truncate(appended - 1)
        await asyncio.sleep(5)
        assert await fill(log) > 90, "the first one again"
        await log.close()

    on_simulated_disk(main)


def test_a_full_disk_refuses_before_staging_and_recovers_by_itself() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        await asyncio.sleep(1)
        world.disk.capacity_bytes = world.disk.used_bytes()
        appended = await fill(log)
        with pytest.raises(DiskFullError, match="no room"):
            log.check_space(8 * KIB)
        assert appended > 16  # the rest of the first file and most of the one prepared ahead
        log.check_space(8 * KIB, reserved=True)
        await log.append([b"gives space back"])
        assert await log.read(3, 0, 4) == bytes([4]) * 4
        world.disk.capacity_bytes = 1 << 40
        await asyncio.sleep(2)
        log.check_space(8 * KIB)
        assert await log.append([b"more"]) == appended + 1

    simulated(main)


def test_who_waits_for_several_files_still_gets_them_when_one_is_taken_meanwhile() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        async with asyncio.timeout(120):
            for files in range(2, 30):
                length_bytes = files * 128 * KIB
                more_space = log.check_space(length_bytes, length_bytes // (16 * KIB))
                appended = log.append([bytes(12 * KIB)])  # some of these take a file at once
                while more_space is not None:
                    await more_space
                    more_space = log.check_space(length_bytes, length_bytes // (16 * KIB))
                await appended

    simulated(main)


def test_a_truncation_makes_room_on_a_full_disk() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        await asyncio.sleep(1)
        world.disk.capacity_bytes = world.disk.used_bytes()
        last = await fill(log) - 1
        await log.truncate(last)
        await asyncio.sleep(2)
        log.check_space(8 * KIB)
        assert await log.append([b"more"]) == last + 1

    simulated(main)


def test_a_log_opens_on_a_nearly_full_disk_with_a_small_file() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        await log.append([b"before"])
        await log.close()
        world.disk.capacity_bytes = world.disk.used_bytes() - 128 * KIB + 100 * KIB
        process = world.process("next")
        again = new_log(world.disk.attach(process))
        await again.open(2, NONCE)
        assert await again.append([b"after"]) == 1
        await again.close()

    simulated(main)


@pytest.mark.parametrize("free_kib", [120, 100, 70, 50])
def test_the_first_file_on_a_nearly_full_disk_takes_most_of_what_is_free(free_kib: int) -> None:
    """Half of it may not be enough for the checkpoint that the full log is waiting for (test_large_checkpoints)."""

    async def main(world: SimWorld, log: FileLog) -> None:
        await log.append([b"before"])
        await log.close()
        world.disk.capacity_bytes = world.disk.used_bytes() - 128 * KIB + free_kib * KIB
        again = new_log(world.disk.attach(world.process("next")))
        await again.open(2, NONCE)
        assert again._current is not None
        assert again._current.length_bytes >= free_kib * KIB * 3 // 4
        await again.close()

    simulated(main)


def test_a_log_without_room_to_begin_is_read_and_written_later() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        await log.append([b"before"])
        await log.close()
        world.disk.fill(1e9)
        for epoch in (2, 3):  # the first one ends without having written anything
            again = new_log(world.disk.attach(world.process(str(epoch))), opened_epoch=1, opens_full=True)
            await again.open(epoch, NONCE)
            assert [bytes(frame.payload) async for frame in again.recover()] == [b"before"]
            assert await again.read(0, 0, 6) == b"before"
            with pytest.raises(DiskFullError, match="no space for"):
                again.check_space(1, reserved=True)
            appended = [again.append([b"after"]), again.append([b"at last"])]
            await again.truncate(1)
            await asyncio.sleep(5)
            assert not any(future.done() for future in appended)
            if epoch == 2:
                await again.close()
                with pytest.raises(UnavailableError):
                    await appended[0]
                with pytest.raises(UnavailableError):
                    await appended[1]
        world.disk.end_episodes()
        assert await asyncio.gather(*appended) == [1, 2]
        assert again.check_space(1) is None
        await again.close()
        last = new_log(world.disk.attach(world.process("last")), opened_epoch=3)
        await last.open(4, NONCE)
        assert [bytes(frame.payload) async for frame in last.recover()] == [b"after", b"at last"]
        await last.close()

    simulated(main)


def test_a_log_without_room_to_begin_says_so() -> None:
    with SimWorld(1, disk_bytes=10_000) as world:
        process = world.process("log")
        with pytest.raises(DiskFullError):
            world.run(_spawned(world, process.spawn(new_log(world.disk.attach(process)).open(1, NONCE))))


def test_a_failed_sync_stops_the_log_for_good() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        await log.append([b"kept"])
        world.disk.sync_error_chance = 1.0
        pending = [log.append([b"lost"]) for _ in range(3)]
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(outcome, UnavailableError)
        world.disk.sync_error_chance = 0.0
        with pytest.raises(UnavailableError, match="input/output error"):
            await log.append([b"never"])
        with pytest.raises(UnavailableError):
            await log.truncate(1)
        assert await log.read(0, 0, 4) == b"kept"

    simulated(main)


def test_truncated_files_are_used_again() -> None:
    async def main(world: SimWorld, log: FileLog) -> None:
        for number in range(200):
            await log.append([bytes([number + 1]) * (10 * KIB)])
            if number % 10 == 9:
                await log.truncate(number)
        await asyncio.sleep(1)
        assert world.disk.counts["create"] < 8
        assert world.disk.counts["zero"] > 0
        assert log.stored_bytes <= 4 * 128 * KIB
        assert await log.read(199, 0, 1) == bytes([200])

    simulated(main)


def test_a_file_that_cannot_hold_a_frame_is_refused() -> None:
    with pytest.raises(BadRequestError, match="file_bytes"):
        FileLog(None, "/data/log", 1, file_bytes=64 * KIB, max_frame_bytes=64 * KIB)  # type: ignore[arg-type]


# -- a real disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    disk = RealDisk()

    def no_space(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    try:
        with pytest.raises(DiskFullError, match=rf"no space for 4096 bytes of log in .*: {os.strerror(number)}"):
            await disk.create_zeroed(str(tmp_path / "spare-1.log"), 4096)
        assert os.listdir(tmp_path) == []
    finally:
        disk.close()


def without_inodes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let no file be created, though blocks are free: the disk has no inode left, or the quota of files is used up."""
    real = os.open

    def create_none(path: str, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_EXCL:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", create_none)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_without_inodes_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    disk = RealDisk()
    without_inodes(monkeypatch, number)
    try:
        with pytest.raises(DiskFullError, match=rf"no space for 4096 bytes of log in .*: {os.strerror(number)}"):
            await disk.create_zeroed(str(tmp_path / "spare-1.log"), 4096)
    finally:
        disk.close()


async def test_a_file_that_exists_already_stays(tmp_path: Path) -> None:
    disk = RealDisk()
    (tmp_path / "spare-1.log").write_bytes(b"another's")
    try:
        with pytest.raises(FileExistsError):
            await disk.create_zeroed(str(tmp_path / "spare-1.log"), 4096)
        assert (tmp_path / "spare-1.log").read_bytes() == b"another's"
    finally:
        disk.close()


async def test_a_log_opens_on_a_disk_without_inodes_and_is_written_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(folder, [b"before"])
    disk = RealDisk()
    log = new_log(disk, str(folder), opened_epoch=1, opens_full=True)
    try:
        with monkeypatch.context() as without:
            without_inodes(without, errno.ENOSPC)
            await log.open(2, NONCE)
            assert [bytes(frame.payload) async for frame in log.recover()] == [b"before"]
            with pytest.raises(DiskFullError, match="no space for"):
                log.check_space(1, reserved=True)
            appended = log.append([b"after"])
        async with asyncio.timeout(120):
            assert await appended == 1
    finally:
        await log.close()
        disk.close()


async def written(folder: Path, payloads: list[bytes], epoch: int = 1) -> None:
    """A closed log with those frames."""
    disk = RealDisk()
    log = new_log(disk, str(folder))
    await log.open(epoch, NONCE)
    for payload in payloads:
        await log.append([payload])
    await log.close()
    disk.close()


async def opened(folder: Path, epoch: int = 2) -> list[bytes]:
    """What a new owner recovers."""
    disk = RealDisk()
    log = new_log(disk, str(folder))
    try:
        await log.open(epoch, NONCE)
        return [bytes(frame.payload) async for frame in log.recover()]
    finally:
        await log.close()
        disk.close()


def damage(file: Path, offset: int, data: bytes | bytearray) -> None:
    with file.open("r+b") as handle:
        handle.seek(offset)
        handle.write(data)


def first_file(folder: Path) -> Path:
    return folder / f"{0:020d}-{1:020d}.log"


async def test_a_flipped_bit_is_reported_with_its_place(folder: Path) -> None:
    await written(folder, [b"a" * 700, b"b" * 700])
    damage(first_file(folder), 512 + 1024 + 300, b"c")
    with pytest.raises(CorruptionError) as caught:
        await opened(folder)
    assert caught.value.place == f"{first_file(folder)} at offset {512 + 1024}"
    damage(first_file(folder), 512 + 1024 + 300, b"b")
    assert await opened(folder) == [b"a" * 700, b"b" * 700]


async def test_a_torn_last_frame_is_dropped(folder: Path) -> None:
    await written(folder, [b"a" * 700, b"b" * 700])
    damage(first_file(folder), 512 + 1024 + 512, bytes(512))
    assert await opened(folder) == [b"a" * 700]


async def test_a_lost_frame_that_was_acknowledged_is_a_loss(folder: Path) -> None:
    await written(folder, [b"a", b"b", b"c"])
    damage(first_file(folder), 512 + 512, bytes(512))
    with pytest.raises(DataLossError, match="log frame 1 is missing"):
        await opened(folder)


async def test_a_newer_format_is_refused(folder: Path) -> None:
    await written(folder, [b"a"])
    header = bytearray(first_file(folder).read_bytes()[512 : 512 + 124])
    header[8:10] = (2).to_bytes(2, "big")
    header[120:124] = crc32c(header[:120]).to_bytes(4, "big")
    damage(first_file(folder), 512, header)
    with pytest.raises(FormatVersionError, match="version 2"):
        await opened(folder)


async def test_a_directory_in_use_is_refused(folder: Path) -> None:
    disk = RealDisk()
    log = new_log(disk, str(folder))
    await log.open(1, NONCE)
    with pytest.raises(StartError, match="in use"):
        await opened(folder)
    reading = ReadOnlyDisk()
    with pytest.raises(StartError, match="in use"):
        await ClosedLog(reading, str(folder), 1).open()
    reading.close()
    await log.close()
    assert await opened(folder) == []
    disk.close()


async def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StartError, match="cannot be created"):
        await opened(tmp_path / "file" / "log")


async def test_tools_read_a_closed_log(folder: Path) -> None:
    await written(folder, [b"a"])
    await written(folder, [b"b"], epoch=2)
    disk = ReadOnlyDisk()
    log = ClosedLog(disk, str(folder), 1)
    await log.open()
    found = [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover()]
    assert found == [(0, 1, b"a"), (1, 2, b"b")]
    log.close()
    disk.close()


async def test_a_slow_disk_is_synced_in_a_thread(folder: Path, no_leaks: None) -> None:
    disk = RealDisk()
    disk._sync_average_s = 1.0  # as after many slow syncs
    log = new_log(disk, str(folder))
    await log.open(1, NONCE)
    assert await asyncio.gather(*(log.append([b"x" * 100]) for _ in range(20))) == list(range(20))
    for _ in range(200):
        await log.append([b"y"])
    assert disk._sync_average_s < 0.5  # it finds out that the disk is fast
    await log.close()
    disk.close()


async def test_short_writes_are_completed(tmp_path: Path) -> None:
    disk = RealDisk()
    file = await disk.create_zeroed(str(tmp_path / "file"), 64 * KIB)
    buffers = [os.urandom(7) for _ in range(3000)]  # more than one pwritev takes
    file.pwrite(100, buffers)
    assert await file.pread(100, 21_000) == b"".join(buffers)
    file.close()
    disk.close()
