"""The metrics of a worker over a folder, as Prometheus gets them (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.admin import create_app
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

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


async def scrape(service: StoreService) -> str:
    transport = httpx.ASGITransport(app=create_app(service.worker, service.server, LoopStalls()))
    async with httpx.AsyncClient(transport=transport, base_url="http://store:6061") as client:
        return (await client.get("/metrics")).raise_for_status().text


async def figures(service: StoreService) -> dict[str, float]:
    """The samples of one scrape of the admin interface, by name and labels."""
    lines = [line.rpartition(" ") for line in (await scrape(service)).splitlines() if line[0] != "#"]
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


async def test_connections_their_limit_and_those_above_it_are_reported(service: StoreService) -> None:
    assert service.server._server is not None
    host, port = service.server._server.sockets[0].getsockname()
    assert (await figures(service))["tailrace_connections"] == 0
    opened = [await asyncio.open_connection(host, port) for _ in range(CONNECTIONS_MAX + 1)]
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
