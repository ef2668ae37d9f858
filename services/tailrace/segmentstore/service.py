"""The segment store of one process put together from its parts: object store, logs, worker and server (design §1)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cluster.clusterobject import bind_tier2
from tailrace.cluster.datafolder import note_opened, opened_epoch, take_epoch
from tailrace.common import limits
from tailrace.common.budgets import Budgets, budgets_for
from tailrace.common.errors import StartError
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.tier2 import OBJECT_KINDS, epoch_of_key
from tailrace.segmentstore.worker import Worker, WorkerPorts
from tailrace.storage.obstores import open_object_store, probe

if TYPE_CHECKING:
    import socket

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.storage.port import ObjectStore


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Which containers of which folder a process serves; plain values, so that it can be handed to another process."""

    data: str
    tier2: str
    s3_endpoint: str | None
    cluster_id: str
    container_count: int
    owned: tuple[int, ...]
    cache_bytes: int

    @property
    def budgets(self) -> Budgets:
        """Budgets of the process. Raises StartError when the cache is too small."""
        return budgets_for(self.cache_bytes, len(self.owned))


class StoreService:
    """A running segment store: `start` recovers, `listen` or `listen_on` serves, `close` ends it."""

    def __init__(
        self, spec: StoreSpec, clock: Clock, entropy: Entropy, connections_max: int = limits.CONNECTIONS_MAX
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._entropy = entropy
        self._connections_max = connections_max
        self._stack = contextlib.AsyncExitStack()
        self.worker: Worker
        self._server: SegmentStoreServer

    async def start(self) -> None:
        """Reach Tier 2 and recover every container. Raises StartError."""
        spec = self._spec
        budgets = spec.budgets
        data = Path(spec.data)
        opened = {container_id: opened_epoch(data, container_id) for container_id in spec.owned}
        store = await self._open_tier2(bound=any(opened.values()))
        disk = RealDisk()
        self._stack.callback(disk.close)
        for container_id in spec.owned:
            if not opened[container_id] and not _log_files(data, container_id):
                opened[container_id] = await _epoch_of_objects(store, container_id)

        def open_log(container_id: int) -> DurableLog:
            directory = str(data / "log" / str(container_id))
            return FileLog(disk, directory, container_id, opened_epoch=opened[container_id])

        def log_opened(container_id: int, epoch: int) -> None:
            note_opened(data, container_id, epoch)
            opened[container_id] = epoch

        async def next_epoch(container_id: int, floor: int) -> int:
            return take_epoch(data, container_id, floor)

        for directory in _logs_of(data, spec.owned):
            await _wait_until_free(disk, directory)
        cluster_id = uuid.UUID(spec.cluster_id).bytes
        ports = WorkerPorts(store, open_log, next_epoch, self._clock, self._entropy, cluster_id, log_opened)
        self.worker = Worker(spec.container_count, spec.owned, budgets, ports)
        self._stack.push_async_callback(self.worker.close)
        await self.worker.start()
        in_flight = InFlightBudget(budgets.in_flight_bytes)
        self._server = SegmentStoreServer(
            self.worker, in_flight, self._clock, self._entropy, connections_max=self._connections_max
        )
        self._stack.push_async_callback(self._server.close)

    async def _open_tier2(self, *, bound: bool) -> ObjectStore:
        """Tier 2, which works and belongs to the cluster; `bound`: the cluster had it before. Raises StartError."""
        spec = self._spec
        store = open_object_store(spec.tier2, s3_endpoint=spec.s3_endpoint, create=not bound)
        self._stack.push_async_callback(store.close)
        place = f"Tier 2 {spec.tier2}" + (f" at {spec.s3_endpoint}" if spec.s3_endpoint else "")
        await probe(store, self._entropy.token(8).hex(), place)
        await bind_tier2(store, place, spec.cluster_id, spec.container_count, bound=bound)
        return store

    async def listen_on(self, listener: socket.socket) -> None:
        """Serve connections of a bound socket. Raises StartError."""
        try:
            await self._server.start_on(listener)
        except OSError as error:
            raise StartError(f"the store cannot listen: {error.strerror}") from error

    async def close(self) -> None:
        """Stop serving; what was acknowledged is on disk already."""
        await self._stack.aclose()


def _log_files(data: Path, container_id: int) -> bool:
    """Whether the container's log has a file."""
    return any((data / "log" / str(container_id)).glob("[0-9]*.log"))


async def _epoch_of_objects(store: ObjectStore, container_id: int) -> int:
    """An epoch of the container that wrote to Tier 2; 0: none did.

    The second witness of a log that is gone, for folders whose epochs are gone too.
    """
    for kind in OBJECT_KINDS:
        async for info in store.list(f"{kind}{container_id}"):
            return epoch_of_key(info.key)
    return 0


def _logs_of(data: Path, containers: tuple[int, ...]) -> list[str]:
    """The log directories that are there already."""
    directories = [data / "log" / str(container_id) for container_id in containers]
    return [str(directory) for directory in directories if directory.exists()]


async def _wait_until_free(disk: RealDisk, directory: str) -> None:
    """Wait for a worker whose parent was killed: it ends by itself a moment later, and its log is locked until then.

    When it takes too long, opening the log says that it is in use.
    """
    ends_at_s = asyncio.get_running_loop().time() + limits.LOG_LOCK_PATIENCE_S
    while asyncio.get_running_loop().time() < ends_at_s:
        try:
            disk.lock(directory).release()
        except StartError:
            await asyncio.sleep(limits.LOG_LOCK_POLL_S)
        else:
            return
