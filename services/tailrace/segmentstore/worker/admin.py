"""The admin interface of a segment store: health, metrics and the data of `tailrace inspect` (port 6061).

See docs/design.md#processes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from tailrace.common import limits
from tailrace.common.errors import TailraceError
from tailrace.segmentstore.api import StreamBytes
from tailrace.segmentstore.worker.metrics import Measured, Metrics, Served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.budgets import Budgets
    from tailrace.common.loop_stalls import LoopStalls
    from tailrace.segmentstore.api import SegmentProperties
    from tailrace.segmentstore.container.container import Container
    from tailrace.segmentstore.worker.not_open import NotOpen


class Inspectable(Measured, Protocol):
    """What the admin interface reads; a `Worker` is one."""

    budgets: Budgets

    @property
    def tier2_trouble(self) -> str:
        """Return why Tier 2 takes no objects, or that it does not answer or refuses requests; empty: it serves."""
        ...

    def containers(self) -> list[Container]:
        """Return the running containers."""
        ...

    def closed(self) -> Sequence[NotOpen]:
        """Return the owned containers that are not open."""
        ...

    def container_by_id(self, container_id: int) -> Container:
        """Return a running container by number."""
        ...

    def container_for(self, segment: str) -> Container:
        """Return the container of a segment."""
        ...


def _segment(properties: SegmentProperties) -> dict[str, Any]:
    content = dataclasses.asdict(properties)
    content["kind"] = int(properties.kind)
    content["core_attributes"] = {key.hex(): value for key, value in properties.core_attributes.items()}
    return content


def create_app(worker: Inspectable, server: Served, stalls: LoopStalls) -> FastAPI:
    """Return the admin application of one worker, whose protocol `server` serves. `stalls` are of its process."""
    app = FastAPI(title="Tailrace segment store", docs_url=None, redoc_url=None)
    registry = CollectorRegistry()
    registry.register(Metrics(worker, server))
    registry.register(stalls)
    ProcessCollector(registry=registry)

    @app.exception_handler(TailraceError)
    async def failed(_: Any, error: TailraceError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=error.http_status)

    @app.get("/ping")
    async def ping() -> PlainTextResponse:
        return PlainTextResponse("")

    @app.get("/v1/health")
    async def health() -> JSONResponse:
        statuses = worker.status()
        # Without containers there is none that does not serve; one that just begins to open has no status yet.
        ready = not worker.closed() and all(status.state == "running" for status in statuses)
        content = {
            "ready": ready,
            "troubles": [worker.tier2_trouble] if worker.tier2_trouble else [],
            "containers": {
                status.container_id: {"state": status.state, "reason": status.reason} for status in statuses
            },
        }
        return JSONResponse(content, status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(generate_latest(registry).decode(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/containers")
    async def containers() -> list[dict[str, Any]]:
        return [dataclasses.asdict(status) for status in worker.status()]

    @app.get("/v1/cache")
    async def cache() -> dict[str, Any]:
        content: dict[str, Any] = dict(worker.cache.cache.snapshot()._asdict())
        content["evictions"] = worker.cache.evictions
        content["budgets"] = dict(worker.budgets.lines())
        return content

    @app.get("/v1/segments")
    async def segments(
        container: int | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = Query(default=100, ge=1, le=limits.INSPECT_PAGE_MAX),
    ) -> list[dict[str, Any]]:
        chosen = worker.containers() if container is None else [worker.container_by_id(container)]
        names = sorted(
            (name, item) for item in chosen for name in item.segment_names() if name.startswith(prefix) and name > after
        )[:limit]
        return [_segment(await item.info(name)) | {"container": item.container_id} for name, item in names]

    @app.get("/v1/streams")
    async def streams(
        prefix: str = "", after: str = "", limit: int = Query(default=100, ge=1, le=limits.INSPECT_PAGE_MAX)
    ) -> list[dict[str, Any]]:
        found: dict[str, StreamBytes] = {}
        for container in worker.containers():
            for stream, part in (await container.stream_bytes()).items():
                if stream.startswith(prefix) and stream > after:
                    own = found.setdefault(stream, StreamBytes())
                    own.segments += part.segments
                    own.retained_bytes += part.retained_bytes
                    own.held_bytes += part.held_bytes
        return [{"stream": stream, **dataclasses.asdict(found[stream])} for stream in sorted(found)[:limit]]

    @app.get("/v1/segments/{segment:path}/chunks")
    async def chunks(
        segment: str,
        after: int = Query(default=0, ge=0),
        limit: int = Query(default=100, ge=1, le=limits.INSPECT_CHUNKS_PAGE_MAX),
    ) -> list[dict[str, Any]]:
        found = await worker.container_for(segment).list_chunks(segment, after, limit)
        return [dataclasses.asdict(chunk) for chunk in found]

    @app.get("/v1/segments/{segment:path}/attributes")
    async def attributes(
        segment: str, after: str = "", limit: int = Query(default=100, ge=1, le=limits.INSPECT_PAGE_MAX)
    ) -> list[dict[str, Any]]:
        container = worker.container_for(segment)
        properties = await container.info(segment)
        length = properties.key_length or 16
        try:
            start = bytes.fromhex(after)
        except ValueError as error:
            raise HTTPException(400, "after is not hexadecimal") from error
        low = start.ljust(length, b"\0") if start else b"\0" * length
        found = await container.iterate_attributes(segment, low, b"\xff" * length, limit + 1)
        core = [(key.hex(), value) for key, value in sorted(properties.core_attributes.items())] if not after else []
        extended = [(key.hex(), value) for key, value in found if not start or key > start]
        return [{"id": key, "value": value} for key, value in (core + extended)[:limit]]

    @app.post("/v1/containers/{container_id}/flush")
    async def flush(container_id: int) -> dict[str, Any]:
        container = worker.container_by_id(container_id)
        await container.flush_to_storage()
        return dataclasses.asdict(container.status())

    return app
