"""The admin interface of several workers: queries each and joins the replies (docs/design.md#processes, port 6061)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx
import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.processes.workers import WorkerProcess

FindOwner: TypeAlias = Callable[[int], Awaitable[str | None]]
"""Returns the admin address of the worker that owns a container; None when none does."""
METRICS: Final = "text/plain; version=0.0.4"

_logger = structlog.get_logger()


def _client() -> httpx.AsyncClient:
    # Workers have http:// addresses. Reading certificates would take 30 ms of CPU, in which nothing else runs.
    return httpx.AsyncClient(timeout=limits.REQUEST_DEADLINE_S, trust_env=False, verify=False)


class Workers:
    """Queries the workers that serve."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.all = workers
        self._without_metrics: set[int] = set()

    @property
    def serving(self) -> list[WorkerProcess]:
        """Return the workers that serve."""
        return [worker for worker in self.all if worker.serves]

    async def ask(self, url: str, method: str, path: str, params: dict[str, str]) -> httpx.Response:
        """Return one worker's reply. Raises httpx.HTTPError."""
        async with _client() as client:
            return await client.request(method, url + path, params=params)

    async def ask_all(self, path: str, params: dict[str, str] | None = None) -> dict[int, httpx.Response]:
        """Return the replies of all serving workers, by number. Raises httpx.HTTPError."""
        serving = self.serving
        async with _client() as client:
            asked = (client.get(worker.place.admin_url + path, params=params or {}) for worker in serving)
            answers = await asyncio.gather(*asked)
        return {worker.number: answer for worker, answer in zip(serving, answers, strict=True)}

    async def metrics(self) -> dict[int, str | None]:
        """Return the metrics of the serving workers, by number; None of one that gives none in time."""
        serving = self.serving
        async with _client() as client:
            texts = await asyncio.gather(*(self._metrics_of(worker, client) for worker in serving))
        return {worker.number: text for worker, text in zip(serving, texts, strict=True)}

    async def _metrics_of(self, worker: WorkerProcess, client: httpx.AsyncClient) -> str | None:
        """Return a worker's metrics; None when it gives none in time, which is logged when it begins."""
        try:
            async with asyncio.timeout(limits.WORKER_METRICS_DEADLINE_S):
                answer = await client.get(f"{worker.place.admin_url}/metrics")
            answer.raise_for_status()
        except (httpx.HTTPError, TimeoutError) as error:
            if worker.number not in self._without_metrics:
                self._without_metrics.add(worker.number)
                _logger.warning("worker_metrics_failed", worker=worker.number, reason=repr(error))
            return None
        self._without_metrics.discard(worker.number)
        return answer.text

    async def owner_of(self, container_id: int) -> str | None:
        """Return the admin address of the worker that owns a container (a `FindOwner`)."""
        for number, answer in (await self.ask_all("/v1/containers")).items():
            if any(item["container_id"] == container_id for item in answer.json()):
                return self.all[number].place.admin_url
        return None


def joined_streams(pages: Sequence[Sequence[dict[str, Any]]], limit: int) -> list[dict[str, Any]]:
    """Add up what workers have of each stream; leave out streams behind the end of a worker's page."""
    ends = [str(page[-1]["stream"]) for page in pages if len(page) >= limit]
    found: dict[str, dict[str, Any]] = {}
    for item in (item for page in pages for item in page):
        stream = str(item["stream"])
        if all(stream <= end for end in ends):
            before = found.get(stream)
            added = item if before is None else {name: item[name] + before[name] for name in item if name != "stream"}
            found[stream] = {**added, "stream": stream}
    return [found[stream] for stream in sorted(found)][:limit]


