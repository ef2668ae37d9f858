"""Implements the Kubernetes port over the network with the official client (docs/design.md#ownership).

Needs the extra ``kubernetes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Final

import urllib3
from kubernetes import client

from tailrace.cluster.kubernetes import Kind, Listing, Manifest, WatchEvent
from tailrace.cluster.kubernetes_requests import (
    KubernetesRequests,
    in_cluster_configuration,
    kubeconfig_configuration,
    translated,
)
from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, TailraceError, UnavailableError, WriteConflictError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


def in_cluster(namespace: str) -> HttpKubernetes:
    """Connect as a pod does, with its service account. Raises StartError: this process runs in no pod."""
    return HttpKubernetes(in_cluster_configuration(), namespace)


def from_kubeconfig(namespace: str, path: str | None = None, context: str | None = None) -> HttpKubernetes:
    """Connect to the API of a kubeconfig (None: the one of kubectl). Raises StartError: it cannot be used."""
    return HttpKubernetes(kubeconfig_configuration(path, context), namespace)


class HttpKubernetes:
    """Implements KubernetesApi for one namespace."""

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        self._calls = KubernetesRequests(configuration, connections=limits.KUBERNETES_WATCHES_MAX)
        self._objects = client.CustomObjectsApi(self._calls.client)
        self._namespace = namespace
        self._watches: set[_WatchThread] = set()

    @property
    def address(self) -> str:
        """Return the address of the API server."""
        return self._calls.address

    async def close(self) -> None:
        """End watches and close the connections; requests in progress end by themselves."""
        for watch in list(self._watches):
            watch.stop()
        self._calls.close()

    async def get(self, kind: Kind, name: str) -> Manifest:
        """See KubernetesApi.get."""
        call = self._objects.get_namespaced_custom_object
        return await self._call(f"get {kind.plural} {name}", call, *self._place(kind), name)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.create."""
        call = self._objects.create_namespaced_custom_object
        what = f"create {kind.plural} {manifest['metadata']['name']}"
        return await self._call(what, call, *self._place(kind), _whole(kind, manifest), conflict=AlreadyExistsError)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace."""
        return await self._replace("replace", self._objects.replace_namespaced_custom_object, kind, manifest)

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace_status."""
        call = self._objects.replace_namespaced_custom_object_status
        return await self._replace("replace status of", call, kind, manifest)

    async def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """See KubernetesApi.list."""
        what = f"list {kind.plural}"
        call = self._objects.list_namespaced_custom_object
        found = await self._call(what, call, *self._place(kind), label_selector=_selector(labels))
        items = found["items"]
        if len(items) > limits.KUBERNETES_LIST_MAX:
            raise UnavailableError(f"{what}: {len(items)} objects; the limit is {limits.KUBERNETES_LIST_MAX}")
        return Listing(tuple(_whole(kind, item) for item in items), found["metadata"]["resourceVersion"])

    async def watch(
        self, kind: Kind, labels: Mapping[str, str], resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """See KubernetesApi.watch."""
        if len(self._watches) >= limits.KUBERNETES_WATCHES_MAX:
            raise UnavailableError(f"{limits.KUBERNETES_WATCHES_MAX} watches are open already")

        def begin() -> Any:
            return self._objects.list_namespaced_custom_object(
                *self._place(kind),
                label_selector=_selector(labels),
                resource_version=resource_version,
                watch=True,
                timeout_seconds=round(limits.KUBERNETES_WATCH_S),
                _preload_content=False,
                _request_timeout=(limits.KUBERNETES_CALL_DEADLINE_S, limits.KUBERNETES_WATCH_SILENCE_S),
            )

        watch = _WatchThread(f"watch {kind.plural}", begin, asyncio.get_running_loop())
        self._watches.add(watch)
        try:
            watch.start()
            while (event := await watch.next()) is not None:
                yield event
        finally:
            watch.stop()
            self._watches.discard(watch)

    def _place(self, kind: Kind) -> tuple[str, str, str, str]:
        return kind.group, kind.version, self._namespace, kind.plural

    async def _replace(self, verb: str, call: Callable[..., Any], kind: Kind, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        if not metadata.get("uid") or not metadata.get("resourceVersion"):
            raise ValueError("a replace needs metadata.uid and metadata.resourceVersion")
        what = f"{verb} {kind.plural} {metadata['name']}"
        return await self._call(what, call, *self._place(kind), metadata["name"], _whole(kind, manifest))

    async def _call(
        self,
        what: str,
        call: Callable[..., Any],
        *arguments: Any,
        conflict: type[TailraceError] = WriteConflictError,
        **options: Any,
    ) -> Manifest:
        return await self._calls.call(what, call, *arguments, conflict=conflict, **options)


class _WatchThread:
    """One watch: a thread reads the lines of the reply and passes them to the loop."""

    def __init__(self, what: str, begin: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._what = what
        self._begin = begin
        self._loop = loop
        self._queue: asyncio.Queue[WatchEvent | TailraceError | None] = asyncio.Queue()
        self._room = threading.Semaphore(limits.KUBERNETES_WATCH_BUFFER)
        self._stopped = threading.Event()
        self._response: urllib3.HTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name="tailrace-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch, even while it waits for the server."""
        self._stopped.set()
        self._room.release()
        response = self._response
        if response is not None:
            with contextlib.suppress(ValueError, OSError):  # it has ended already
                response.shutdown()

    async def next(self) -> WatchEvent | None:
        """Return the next change; None when the server ended the watch. Raises UnavailableError, NotFoundError."""
        found = await self._queue.get()
        self._room.release()
        if isinstance(found, TailraceError):
            raise found
        return found

    def _run(self) -> None:
        try:
            self._response = response = self._begin()
            try:
                if not self._stopped.is_set():
                    self._read(response)
            finally:
                response.close()
        except urllib3.exceptions.ReadTimeoutError:
            self._post(None)  # nothing happened: the caller lists once and watches again
        except Exception as error:
            self._post(translated(self._what, error, WriteConflictError))
        else:
            self._post(None)

    def _read(self, response: urllib3.HTTPResponse) -> None:
        pending = b""
        for piece in response.stream(amt=None, decode_content=False):
            pending += piece
            if len(pending) > limits.KUBERNETES_OBJECT_MAX_BYTES + len(piece):
                raise UnavailableError(f"{self._what}: an event is too large")
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if line.strip():
                    self._take(json.loads(line))
                if self._stopped.is_set():
                    return

    def _take(self, event: dict[str, Any]) -> None:
        if event["type"] == "ERROR":
            status = event["object"]
            raise UnavailableError(f"{self._what}: {status.get('code')}, {status.get('message')}")
        if event["type"] in _CHANGES:
            self._room.acquire()
            self._post(WatchEvent(event["type"], event["object"]))

    def _post(self, item: WatchEvent | TailraceError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


def _whole(kind: Kind, manifest: Manifest) -> Manifest:
    """Add apiVersion and kind, which items of lists lack."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **manifest}


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
