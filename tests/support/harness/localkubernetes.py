"""`KubernetesCore` behind the Kubernetes port, without server, time or chance: for tests that plan each fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from sim.kubernetes import Change, KubernetesCore
from tailrace.cluster.kubernetes import Kind, Listing, Manifest, WatchEvent
from tailrace.common.errors import UnavailableError


class LocalKubernetes:
    """Implements KubernetesApi.

    ``before`` and ``after`` are called with each request's verb, kind and name; what they raise is the answer.
    Instances may share one core.
    """

    def __init__(self, core: KubernetesCore | None = None) -> None:
        self.core = core or KubernetesCore()
        self.before: Callable[[str, Kind, str], Awaitable[None]] | None = None
        self.after: Callable[[str, Kind, str], Awaitable[None]] | None = None
        self.requests: list[tuple[str, str]] = []
        self.watches = 0
        self._queues: list[asyncio.Queue[WatchEvent | None]] = []

    async def _request(self, verb: str, kind: Kind, name: str, effect: Callable[[], Any]) -> Any:
        self.requests.append((verb, name))
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(verb, kind, name)
        result = effect()
        if self.after is not None:
            await self.after(verb, kind, name)
        return result

    async def get(self, kind: Kind, name: str) -> Manifest:
        """See KubernetesApi.get."""
        found: Manifest = await self._request("get", kind, name, lambda: self.core.get(kind, name))
        return found

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.create."""
        name = manifest["metadata"]["name"]
        made: Manifest = await self._request("create", kind, name, lambda: self.core.create(kind, manifest))
        return made

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace."""
        name = manifest["metadata"]["name"]
        stored: Manifest = await self._request("replace", kind, name, lambda: self.core.replace(kind, manifest))
        return stored

    async def replace_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """See KubernetesApi.replace_status."""
        name = manifest["metadata"]["name"]
        stored: Manifest = await self._request("status", kind, name, lambda: self.core.replace_status(kind, manifest))
        return stored

    async def list(self, kind: Kind, labels: Mapping[str, str]) -> Listing:
        """See KubernetesApi.list."""
        found: Listing = await self._request("list", kind, "", lambda: self.core.list(kind, labels))
        return found

    async def watch(
        self, kind: Kind, labels: Mapping[str, str], resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """See KubernetesApi.watch."""
        queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()

        def on_change(change: Change) -> None:
            event = change.seen(kind, labels, resource_version)
            if event is not None:
                queue.put_nowait(event)

        for missed in await self._request("watch", kind, "", lambda: self.core.changes_since(kind, resource_version)):
            on_change(missed)
        self.core.subscribers.append(on_change)
        self._queues.append(queue)
        self.watches += 1
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            self.core.subscribers.remove(on_change)
            self._queues.remove(queue)
        raise UnavailableError("the connection was closed")

    def close_watches(self) -> None:
        """End all open watches as a broken connection does."""
        for queue in self._queues:
            queue.put_nowait(None)