def create_app(workers: Workers, container_count: int, find_owner: FindOwner) -> FastAPI:
    """Return the admin application of several workers. Workers that do not serve appear by their state only."""
    app = FastAPI(title="Tailrace segment stores", docs_url=None, redoc_url=None)

    def passed_on(answer: httpx.Response) -> Response:
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def ask_owner(container_id: int, request: Request) -> Response:
        if not 0 <= container_id < container_count:
            return JSONResponse({"error": f"container {container_id} does not exist"}, status_code=404)
        url = await find_owner(container_id)
        if url is None:
            return JSONResponse({"error": f"container {container_id} does not run here"}, status_code=503)
        return passed_on(await workers.ask(url, request.method, request.url.path, dict(request.query_params)))

    @app.exception_handler(httpx.HTTPError)
    async def unreachable(_: Any, error: httpx.HTTPError) -> JSONResponse:
        return JSONResponse({"error": f"a worker does not answer: {error}"}, status_code=503)

    @app.get("/ping")
    async def ping() -> PlainTextResponse:
        return PlainTextResponse("")

    @app.get("/v1/health")
    async def health() -> JSONResponse:
        answers = [answer.json() for answer in (await workers.ask_all("/v1/health")).values()]
        containers = {name: state for answer in answers for name, state in answer["containers"].items()}
        ready = len(answers) == len(workers.all) and all(answer["ready"] for answer in answers)
        troubles = sorted({trouble for answer in answers for trouble in answer["troubles"]})
        content = {"ready": ready, "troubles": troubles, "containers": containers}
        return JSONResponse(content, status_code=200 if ready else 503)

    @app.get("/v1/workers")
    async def all_workers() -> list[dict[str, Any]]:
        return [describe(worker) for worker in workers.all]

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        found = await workers.metrics()
        texts = {number: text for number, text in found.items() if text is not None}
        own = own_metrics(workers.all, [number for number, text in found.items() if text is None])
        return PlainTextResponse(own + joined_metrics(texts), media_type=METRICS)

    @app.get("/v1/cache")
    async def cache() -> dict[str, Any]:
        answers = await workers.ask_all("/v1/cache")
        return {"workers": [{"worker": number, **answer.json()} for number, answer in answers.items()]}

    @app.get("/v1/containers")
    async def containers() -> list[Any]:
        found = [item for answer in (await workers.ask_all("/v1/containers")).values() for item in answer.json()]
        return sorted(found, key=lambda item: int(item["container_id"]))

    @app.get("/v1/segments")
    async def segments(request: Request, container: int | None = None, limit: int = 100) -> Response:
        if container is not None:
            return await ask_owner(container, request)
        answers = (await workers.ask_all("/v1/segments", dict(request.query_params))).values()
        for answer in answers:
            if answer.is_error:
                return passed_on(answer)
        found = sorted((item for answer in answers for item in answer.json()), key=lambda item: str(item["name"]))
        return JSONResponse(found[:limit])

    @app.get("/v1/streams")
    async def streams(request: Request, limit: int = 100) -> Response:
        answers = (await workers.ask_all("/v1/streams", dict(request.query_params))).values()
        for answer in answers:
            if answer.is_error:
                return passed_on(answer)
        return JSONResponse(joined_streams([answer.json() for answer in answers], limit))

    @app.get("/v1/segments/{rest:path}")
    async def segment(rest: str, request: Request) -> Response:
        return await ask_owner(container_of(rest.rpartition("/")[0], container_count), request)

    @app.post("/v1/containers/{container_id}/flush")
    async def flush(container_id: int, request: Request) -> Response:
        return await ask_owner(container_id, request)

    return app


def describe(worker: WorkerProcess) -> dict[str, Any]:
    """Return the state of a worker as the admin interface shows it."""
    return {
        "worker": worker.number,
        "state": worker.state,
        "reason": worker.reason,
        "pid": worker.pid,
        "starts": worker.starts,
    }


def own_metrics(workers: Sequence[WorkerProcess], failed: Collection[int]) -> str:
    """Return the parent's metrics of its workers. ``failed``: the workers that serve and gave no metrics."""
    families: tuple[tuple[str, str, str, Callable[[WorkerProcess], float]], ...] = (
        ("tailrace_worker_serves", "Whether the worker serves", "gauge", lambda worker: worker.serves),
        ("tailrace_worker_starts_total", "Starts of the worker", "counter", lambda worker: worker.starts),
        (
            "tailrace_worker_scrape_failed",
            "Whether the worker serves and gave no metrics",
            "gauge",
            lambda worker: worker.number in failed,
        ),
    )
    lines = []
    for name, about, kind, value in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{worker="{worker.number}"}} {float(value(worker))}' for worker in workers]
    return "\n".join(lines) + "\n"


def joined_metrics(texts: dict[int, str]) -> str:
    """Join the metrics of several workers; each sample gets its worker's number as a label."""
    lines: dict[str, list[str]] = {}
    for number, text in texts.items():
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
