"""Every implementation of the log port keeps the same contract (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailrace.common.errors import BadRequestError, FencedError, IllegalStateError, UnavailableError
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.log.object import ObjectLog
from tailrace.log.port import DurableLog
from tailrace.log.probe import probe_conditions
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore

NONCE = bytes(range(16))


@dataclass
class Place:
    """Where one log is; `new` gives another owner's handle of it."""

    new: Callable[[], DurableLog]
    fences_while_open: bool


def _file_log(disk: RealDisk, folder: Path) -> DurableLog:
    return FileLog(disk, str(folder / "log"), 7, file_bytes=256 * 1024, max_frame_bytes=32 * 1024, reserve_bytes=8192)


def _object_store(kind: str, request: pytest.FixtureRequest, folder: Path) -> ObjectStore:
    if kind == "object in memory":
        return open_object_store("memory://")
    if kind == "object in a folder":
        return open_object_store(f"file://{folder}")
    minio = request.getfixturevalue("minio_server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in minio.credentials.items():
            patch.setenv(name, value)
        return open_object_store(f"s3://{minio.new_bucket()}/a/prefix", s3_endpoint=minio.endpoint)


@pytest.fixture(
    params=["file", "memory", "memory with delay", "object in memory", "object in a folder", "object on MinIO"]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "file":
        disk = RealDisk()
        yield Place(lambda: _file_log(disk, tmp_path), fences_while_open=False)
        disk.close()
    elif request.param.startswith("object"):
        objects = _object_store(request.param, request, tmp_path)
        await probe_conditions(objects, "contract")
        yield Place(lambda: ObjectLog(objects, 7, max_frame_bytes=32 * 1024), fences_while_open=True)
        await objects.close()
    else:
        store = MemoryLogStore()
        delay_s = 0.001 if "delay" in request.param else 0.0
        yield Place(lambda: MemoryLog(store, delay_s=delay_s, max_frame_bytes=32 * 1024), fences_while_open=True)


@asynccontextmanager
async def opened(place: Place, epoch: int) -> AsyncIterator[DurableLog]:
    log = place.new()
    await log.open(epoch, NONCE)
    try:
        yield log
    finally:
        await log.close()


async def contents(log: DurableLog, first: int = 0) -> list[tuple[int, int, bytes]]:
    return [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover(first)]


async def test_a_new_log_is_empty(place: Place) -> None:
    async with opened(place, 1) as log:
        assert await contents(log) == []
        assert (log.log_start, log.next_sequence) == (0, 0)


async def test_frames_come_back_in_order_with_their_epochs(place: Place) -> None:
    async with opened(place, 1) as log:
        assert [await log.append([b"a", bytearray(b"b")]), await log.append([memoryview(b"c")])] == [0, 1]
    async with opened(place, 3) as log:
        assert log.next_sequence == 2
        assert await log.append([b"d"]) == 2
    async with opened(place, 4) as log:
        assert await contents(log) == [(0, 1, b"ab"), (1, 1, b"c"), (2, 3, b"d")]
        assert await contents(log, 2) == [(2, 3, b"d")]
        assert await contents(log) == [(0, 1, b"ab"), (1, 1, b"c"), (2, 3, b"d")]


async def test_it_returns_how_many_epochs_it_holds(place: Place) -> None:
    for epoch, held in ((1, 0), (2, 1), (4, 2), (5, 2)):
        async with opened(place, epoch) as log:
            assert log.epochs_at_opening == held
            if epoch != 4:
                await log.append([b"frame"])
    async with opened(place, 6) as log:
        assert log.epochs_at_opening == 3
        await log.append([b"frame"])
        await log.truncate(log.next_sequence)
        await log.append([b"durable only after the truncation"])
    async with opened(place, 7) as log:
        assert log.epochs_at_opening == 1


async def test_an_empty_frame_is_a_frame(place: Place) -> None:
    async with opened(place, 1) as log:
        await log.append([])
        await log.append([b"", b"x", b""])
    async with opened(place, 2) as log:
        assert await contents(log) == [(0, 1, b""), (1, 1, b"x")]


async def test_pipelined_appends_complete_in_order(place: Place) -> None:
    async with opened(place, 1) as log:
        order: list[int] = []
        futures = [log.append([bytes([number]) * (number * 37)]) for number in range(200)]
        assert log.next_sequence == 200
        for future in futures:
            future.add_done_callback(lambda done: order.append(done.result()))
        assert await asyncio.gather(*futures) == list(range(200))
        await asyncio.sleep(0)
        assert order == list(range(200))
    async with opened(place, 2) as log:
        assert [payload for _, _, payload in await contents(log)] == [bytes([n]) * (n * 37) for n in range(200)]


async def test_the_largest_frame_fits_and_a_larger_one_is_refused(place: Place) -> None:
    async with opened(place, 1) as log:
        # Every other sector zero: the most that bookkeeping can add.
        largest = ((b"x" * 512 + bytes(512)) * 64)[: log.max_frame_bytes]
        assert len(largest) == log.max_frame_bytes
        for _ in range(20):
            await log.append([largest])
        with pytest.raises(BadRequestError):
            log.append([largest, b"x"])
    async with opened(place, 2) as log:
        assert {payload for _, _, payload in await contents(log)} == {largest}


async def test_an_epoch_that_is_not_above_the_known_one_is_fenced(place: Place) -> None:
    async with opened(place, 5):
        pass
    for epoch in (4, 5):
        log = place.new()
        with pytest.raises(FencedError, match="5"):
            await log.open(epoch, NONCE)
    async with opened(place, 6):
        pass


async def test_an_owner_is_fenced_by_a_later_one(place: Place) -> None:
    if not place.fences_while_open:
        await _second_owner_cannot_open(place)
        return
    async with opened(place, 1) as old:
        await old.append([b"kept"])
        async with opened(place, 2) as new:
            late = old.append([b"late"])
            with pytest.raises(FencedError):
                await late
            with pytest.raises(FencedError):
                await old.append([b"later"])
            with pytest.raises(FencedError):
                await old.truncate(1)
            assert await new.append([b"new"]) == 1
            assert await contents(new, 1) == [(1, 2, b"new")]


async def _second_owner_cannot_open(place: Place) -> None:
    """Owners of a log on a local disk exclude each other by a lock instead."""
    async with opened(place, 1) as log:
        second = place.new()
        with pytest.raises(Exception, match="in use"):
            await second.open(2, NONCE)
        assert await log.append([b"still mine"]) == 0


async def test_an_owner_knows_since_when_it_was_surely_the_owner(place: Place) -> None:
    loop = asyncio.get_running_loop()
    opened_at_s = loop.time()
    log = place.new()
    await log.open(3, NONCE)
    assert log.owned_at_s >= opened_at_s
    asked_at_s = loop.time()
    await log.confirm_owner()
    assert log.owned_at_s >= asked_at_s
    if place.fences_while_open:
        async with opened(place, 4):
            # An owner that does not look may be out of date, but never claims to know what happened since.
            taken_at_s = loop.time()
            assert log.owned_at_s < taken_at_s
            with pytest.raises(FencedError) as fenced:
                await log.confirm_owner()
            assert fenced.value.epoch == 4
            with pytest.raises(FencedError):
                await log.confirm_owner()
            assert log.owned_at_s < taken_at_s
            with pytest.raises(FencedError):
                await log.append([b"x"])
    else:
        assert log.owned_at_s == float("inf"), "no other owner can open it"
    await log.close()
    assert log.owned_at_s == float("-inf")
    with pytest.raises(UnavailableError):
        await log.confirm_owner()


async def test_read_returns_parts_of_durable_frames(place: Place) -> None:
    async with opened(place, 1) as log:
        await log.append([b"0123456789"])
        pending = log.append([b"not yet"])
        with pytest.raises(KeyError):
            await log.read(2, 0, 1)
        await pending
        assert await log.read(0, 3, 4) == b"3456"
        assert await log.read(0, 8, 100) == b"89"
    async with opened(place, 2) as log:
        assert await log.read(1, 0, 7) == b"not yet"
        with pytest.raises(KeyError):
            await log.read(2, 0, 1)


async def test_truncation_forgets_frames_and_survives(place: Place) -> None:
    async with opened(place, 1) as log:
        for number in range(30):
            await log.append([bytes([number]) * 20_000])
        await log.truncate(25)
        assert log.log_start == 25
        await log.truncate(10)  # never goes back
        assert log.log_start == 25
        await log.append([b"last"])
    async with opened(place, 2) as log:
        assert log.log_start == 25
        assert [sequence for sequence, _, _ in await contents(log)] == [25, 26, 27, 28, 29, 30]
        with pytest.raises(KeyError):
            await log.read(3, 0, 1)
        await log.truncate(31)
        await log.append([b"alone"])
    async with opened(place, 3) as log:
        assert await contents(log) == [(31, 2, b"alone")]


async def test_truncation_of_frames_that_are_not_durable_is_refused(place: Place) -> None:
    async with opened(place, 1) as log:
        await log.append([b"x"])
        with pytest.raises(BadRequestError):
            await log.truncate(2)


async def test_a_fully_truncated_log_continues_its_sequence(place: Place) -> None:
    async with opened(place, 1) as log:
        await asyncio.gather(*(log.append([b"x"]) for _ in range(10)))
        await log.truncate(10)
        await log.append([b"y"])
        await log.truncate(11)
    for epoch in (2, 3, 4):
        async with opened(place, epoch) as log:
            assert log.next_sequence == 11
    async with opened(place, 5) as log:
        assert await log.append([b"z"]) == 11


async def test_appends_to_a_closed_log_fail(place: Place) -> None:
    log = place.new()
    with pytest.raises(IllegalStateError):
        log.append([b"x"])
    await log.open(1, NONCE)
    await log.close()
    with pytest.raises(UnavailableError):
        await log.append([b"x"])
    await log.close()


async def test_pending_appends_end_when_the_log_closes(place: Place) -> None:
    log = place.new()
    await log.open(1, NONCE)
    futures = [log.append([b"x"]) for _ in range(10)]
    await log.close()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(outcome, int | FencedError) for outcome in outcomes)
    durable = sum(isinstance(outcome, int) for outcome in outcomes)
    async with opened(place, 2) as log:
        assert len(await contents(log)) >= durable


async def test_stored_bytes_shrink_with_truncation(place: Place) -> None:
    async with opened(place, 1) as log:
        for _ in range(100):
            await log.append([b"x" * 30_000])
        before = log.stored_bytes
        assert before >= 3_000_000
        await log.truncate(100)
        await log.append([b"x"])
        deadline = asyncio.get_running_loop().time() + 10
        while log.stored_bytes > 800_000 and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.001)
        assert log.stored_bytes <= 800_000
