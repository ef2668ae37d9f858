"""A Kubernetes API server of one namespace over HTTP: `KubernetesCore` as the official client reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from sim.kubernetes import Change, KubernetesCore
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, WatchEvent
from tailrace.common.errors import (
    AlreadyExistsError,
    NotFoundError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.http import serve_app

NAMESPACE = "there"
_CODES: dict[type[TailraceError], int] = {NotFoundError: 404, AlreadyExistsError: 409, WriteConflictError: 409}
KINDS = {(kind.group, kind.version, kind.plural): kind for kind in (LEASES, STREAM_CLUSTERS)}


class KubernetesServer:
    """A Kubernetes API server over HTTP, with the faults that a test asks for.

    ``answers``: status codes that the next requests are answered with; positive before the effect, negative after it.
    ``forbidden``: kinds, by their plurals, that no client may read or write.
    ``outage``: all are answered 503, without effect.
    ``silence_s``: how long requests of this verb get no answer (after their effect).
    """

    def __init__(self) -> None:
        self.core = KubernetesCore()
        self.answers: list[int] = []
        self.silence_s: dict[str, float] = {}
        self.requests: list[str] = []
        self.outage = False
        self.forbidden: set[str] = set()
        self.app = FastAPI()
        path = "/apis/{group}/{version}/namespaces/{namespace}/{plural}"
        self.app.add_api_route(path, self._list, methods=["GET"], response_model=None)
        self.app.add_api_route(path, self._create, methods=["POST"], response_model=None)
        self.app.add_api_route(path + "/{name}", self._get, methods=["GET"], response_model=None)
        self.app.add_api_route(path + "/{name}", self._replace, methods=["PUT"], response_model=None)
        self.app.add_api_route(path + "/{name}/status", self._replace_status, methods=["PUT"], response_model=None)

    async def _list(self, request: Request) -> Any:
        kind = _kind(request)
        selector = request.query_params.get("labelSelector", "")
        labels = dict(item.split("=", 1) for item in selector.split(",") if item)
        if request.query_params.get("watch", "").lower() == "true":
            return self._watch(kind, labels, request.query_params["resourceVersion"])

        def found() -> dict[str, Any]:
            listing = self.core.list(kind, labels)
            items = [
                {name: value for name, value in item.items() if name not in ("kind", "apiVersion")}
                for item in listing.items
            ]
            return {"kind": "List", "metadata": {"resourceVersion": listing.resource_version}, "items": items}

        return await self._answer(request, found)

    async def _get(self, request: Request) -> Any:
        return await self._answer(request, lambda: self.core.get(_kind(request), request.path_params["name"]))

    async def _create(self, request: Request) -> Any:
        manifest = await request.json()
        return await self._answer(request, lambda: self.core.create(_kind(request), manifest))

    async def _replace(self, request: Request) -> Any:
        manifest = await request.json()
        return await self._answer(request, lambda: self.core.replace(_kind(request), manifest))

    async def _replace_status(self, request: Request) -> Any:
        manifest = await request.json()
        return await self._answer(request, lambda: self.core.replace_status(_kind(request), manifest))

    async def _answer(self, request: Request, effect: Callable[[], Any]) -> JSONResponse:
        self.requests.append(request.method)
        code = self.answers.pop(0) if self.answers else 0
        if self.outage:
            return _status(503, "outage")
        if request.path_params["plural"] in self.forbidden:
            return _status(403, "forbidden")
        if code > 0:
            return _status(code, "as the test asked")
        try:
            result = effect()
        except TailraceError as error:
            return _status(_CODES[type(error)], str(error))
        await asyncio.sleep(self.silence_s.get(request.method, 0.0))
        if code < 0:
            return _status(-code, "as the test asked")
        return JSONResponse(result, 201 if request.method == "POST" else 200)

    def _watch(self, kind: Kind, labels: dict[str, str], resource_version: str) -> Any:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()

        def on_change(change: Change) -> None:
            event = change.seen(kind, labels, resource_version)
            if event is not None:
                queue.put_nowait(event)

        if self.answers or self.outage:
            return _status(self.answers.pop(0) if self.answers else 503, "as the test asked")
        try:
            missed = self.core.changes_since(kind, resource_version)
        except UnavailableError as error:
            return StreamingResponse(_lines(_line("ERROR", {"kind": "Status", "code": 410, "message": str(error)})))
        for change in missed:
            on_change(change)
        self.core.subscribers.append(on_change)

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield _line("BOOKMARK", {"metadata": {"resourceVersion": resource_version}})
                while True:
                    event = await queue.get()
                    yield _line(event.kind, event.manifest)
            finally:
                self.core.subscribers.remove(on_change)

        return StreamingResponse(stream())


class AddressView:
    """The same API to clients that are to reach other processes through relays: addresses in answers are replaced."""

    def __init__(self, app: FastAPI, addresses: Mapping[str, str]) -> None:
        self._app = app
        self._addresses = {old.encode(): new.encode() for old, new in addresses.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""

        async def seen(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [each for each in message["headers"] if each[0] != b"content-length"]
                message = {**message, "headers": headers}
            elif message["type"] == "http.response.body":
                body = bytes(message.get("body", b""))
                for old, new in self._addresses.items():
                    body = body.replace(old, new)
                message = {**message, "body": body}
            await send(message)

        await self._app(scope, receive, seen)


@asynccontextmanager
async def address_view(server: KubernetesServer, addresses: Mapping[str, str]) -> AsyncIterator[str]:
    """The address of a view of a server in which these addresses are replaced."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with serve_app(AddressView(server.app, addresses), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _kind(request: Request) -> Kind:
    parts = request.path_params
    assert parts["namespace"] == NAMESPACE
    return KINDS[parts["group"], parts["version"], parts["plural"]]


def _status(code: int, message: str) -> JSONResponse:
    return JSONResponse({"kind": "Status", "status": "Failure", "code": code, "message": message}, code)


def _line(kind: str, found: Any) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


async def _lines(*lines: bytes) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


@asynccontextmanager
async def kubernetes_server() -> AsyncIterator[tuple[KubernetesServer, str]]:
    """A running server and its address."""
    server = KubernetesServer()
    listener = socket.create_server(("127.0.0.1", 0))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(server.app, listener))
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
