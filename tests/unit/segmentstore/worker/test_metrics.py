"""The metrics of a worker over a folder, as Prometheus gets them (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.common import limits
from tailrace.common.budgets import budgets_for
from tailrace.common.errors import ContainerStoppedError, UnavailableError
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.worker.admin import create_app
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstores import open_object_store
from tailrace.wire import codec
from tailrace.wire import commands as c

from ..conftest import eventually

NAME = "scope/stream/0.#epoch.0"
CONNECTIONS_MAX = 2
PAGE = Path(__file__).resolve().parents[4] / "docs/operations/observe.md"


@pytest.fixture
def tier2(tmp_path: Path) -> Path:
    return tmp_path / "tier2"


@pytest.fixture
async def service(tmp_path: Path, tier2: Path) -> AsyncIterator[StoreService]:
    """A segment store with one container and one segment, which listens."""
    data = tmp_path / "data"
    data.mkdir()
    cluster_id = str(uuid.UUID(int=7))
    spec = StoreSpec(str(data), f"file://{tier2}", None, cluster_id, 1, (0,), 64 * limits.MIB)
    service = StoreService(spec, SystemClock(), SystemEntropy(), CONNECTIONS_MAX)
    await service.start()
    await service.listen_on(socket.create_server(("127.0.0.1", 0)))
    await service.worker.container_by_id(0).create_segment(NAME)
    yield service
    await service.close()


async def ask(service: StoreService, path: str, worker: Worker | None = None) -> httpx.Response:
    """What the admin interface answers: of the service's worker, or of another one."""
    transport = httpx.ASGITransport(app=create_app(worker or service.worker, service.server, LoopStalls()))
    async with httpx.AsyncClient(transport=transport, base_url="http://store:6061") as client:
        return await client.get(path)


async def scrape(service: StoreService, worker: Worker | None = None) -> str:
    return (await ask(service, "/metrics", worker)).raise_for_status().text


