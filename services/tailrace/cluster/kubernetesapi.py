"""The Kubernetes API over the network: the port by the official client (design §9).

The client blocks, so its calls run in a few threads behind this port; each has a deadline in its thread and one on the
loop. It never repeats a request by itself: a write that is repeated behind our back is answered with a conflict with
itself. Needs the extra ``kubernetes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import urllib3
from kubernetes import client, config

from tailrace.cluster.kubernetes import Kind, Listing, Manifest, WatchEvent
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    StartError,
    TailraceError,
    UnavailableError,
    WriteConflictError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


def in_cluster(namespace: str) -> HttpKubernetes:
    """The API as a pod reaches it, with the pod's own service account. Raises StartError: this is no pod."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise StartError(f"the Kubernetes API cannot be reached from here: {error}") from error
    return HttpKubernetes(configuration, namespace)


def from_kubeconfig(namespace: str, path: str | None = None, context: str | None = None) -> HttpKubernetes:
    """The API that a kubeconfig names (None: as kubectl finds it). Raises StartError: there is none."""
    configuration = client.Configuration()
    try:
        config.load_kube_config(path, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise StartError(f"the kubeconfig cannot be used: {error}") from error
    return HttpKubernetes(configuration, namespace)


class HttpKubernetes:
    """Implements KubernetesApi for one namespace."""

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = limits.KUBERNETES_THREADS + limits.KUBERNETES_WATCHES_MAX
        self._client = client.ApiClient(configuration)
        self._objects = client.CustomObjectsApi(self._client)
        self._namespace = namespace
        self._threads = ThreadPoolExecutor(limits.KUBERNETES_THREADS, thread_name_prefix="tailrace-kubernetes")
        self._watches: set[_WatchThread] = set()

    @property
    def address(self) -> str:
        """Where the API server is."""
        return str(self._client.configuration.host)

    async def close(self) -> None:
        """End watches and let go of the connections; calls under way end by themselves."""
        for watch in list(self._watches):
            watch.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()  # type: ignore[no-untyped-call]

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
            raise UnavailableError(f"{what}: {len(items)} objects, at most {limits.KUBERNETES_LIST_MAX} are taken")
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
            raise ValueError("uid and resourceVersion are what a replace compares")
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
        deadline_s = limits.KUBERNETES_CALL_DEADLINE_S

        def run() -> Manifest:
            try:
                found = call(*arguments, _request_timeout=(deadline_s, deadline_s), **options)
            except Exception as error:
                raise _translated(what, error, conflict) from error
            if not isinstance(found, dict) or "metadata" not in found:
                raise UnavailableError(f"{what}: what answers is not the Kubernetes API")
            return found

        try:
            # The thread's own deadlines are of each wait; this one is of the whole.
            async with asyncio.timeout(2 * deadline_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError as error:
            raise DeadlineError(f"{what}: no answer from the Kubernetes API within {2 * deadline_s:g} s") from error


class _WatchThread:
    """One watch: a thread reads lines as they come and hands them to the loop."""

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
        """End, also in the middle of waiting for the server."""
        self._stopped.set()
        self._room.release()
        response = self._response
        if response is not None:
            with contextlib.suppress(ValueError, OSError):  # it has come to its end
                response.shutdown()

    async def next(self) -> WatchEvent | None:
        """The next change; None: the server has ended the watch. Raises UnavailableError: it failed."""
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
            self._post(None)  # nothing happened; whoever watches reads once and watches again
        except Exception as error:
            self._post(_translated(self._what, error, WriteConflictError))
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


def _whole(kind: Kind, manifest: Manifest) -> Manifest:
    """With its kind, which items of lists lack."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **manifest}


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _translated(what: str, error: Exception, conflict: type[TailraceError]) -> TailraceError:
    """The port's error for what the client raised."""
    if isinstance(error, TailraceError):
        return error
    if isinstance(error, client.ApiException):
        message = f"{what}: the Kubernetes API answers {error.status} {error.reason}"
        if error.status == 404:
            return NotFoundError(message)
        if error.status == 409:
            return conflict(message)
        return UnavailableError(message)
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return DeadlineError(f"{what}: no answer from the Kubernetes API: {error}")
    return UnavailableError(f"{what}: the Kubernetes API cannot be used: {error!r}")
