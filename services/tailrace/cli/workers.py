"""Worker processes of a standalone server: started, watched, started again; and one admin interface for all of them."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tailrace.cluster.mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import StartError
from tailrace.segmentstore.process import READY, Orders, encode_orders

if TYPE_CHECKING:
    import socket
    from asyncio.subprocess import Process

    from tailrace.segmentstore.service import StoreSpec

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One worker: what it serves and the sockets that the parent keeps for it."""

    spec: StoreSpec
    store: socket.socket
    admin: socket.socket

    @property
    def admin_url(self) -> str:
        """Where its admin interface is."""
        host, port = self.admin.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WorkerProcesses:
    """Runs one process per place."""

    def __init__(self, places: list[WorkerPlace]) -> None:
        self.places = places
        self._processes: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers at once and wait until all serve. Raises StartError with the first one's reason."""
        self._processes = list(await asyncio.gather(*(_spawn(place) for place in self.places)))
        try:
            await asyncio.gather(*(_wait_ready(process) for process in self._processes))
        except BaseException:
            await self.close()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch(number)) for number in range(len(self.places))]

    async def stopped_containers(self) -> list[int]:
        """Containers that do not run, by what the workers say. Raises StartError when one says nothing."""
        async with httpx.AsyncClient(timeout=limits.REQUEST_DEADLINE_S, trust_env=False) as client:
            try:
                answers = [(await client.get(f"{place.admin_url}/v1/containers")).json() for place in self.places]
            except (httpx.HTTPError, ValueError) as error:
                raise StartError(f"a worker does not tell its containers: {error}") from error
        return sorted(item["container_id"] for answer in answers for item in answer if item["state"] != "running")

    async def close(self) -> None:
        """End all workers."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(_end(process) for process in self._processes))
        self._processes.clear()

    async def _watch(self, number: int) -> None:
        """Start a worker again whenever it ends; its port stays bound meanwhile."""
        delay_s = limits.CONTAINER_RESTART_MIN_S
        while True:
            code = await self._processes[number].wait()
            _logger.error("worker_ended", worker=number, code=code)
            await asyncio.sleep(delay_s)
            process = await _spawn(self.places[number])
            self._processes[number] = process
            try:
                await _wait_ready(process)
                delay_s = limits.CONTAINER_RESTART_MIN_S
            except StartError as error:
                _logger.error("worker_not_started", worker=number, reason=str(error))
                delay_s = min(delay_s * 2, limits.CONTAINER_RESTART_MAX_S)


async def _spawn(place: WorkerPlace) -> Process:
    descriptors = (place.store.fileno(), place.admin.fileno())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tailrace.segmentstore.process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=descriptors,
    )
    assert process.stdin is not None
    process.stdin.write(encode_orders(Orders(place.spec, *descriptors)))
    await process.stdin.drain()
    return process


async def _wait_ready(process: Process) -> None:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limits.WORKER_READY_DEADLINE_S):
            line = (await process.stdout.readline()).decode().strip()
    except TimeoutError as error:
        raise StartError(f"worker {process.pid} is not ready after {limits.WORKER_READY_DEADLINE_S:.0f} s") from error
    if line != READY:
        raise StartError(line or f"worker {process.pid} ended before it was ready")


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(limits.CLOSE_DEADLINE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def create_app(places: list[WorkerPlace], container_count: int) -> FastAPI:
    """The admin interface of several workers: asks each and joins the answers."""
    app = FastAPI(title="Tailrace segment stores", docs_url=None, redoc_url=None)
    urls = [place.admin_url for place in places]
    owner = {container: place.admin_url for place in places for container in place.spec.owned}

    async def ask(url: str, request: Request) -> httpx.Response:
        async with httpx.AsyncClient(timeout=limits.REQUEST_DEADLINE_S) as client:
            return await client.request(request.method, url + request.url.path, params=dict(request.query_params))

    async def ask_all(request: Request) -> list[httpx.Response]:
        return list(await asyncio.gather(*(ask(url, request) for url in urls)))

    def passed_on(answer: httpx.Response) -> Response:
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    @app.exception_handler(httpx.HTTPError)
    async def unreachable(_: Any, error: httpx.HTTPError) -> JSONResponse:
        return JSONResponse({"error": f"a worker does not answer: {error}"}, status_code=503)

    @app.get("/ping")
    async def ping() -> PlainTextResponse:
        return PlainTextResponse("")

    @app.get("/v1/health")
    async def health(request: Request) -> JSONResponse:
        answers = [answer.json() for answer in await ask_all(request)]
        containers = {name: state for answer in answers for name, state in answer["containers"].items()}
        ready = all(answer["ready"] for answer in answers)
        return JSONResponse({"ready": ready, "containers": containers}, status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> PlainTextResponse:
        texts = [answer.text for answer in await ask_all(request)]
        return PlainTextResponse(_label(texts), media_type="text/plain; version=0.0.4")

    @app.get("/v1/cache")
    async def cache(request: Request) -> dict[str, Any]:
        return {"workers": [answer.json() for answer in await ask_all(request)]}

    @app.get("/v1/containers")
    async def containers(request: Request) -> list[Any]:
        found = [item for answer in await ask_all(request) for item in answer.json()]
        return sorted(found, key=lambda item: int(item["container_id"]))

    @app.get("/v1/segments")
    async def segments(request: Request, container: int | None = None, limit: int = 100) -> Response:
        if container is not None:
            if container not in owner:
                return JSONResponse({"error": f"there is no container {container}"}, status_code=404)
            return passed_on(await ask(owner[container], request))
        answers = await ask_all(request)
        for answer in answers:
            if answer.is_error:
                return passed_on(answer)
        found = sorted((item for answer in answers for item in answer.json()), key=lambda item: str(item["name"]))
        return JSONResponse(found[:limit])

    @app.get("/v1/segments/{rest:path}")
    async def segment(rest: str, request: Request) -> Response:
        name = rest.rpartition("/")[0]
        return passed_on(await ask(owner[container_of(name, container_count)], request))

    @app.post("/v1/containers/{container_id}/flush")
    async def flush(container_id: int, request: Request) -> Response:
        if container_id not in owner:
            return JSONResponse({"error": f"there is no container {container_id}"}, status_code=404)
        return passed_on(await ask(owner[container_id], request))

    return app


def _label(texts: list[str]) -> str:
    """Metrics of several workers as one text: each sample gets its worker's number."""
    lines: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                if line not in lines.setdefault(family, []):
                    lines[family].append(line)
                continue
            name, _, value = line.rpartition(" ")
            labels = f'worker="{number}"'
            joined = name.replace("{", "{" + labels + ",", 1) if "{" in name else f"{name}{{{labels}}}"
            lines.setdefault(family, []).append(f"{joined} {value}")
    return "\n".join(line for family in lines.values() for line in family) + "\n"