async def figures(service: StoreService, worker: Worker | None = None) -> dict[str, float]:
    """The samples of one scrape of the admin interface, by name and labels."""
    lines = [line.rpartition(" ") for line in (await scrape(service, worker)).splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


async def test_metrics_tell_what_was_written_and_read_and_how_long_the_log_took(service: StoreService) -> None:
    container = service.worker.container_for(NAME)
    before = await figures(service)
    for number in range(5):
        await container.append(NAME, [b"x" * (number + 1)])
    assert (await container.read(NAME, 0, 100, wait=False)).length == 15
    after = await figures(service)
    sample = f'tailrace_container_{{}}_total{{{{container="{container.container_id}"}}}}'
    grown = {
        name: after[sample.format(name)] - before[sample.format(name)]
        for name in ("appends", "appended_bytes", "reads", "read_bytes", "log_frames", "log_write_seconds")
    }
    assert grown.pop("log_write_seconds") > 0
    assert 5 <= grown.pop("log_frames") <= 6, "each append was awaited; a checkpoint may have come between"
    assert grown == {"appends": 5, "appended_bytes": 15, "reads": 1, "read_bytes": 15}
    assert after["process_resident_memory_bytes"] > limits.MIB


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder any more")


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


async def test_requests_to_the_object_store_and_their_errors_are_counted(service: StoreService, tier2: Path) -> None:
    container = service.worker.container_by_id(0)
    before = await figures(service)
    await container.append(NAME, [b"flushed"])
    await container.flush_to_storage()
    after = await figures(service)
    put = 'tailrace_store_{}_total{{operation="put"}}'
    assert after[put.format("requests")] > before[put.format("requests")]
    assert after[put.format("request_seconds")] > before[put.format("request_seconds")]
    errors = 'tailrace_store_errors_total{{kind="{}",operation="{}"}}'
    assert {value for name, value in after.items() if name.startswith("tailrace_store_errors")} == {0.0}

    await asyncio.to_thread(replace_by_file, tier2)
    await container.append(NAME, [b"not flushed"])
    with pytest.raises(UnavailableError):
        await container.flush_to_storage()
    failed = await figures(service)
    assert failed[errors.format("unavailable", "put")] > 0
    assert failed[errors.format("deadline", "put")] == failed[errors.format("corrupt", "put")] == 0
    await asyncio.to_thread(replace_by_folder, tier2)  # so that the service can close


async def test_a_container_that_was_not_open_even_once_does_not_run(
    service: StoreService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a failover: its new worker cannot open it. The alert TailraceContainerNotOpen waits for the 0."""
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 0.02)
    logs, store = [MemoryLogStore(), MemoryLogStore()], open_object_store("memory://")
    refusals = ["get log/1/claim: 403 AccessDenied"]

    async def next_epoch(container_id: int, floor: int) -> int:
        if container_id and refusals:
            raise UnavailableError(refusals[0])
        return floor + 1

    ports = WorkerPorts(
        store, lambda number: MemoryLog(logs[number]), next_epoch, SystemClock(), SystemEntropy(), b"c" * 16
    )
    worker = Worker(2, (), budgets_for(64 * limits.MIB, 2), ports)
    await worker.start()
    for number in range(2):
        await worker.open_container(number)

    async def seen() -> tuple[dict[str, float], list[tuple[str, str]], int, dict[str, Any]]:
        samples, shown = await figures(service, worker), (await ask(service, "/v1/containers", worker)).json()
        running = {name: value for name, value in samples.items() if name.startswith("tailrace_container_running")}
        health = await ask(service, "/v1/health", worker)
        return running, [(each["state"], each["reason"]) for each in shown], health.status_code, health.json()

    names = [f'tailrace_container_running{{container="{number}"}}' for number in range(2)]
    running, shown, code, health = await seen()
    assert running == {names[0]: 1.0, names[1]: 0.0}
    assert shown == [("running", ""), ("stopped", refusals[0])]
    assert (code, health["ready"], health["containers"]["1"]["reason"]) == (503, False, refusals[0])
    with pytest.raises(ContainerStoppedError, match=re.escape(refusals[0])) as refused:
        worker.container_by_id(1)
    assert refused.value.wire_code == 50, "clients look for it elsewhere, and come back"
    refusals.clear()
    await eventually(lambda: len(worker.containers()) == 2)
    running, shown, code, health = await seen()
    assert running == dict.fromkeys(names, 1.0)
    assert shown == [("running", "")] * 2
    assert (code, health["ready"]) == (200, True)
    await worker.close()
    await store.close()


async def test_health_is_of_the_containers_that_a_worker_has(service: StoreService) -> None:
    """A worker that drained, or is new, has none: it is well. One that begins to open does not serve yet."""
    logs, store, gate = [MemoryLogStore() for _ in range(2)], open_object_store("memory://"), asyncio.Event()

    async def next_epoch(container_id: int, floor: int) -> int:
        if container_id:
            await gate.wait()
        return floor + 1

    ports = WorkerPorts(
        store, lambda number: MemoryLog(logs[number]), next_epoch, SystemClock(), SystemEntropy(), b"c" * 16
    )
    worker = Worker(2, (), budgets_for(64 * limits.MIB, 2), ports)
    await worker.start()

    async def seen() -> tuple[int, bool, list[str]]:
        health = await ask(service, "/v1/health", worker)
        return health.status_code, health.json()["ready"], list(health.json()["containers"])

    assert await seen() == (200, True, [])
    await worker.open_container(0)
    assert await seen() == (200, True, ["0"])
    opening = asyncio.ensure_future(worker.open_container(1))
    await eventually(lambda: worker.owned() == (0, 1))
    assert await seen() == (503, False, ["0"])
    gate.set()
    await opening
    assert await seen() == (200, True, ["0", "1"])
    for number in range(2):
        await worker.release_container(number)
    assert await seen() == (200, True, [])
    await worker.close()
    await store.close()


async def test_connections_their_limit_and_those_above_it_are_reported(service: StoreService) -> None:
    assert service.server._server is not None
    host, port = service.server._server.sockets[0].getsockname()
    assert (await figures(service))["tailrace_connections"] == 0
    opened = [await asyncio.open_connection(host, port) for _ in range(CONNECTIONS_MAX)]
    for reader, writer in opened:  # none is idle
        writer.write(codec.encode(c.SetupAppend(1, bytes(16), NAME, "")))
        await reader.readexactly(codec.FRAME_HEADER.size)
    opened.append(await asyncio.open_connection(host, port))
    assert await opened[-1][0].read() == b"", "refused"
    await eventually(lambda: service.server.connections == CONNECTIONS_MAX)
    found = await figures(service)
    assert found["tailrace_connections"] == found["tailrace_connections_max"] == CONNECTIONS_MAX
    assert found["tailrace_connections_refused_total"] == 1
    assert found["tailrace_requests_unanswered"] == 0
    for _, writer in opened:
        writer.close()
    await eventually(lambda: service.server.connections == 0)


async def test_every_metric_is_described(service: StoreService) -> None:
    page = PAGE.read_text()
    described = set(re.findall(r"`([a-z0-9_]+)(?:\{[^`]*\})?`", page))
    found = set(re.findall(r"^# TYPE (\w+)", await scrape(service), re.MULTILINE))
    own = {name for name in found if name.startswith("tailrace_")}
    assert len(own) > 40
    short = {name: name.removeprefix("tailrace_").removeprefix("container_") for name in own}
    assert sorted(name for name, words in short.items() if words not in described) == []
