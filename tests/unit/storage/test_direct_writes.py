"""Large objects in a folder are written past the page cache where the file system takes that, else through it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import mmap
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.errors import DeadlineError, UnavailableError
from tailrace.storage import direct_writes
from tailrace.storage.aligned_copies import ALIGNMENT_BYTES, AlignedCopies
from tailrace.storage.folder_objects import FolderObjects

LARGE = limits.STORAGE_DIRECT_MIN_BYTES


def content(length_bytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(length_bytes)


def pieces(data: bytes) -> list[memoryview]:
    """Buffers of odd lengths, as a chunk's."""
    view, cuts = memoryview(data), [0, 77, 77, min(70_001, len(data)), len(data)]
    return [view[start:end] for start, end in itertools.pairwise(cuts)]


class Writes:
    """The writes of a file system: each goes past the cache (or not), at an offset, with a length."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[bool, int, int]] = []
        self.takes_flag = True
        self.direct_error = 0
        self.most_bytes = 1 << 40
        self._pwrite, self._fcntl = os.pwrite, fcntl.fcntl
        monkeypatch.setattr(direct_writes.os, "pwrite", self._write)
        monkeypatch.setattr(direct_writes.fcntl, "fcntl", self._control)

    def _control(self, descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT and not self.takes_flag:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._fcntl(descriptor, command, argument & ~os.O_DIRECT if self._simulated else argument)

    @property
    def _simulated(self) -> bool:
        """Short writes are not aligned, which a real file system would refuse."""
        return self.most_bytes < 1 << 40

    def _write(self, descriptor: int, data: memoryview, offset: int) -> int:
        direct = bool(self._fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        if direct and self.direct_error:
            raise OSError(self.direct_error, os.strerror(self.direct_error))
        written = self._pwrite(descriptor, data[: self.most_bytes], offset)
        self.seen.append((direct, offset, written))
        return written


@pytest.mark.parametrize("length", [LARGE - 1, LARGE, LARGE + 1, LARGE + ALIGNMENT_BYTES, 9 * limits.MIB + 513])
async def test_objects_of_any_length_are_stored_whole(tmp_path: Path, length: int) -> None:
    store = FolderObjects(tmp_path)
    for seed in (1, 2):  # the second one in memory that was used before
        data = content(length, seed)
        await store.put(f"a/{seed}", pieces(data))
        assert await store.get(f"a/{seed}") == data
        assert await store.get_range(f"a/{seed}", length - 100, 100) == data[-100:]


async def test_whole_pages_of_large_objects_pass_the_cache_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = takes_direct_writes(tmp_path)
    store, writes = FolderObjects(tmp_path), Writes(monkeypatch)
    with capture_logs() as logs:
        await store.put("large", pieces(content(LARGE + 5)))
        await store.put("small", pieces(content(LARGE - 1)))
    large = [(True, 0, LARGE), (False, LARGE, 5)] if direct else [(False, 0, LARGE + 5)]
    assert writes.seen == [*large, (False, 0, LARGE - 1)]
    assert len(logs) == (0 if direct else 1)


def takes_direct_writes(folder: Path) -> bool:
    descriptor = os.open(folder / "direct", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT)
        os.pwrite(descriptor, mmap.mmap(-1, ALIGNMENT_BYTES), 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
        os.unlink(folder / "direct")
    return True


@pytest.mark.parametrize("refusal", ["flag", "write"])
async def test_a_file_system_without_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    store, writes = FolderObjects(tmp_path), Writes(monkeypatch)
    if refusal == "flag":
        writes.takes_flag = False
    else:
        writes.direct_error = errno.EINVAL
    data = content(LARGE + 5)
    with capture_logs() as logs:
        for key in ("one", "two"):
            await store.put(key, pieces(data))
            assert await store.get(key) == data
    assert writes.seen == [(False, 0, LARGE + 5)] * 2
    assert [(line["event"], line["folder"]) for line in logs] == [("direct_writes_refused", str(tmp_path))]


@pytest.mark.parametrize("most_bytes", [ALIGNMENT_BYTES, 3 * ALIGNMENT_BYTES + 100, LARGE - 7])
async def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    store, writes = FolderObjects(tmp_path), Writes(monkeypatch)
    writes.most_bytes = most_bytes
    data = content(LARGE + 5)
    with capture_logs() as logs:
        await store.put("a", pieces(data))
    assert await store.get("a") == data
    assert len(writes.seen) > 1
    assert logs == [], "a short write is no refusal"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_an_error_of_the_disk_fails_the_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store, writes = FolderObjects(tmp_path), Writes(monkeypatch)
    writes.direct_error = code
    with capture_logs() as logs, pytest.raises(UnavailableError, match=os.strerror(code)):
        await store.put("a", [content(LARGE)])
    assert os.listdir(tmp_path) == [], "its part is removed"
    assert logs == []
    writes.direct_error = 0
    await store.put("a", [content(LARGE)])
    assert await store.get("a") == content(LARGE)


async def test_no_memory_is_used_again_while_a_thread_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a put goes on after its deadline."""
    store = FolderObjects(tmp_path)
    original, disk_is_slow = store._put_synced, threading.Event()

    def late(key: str, *arguments: Any) -> None:
        if key == "late":
            disk_is_slow.wait()
        original(key, *arguments)

    monkeypatch.setattr(store, "_put_synced", late)
    with ThreadPoolExecutor(2) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        await store.put("before", [content(LARGE, 1)])
        with monkeypatch.context() as shorter:
            shorter.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.01)
            with pytest.raises(DeadlineError):
                await store.put("late", [content(LARGE, 2)])
        await store.put("after", [content(LARGE, 3)])
        disk_is_slow.set()
    assert [await store.get(key) for key in ("before", "late", "after")] == [content(LARGE, n) for n in (1, 2, 3)]


def test_memory_is_used_again_up_to_a_bound() -> None:
    copies = AlignedCopies()
    taken = [copies.take([b"x"], 1) for _ in range(limits.UPLOADS_MAX + 2)]
    long = copies.take([b"y" * 5, bytes(limits.STORAGE_ALIGNED_BYTES)], limits.STORAGE_ALIGNED_BYTES + 5)
    assert bytes(long.view()[:7]) == b"yyyyy\0\0"
    assert len(long.view()) == limits.STORAGE_ALIGNED_BYTES + 5
    for copy in (*taken, long):
        copies.give(copy)
    kept = {id(copy.memory) for copy in taken[-limits.UPLOADS_MAX :]}
    again = [copies.take([b"ab", b"c"], 3) for _ in range(limits.UPLOADS_MAX + 1)]
    assert {id(copy.memory) for copy in again[:-1]} == kept
    assert id(again[-1].memory) not in kept
    assert all(bytes(copy.view()) == b"abc" for copy in again)
