"""Objects that are longer than a chunk get a deadline by their length: snapshots on a slow way to the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from harness.s3endpoint import S3Endpoint
from tailrace.common import limits
from tailrace.common.errors import DeadlineError
from tailrace.storage import chunks, obstore_objects
from tailrace.storage.folder_objects import FolderObjects
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore
from tailrace.storage.request_deadline import call_deadline_s

LONG, SHORT = b"x" * 100_000, b"y" * 10
CALLS: dict[str, Callable[[ObjectStore, bytes], Awaitable[Any]]] = {
    "put": lambda store, data: store.put(f"p{len(data)}", [data]),
    "get_range": lambda store, data: store.get_range(f"g{len(data)}", 0, len(data)),
}


class SlowS3(S3Endpoint):
    """Sends the body of its answer, and the whole answer to a put, only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.cut_off = asyncio.Event()
        """A client has closed its connection before it had its answer."""
        self.requests = Counter[int]()

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """See S3Endpoint."""
        self.requests[len(LONG) if path.endswith(str(len(LONG))) else 0] += 1
        if verb == "PUT":
            return "200 OK", b""
        data = LONG if path.endswith(str(len(LONG))) else SHORT
        return ("206 Partial Content" if "range" in fields else "200 OK"), data

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        later = LaterWriter(self, reader, writer)
        await super()._reply(reader, later)  # type: ignore[arg-type]
        await later.finish()


class LaterWriter:
    """Takes an answer; of one with a body it sends the head at once."""

    def __init__(self, endpoint: SlowS3, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._endpoint, self._reader, self._writer = endpoint, reader, writer
        self._rest = b""

    def write(self, data: bytes) -> None:
        head, end, body = data.partition(b"\r\n\r\n")
        if body:
            length = len(body)
            ranged = b"\r\ncontent-range: bytes 0-%d/%d" % (length - 1, length) if b" 206 " in head else b""
            self._writer.write(head + ranged + end)
            self._rest = body
        else:
            self._rest = data

    async def drain(self) -> None:
        await self._writer.drain()

    async def finish(self) -> None:
        closed = asyncio.ensure_future(self._reader.read())
        answered = asyncio.ensure_future(self._endpoint.may_answer.wait())
        await asyncio.wait([closed, answered], return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            self._endpoint.cut_off.set()
        else:
            self._writer.write(self._rest)
            await self._writer.drain()
        for each in (closed, answered):
            each.cancel()


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SlowS3, ObjectStore]]:
    """A store whose short calls have 0.3 s, and long ones minutes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "k")
    monkeypatch.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.3)
    monkeypatch.setattr(limits, "STORAGE_CALL_BYTES_PER_S", len(LONG) / 300)
    endpoint = SlowS3()
    async with endpoint.serving() as store:
        yield endpoint, store


@pytest.mark.parametrize("name", CALLS)
async def test_a_long_object_may_take_longer(slow: tuple[SlowS3, ObjectStore], name: str) -> None:
    endpoint, store = slow
    call = CALLS[name]
    async with asyncio.timeout(120):
        long = asyncio.ensure_future(call(store, LONG))
        for _ in range(3):
            with pytest.raises(DeadlineError, match=r"no answer in 0\.3 s"):
                await call(store, SHORT)  # it began later
        assert not long.done()
        endpoint.may_answer.set()
        assert await long in (None, LONG)
    assert endpoint.requests[len(LONG)] == 1, "the library neither gave it up nor repeated it"


async def test_a_long_object_of_unknown_length_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length is known as soon as the store begins to answer."""
    may_end = asyncio.Event()

    class Result:
        def __init__(self, key: str) -> None:
            self._data = LONG if key == "long" else SHORT
            self.meta = {"size": len(self._data)}

        async def bytes_async(self) -> bytes:
            await may_end.wait()
            return self._data

    async def get_async(_: object, key: str) -> Result:
        return Result(key)

    monkeypatch.setattr(obstore_objects.obstore, "get_async", get_async)
    monkeypatch.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.05)
    monkeypatch.setattr(limits, "STORAGE_CALL_BYTES_PER_S", len(LONG) / 300)
    store = open_object_store("memory://")
    async with asyncio.timeout(120):
        long = asyncio.ensure_future(store.get("long"))
        with pytest.raises(DeadlineError, match=r"no answer in 0\.05 s"):
            await store.get("short")
        assert not long.done()
        may_end.set()
        assert await long == LONG


async def test_a_put_without_an_answer_in_time_ends_its_connection(slow: tuple[SlowS3, ObjectStore]) -> None:
    endpoint, store = slow
    async with asyncio.timeout(120):
        with pytest.raises(DeadlineError):
            await store.put("short", [SHORT])
        await endpoint.cut_off.wait()


@pytest.mark.parametrize("length_bytes", [0, 1, limits.FLUSH_OBJECT_MAX_BYTES])
def test_what_is_no_longer_than_a_chunk_has_the_deadline_of_all_calls(length_bytes: int) -> None:
    stored = chunks.stored_length(length_bytes) + chunks.HEADER_MAX_BYTES
    assert call_deadline_s(stored) == limits.STORAGE_CALL_DEADLINE_S


def test_the_deadline_grows_with_the_length_up_to_a_bound() -> None:
    assert call_deadline_s(32 * limits.MIB) == 32 * limits.MIB / limits.STORAGE_CALL_BYTES_PER_S > 100
    assert call_deadline_s(2**50) == limits.STORAGE_CALL_DEADLINE_MAX_S


async def test_a_long_object_in_a_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderObjects(tmp_path)
    put, may_end = store._put_synced, asyncio.Event()
    loop = asyncio.get_running_loop()

    def late(key: str, data: bytes, if_absent: bool) -> None:
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        put(key, data, if_absent)

    monkeypatch.setattr(store, "_put_synced", late)
    monkeypatch.setattr(limits, "STORAGE_CALL_DEADLINE_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_CALL_BYTES_PER_S", len(LONG) / 300)
    async with asyncio.timeout(120):
        long = asyncio.ensure_future(store.put("long", [LONG]))
        with pytest.raises(DeadlineError):
            await store.put("short", [SHORT])
        assert not long.done()
        may_end.set()
        await long
    monkeypatch.undo()
    assert await store.get("long") == LONG
