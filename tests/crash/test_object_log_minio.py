"""The object log on a real MinIO server: one that is killed and comes back, and owners who replace each other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from harness.minio import MinioProcess
from tailrace.common.errors import FencedError
from tailrace.log.object import ObjectLog
from tailrace.log.probe import probe_conditions
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore

FRAME_BYTES = 100_000
OUTAGE_S = 3.0
OWNERS = 6
ACKNOWLEDGED_DEADLINE_S = 240.0


@pytest.fixture
async def store(minio: MinioProcess, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStore]:
    """A bucket on it that passed the probe."""
    for name, value in minio.credentials.items():
        monkeypatch.setenv(name, value)
    made = open_object_store(f"s3://{minio.new_bucket()}/a/prefix", s3_endpoint=minio.endpoint)
    await probe_conditions(made, "crash-test")
    yield made
    await made.close()


async def contents(log: ObjectLog) -> dict[int, bytes]:
    return {frame.sequence: bytes(frame.payload) async for frame in log.recover()}


async def test_an_outage_makes_appends_wait_and_fails_none(minio: MinioProcess, store: ObjectStore) -> None:
    log = ObjectLog(store, 1)
    await log.open(1, bytes(16))
    written = [random.Random(number).randbytes(FRAME_BYTES) for number in range(120)]
    first = [log.append([payload]) for payload in written[:60]]
    await first[5]
    await minio.kill()
    waiting = [log.append([payload]) for payload in written[60:]]
    await asyncio.wait(waiting, timeout=OUTAGE_S)
    assert not any(future.done() for future in waiting)
    await minio.start()
    async with asyncio.timeout(ACKNOWLEDGED_DEADLINE_S):
        assert await asyncio.gather(*first, *waiting) == list(range(120))
    await log.close()
    log = ObjectLog(store, 1)
    await log.open(2, bytes(16))
    assert await contents(log) == dict(enumerate(written))
    await log.close()


async def test_owners_that_replace_each_other_lose_and_repeat_nothing(store: ObjectStore) -> None:
    acknowledged: dict[int, bytes] = {}
    fenced = 0

    async def own(epoch: int) -> None:
        """Append until another owner has the log."""
        nonlocal fenced
        log = ObjectLog(store, 1)
        await log.open(epoch, bytes([epoch]) * 16)
        found = await contents(log)
        assert acknowledged.items() <= found.items()
        opened.set()

        async def append(number: int) -> None:
            payload = f"{epoch} {number}".encode() * 100
            sequence = await log.append([payload])
            assert acknowledged.setdefault(sequence, payload) == payload

        try:
            for number in range(100_000):
                await asyncio.gather(*(append(number * 5 + part) for part in range(5)))
        except FencedError:
            fenced += 1
        finally:
            await log.close()

    owners = []
    for epoch in range(1, OWNERS + 1):
        opened = asyncio.Event()
        owners.append(asyncio.create_task(own(epoch)))
        await opened.wait()
        before = len(acknowledged)
        async with asyncio.timeout(ACKNOWLEDGED_DEADLINE_S):
            while len(acknowledged) < before + 30:  # noqa: ASYNC110 - some work before the next one comes
                await asyncio.sleep(0.005)
    owners[-1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*owners)
    assert fenced == OWNERS - 1, "each owner but the last one was fenced"
    log = ObjectLog(store, 1)
    await log.open(OWNERS + 1, bytes(16))
    found = await contents(log)
    assert acknowledged.items() <= found.items()
    assert sorted(found) == list(range(len(found)))
    await log.close()


async def test_many_objects_are_deleted_at_once(store: ObjectStore) -> None:
    keys = [f"log/1/{number:020d}" for number in range(100)]
    for key in keys[::2]:  # the others never were
        await store.put(key, [b"frame"])
    await store.delete(keys)
    assert [info.key async for info in store.list("log/1")] == []
    await store.delete(keys)
