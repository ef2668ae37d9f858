"""`tailrace inspect` over the admin interface of a segment store in this process."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.commands import inspect
from tailrace.common import limits
from tailrace.common.errors import DeadlineError
from tailrace.common.http import listen, serve_app
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.admin import create_app
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

NAME = "scope/stream/0.#epoch.0"


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[StoreService]:
    """A segment store with one container."""
    data = tmp_path / "data"
    data.mkdir()
    cluster_id = str(uuid.UUID(int=7))
    spec = StoreSpec(str(data), f"file://{tmp_path / 'tier2'}", None, cluster_id, 1, (0,), 64 * limits.MIB)
    service = StoreService(spec, SystemClock(), SystemEntropy(), 2)
    await service.start()
    yield service
    await service.close()


async def test_chunks_come_in_pages(service: StoreService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INSPECT_CHUNKS_PAGE_MAX", 3)
    container = service.worker.container_by_id(0)
    await container.create_segment(NAME)
    for _ in range(9):
        await container.append(NAME, [b"chunk"])
        await container.flush_to_storage()
    with listen("admin", "127.0.0.1", 0) as admin:
        async with serve_app(create_app(service.worker, service.server, LoopStalls()), admin):
            for limit, wanted in ((None, 9), (4, 4), (3, 3)):
                more = ["--limit", str(limit)] if limit else []
                arguments = ["chunks", NAME, "--admin", url_of(admin), "--json", *more]
                result = await asyncio.to_thread(CliRunner().invoke, inspect.app, arguments)
                assert result.exit_code == 0, result.output
                assert [item["start_offset"] for item in json.loads(result.stdout)] == list(range(0, 5 * wanted, 5))


async def test_a_server_that_does_not_answer_in_time_is_not_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "REQUEST_DEADLINE_S", 0.2)
    with listen("admin", "127.0.0.1", 0) as silent:
        silent.listen()
        with pytest.raises(DeadlineError, match=r"at http://127.0.0.1:\d+ has not answered for 0.2 s"):
            await asyncio.to_thread(inspect._get, url_of(silent), "/v1/containers")
