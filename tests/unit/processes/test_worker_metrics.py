"""A store pod gives the metrics of workers that answer, and says which do not (docs/operations/observe.md#metrics)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from tailrace.common import limits
from tailrace.common.http import listen, serve_app
from tailrace.processes.workers import WorkerPlace, WorkerProcess
from tailrace.processes.workers_admin import Workers, create_app
from tailrace.segmentstore.worker.folder_service import StoreSpec

SPEC = StoreSpec("/data", "", None, "6f9619ff-8b86-4011-b42d-00c04fc964ff", 4, (0, 2), 1 << 26)


def admin_of_a_worker(status: int) -> FastAPI:
    """An admin interface with one metric, or an error."""
    app = FastAPI()

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        text = "# HELP a b\n# TYPE a gauge\na 1.0\n" if status == 200 else "Internal Server Error"
        return PlainTextResponse(text, status_code=status)

    return app


def serving(number: int, admin: socket.socket) -> WorkerProcess:
    """A worker that serves, with this admin interface."""
    worker = WorkerProcess(number, WorkerPlace(SPEC, admin, admin))
    worker.state = "following"
    return worker


@contextlib.asynccontextmanager
async def failing(how: str) -> AsyncIterator[socket.socket]:
    """The socket of an admin interface that refuses connections, does not answer, goes on for ever, or answers 500."""

    async def dribble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\na 2.0\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"a 2.0\n")
                await writer.drain()
                await asyncio.sleep(0.01)

    with socket.socket() as admin:
        admin.bind(("127.0.0.1", 0))
        async with contextlib.AsyncExitStack() as stack:
            if how == "silent":
                admin.listen()
            elif how == "endless":
                server = await asyncio.start_server(dribble, sock=admin.dup())
                stack.callback(server.close)
            elif how == "error":
                await stack.enter_async_context(serve_app(admin_of_a_worker(500), admin))
            yield admin


async def scrape(*workers: WorkerProcess) -> httpx.Response:
    """What the pod answers to Prometheus."""

    async def no_owner(container_id: int) -> str | None:
        return None

    transport = httpx.ASGITransport(create_app(Workers(workers), 16, no_owner))
    async with httpx.AsyncClient(transport=transport, base_url="http://store:6061") as asking, asyncio.timeout(120):
        return await asking.get("/metrics")


def samples(answer: httpx.Response, name: str) -> dict[str, float]:
    """The values of a metric, by worker."""
    found = re.findall(rf'^{name}{{worker="(\d)"}} (\S+)$', answer.text, re.MULTILINE)
    return {worker: float(value) for worker, value in found}


@pytest.mark.parametrize("how", ["refused", "silent", "endless", "error"])
async def test_a_worker_that_gives_no_metrics_hides_no_others(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_METRICS_DEADLINE_S", 120.0 if how in ("refused", "error") else 1.0)
    with listen("admin", "127.0.0.1", 0) as admin:
        async with serve_app(admin_of_a_worker(200), admin), failing(how) as broken:
            workers = serving(0, admin), serving(1, broken)
            async with asyncio.timeout(120):
                while True:
                    answer = await scrape(*workers)
                    assert answer.status_code == 200
                    assert samples(answer, "tailrace_worker_serves") == {"0": 1.0, "1": 1.0}
                    assert samples(answer, "tailrace_worker_scrape_failed")["1"] == 1.0
                    assert "Internal" not in answer.text
                    if not samples(answer, "tailrace_worker_scrape_failed")["0"]:  # else it was late as well
                        break
    assert samples(answer, "a") == {"0": 1.0}


async def test_metrics_need_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes longer than all else of a scrape, and nothing else runs meanwhile."""
    with listen("admin", "127.0.0.1", 0) as admin:
        async with serve_app(admin_of_a_worker(200), admin):
            made: list[object] = []
            monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *about, **more: made.append(about))
            answer = await scrape(serving(0, admin))
    assert made == []
    assert samples(answer, "a") == {"0": 1.0}
    assert samples(answer, "tailrace_worker_scrape_failed") == {"0": 0.0}
