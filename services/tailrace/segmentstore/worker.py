"""A segment store worker: one process's containers, their cache, and the server in front of them (design §1).

It shares nothing with its siblings. A container that stops because of its data stays stopped, with its reason; one
that lost its log to a passing fault is opened again with a new epoch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import (
    ContainerStoppedError,
    DataError,
    FencedError,
    TailraceError,
    WrongHostError,
)
from tailrace.kernel import BlockCache
from tailrace.segmentstore.cachemanager import CacheManager
from tailrace.segmentstore.container import Container, ContainerPorts
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.service import TableService

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.common.budgets import Budgets
    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.api import ContainerStatus, SegmentContainer
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()


def _nothing(container_id: int, epoch: int) -> None:
    """For those whose logs cannot be lost apart from everything else."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """What a worker is made of.

    ``open_log(container id)`` makes the log of a container, not yet opened; ``next_epoch(container id, floor)``
    takes its next epoch (cluster ownership); ``log_opened(container id, epoch)`` remembers that its log is there.
    """

    store: ObjectStore
    open_log: Callable[[int], DurableLog]
    next_epoch: Callable[[int, int], int]
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    log_opened: Callable[[int, int], None] = _nothing


class Worker:
    """Runs containers; implements the server's `ContainerRegistry`."""

    def __init__(self, container_count: int, owned: Sequence[int], budgets: Budgets, ports: WorkerPorts) -> None:
        self.container_count = container_count
        self.budgets = budgets
        self._owned = tuple(owned)
        self._ports = ports
        self._cache = CacheManager(BlockCache(budgets.cache_bytes))
        self._upload_slots = asyncio.Semaphore(limits.UPLOADS_MAX)
        self._containers: dict[int, Container] = {}
        self._tables: dict[int, TableService] = {}
        self._entries = EntryCache()  # one bound for all containers of the worker
        self._failed: dict[int, ContainerStatus] = {}
        self._unprovable: set[int] = set()
        self._routes: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover all containers, one after another, then keep them running.

        A container that cannot prove its data stays stopped and is reported; the others go on.
        """
        for container_id in self._owned:
            await self._open(container_id)
        loop = asyncio.get_running_loop()
        self._tasks.extend(loop.create_task(self._supervise(container_id)) for container_id in self._owned)
        self._tasks.append(loop.create_task(self._compact_tables()))

    async def close(self, *, flush: bool = False) -> None:
        """Stop all containers; with `flush`, everything is moved to Tier 2 first."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for container in self._containers.values():
            await container.close(flush=flush)
        self._containers.clear()

    async def _open(self, container_id: int) -> bool:
        floor = 0
        for _ in range(limits.EPOCH_RETRIES_MAX):
            epoch = self._ports.next_epoch(container_id, floor)
            ports = ContainerPorts(
                self._ports.open_log(container_id),
                self._ports.store,
                self._cache,
                self._ports.clock,
                self._ports.entropy,
                self._ports.cluster_id,
                self._upload_slots,
            )
            container = Container(container_id, epoch, ports)
            try:
                await container.start(self._ports.entropy.token(16))
                self._ports.log_opened(container_id, epoch)
            except FencedError as error:
                await container.close()
                floor = error.epoch
                continue
            except DataError:
                self._failed[container_id] = container.status()
                self._unprovable.add(container_id)
                await container.close()
                return False
            except BaseException:
                await container.close()  # its log must not stay locked, nor its cache entries stay
                raise
            self._failed.pop(container_id, None)
            self._containers[container_id] = container
            self._tables[container_id] = TableService(container, self._entries)
            return True
        return False

    async def _supervise(self, container_id: int) -> None:
        delay_s = limits.CONTAINER_RESTART_MIN_S
        while True:
            container = self._containers.get(container_id)
            if container is not None:
                started = asyncio.get_running_loop().time()
                cause = await container.wait_stopped()
                self._failed[container_id] = container.status()
                del self._containers[container_id]
                del self._tables[container_id]
                await container.close()
                if isinstance(cause, DataError):
                    self._unprovable.add(container_id)
                if asyncio.get_running_loop().time() - started > limits.CONTAINER_RESTART_MAX_S:
                    delay_s = limits.CONTAINER_RESTART_MIN_S
            if container_id in self._unprovable:
                return  # never guess: a person must look at it
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, limits.CONTAINER_RESTART_MAX_S)
            _logger.warning("container_reopening", container=container_id)
            try:
                await self._open(container_id)
            except (TailraceError, OSError) as error:
                # Whatever it is (a full disk, a log that cannot be read or locked just now), it may pass.
                _logger.warning("container_not_opened", container=container_id, reason=str(error))

    async def _compact_tables(self) -> None:
        while True:
            await asyncio.sleep(limits.TABLE_COMPACTION_INTERVAL_S)
            for container_id, tables in list(self._tables.items()):
                try:
                    await tables.compact_due()
                except (TailraceError, OSError) as error:
                    _logger.warning("table_compaction_failed", container=container_id, reason=str(error))

    # -- routing -------------------------------------------------------------------------------------------------

    def _container_id(self, segment: str) -> int:
        container_id = self._routes.get(segment)
        if container_id is None:
            container_id = container_of(segment, self.container_count)
            if len(self._routes) >= limits.ROUTES_CACHED_MAX:
                self._routes.clear()
            self._routes[segment] = container_id
        return container_id

    def container_for(self, segment: str) -> Container:
        """The container of a segment.

        Raises:
            WrongHostError: it does not run here. ContainerStoppedError: it should, and stopped.
        """
        return self.container_by_id(self._container_id(segment))

    def container_by_id(self, container_id: int) -> Container:
        """A container by its number; errors as of `container_for`."""
        container = self._containers.get(container_id)
        if container is not None:
            return container
        failed = self._failed.get(container_id)
        if failed is not None:
            raise ContainerStoppedError(f"container {container_id} stopped: {failed.reason}")
        raise WrongHostError(f"container {container_id} does not run here")

    def table_service(self, container: SegmentContainer) -> TableService:
        """The table segments of a container."""
        tables = self._tables.get(container.container_id)
        if tables is None:
            raise ContainerStoppedError(f"container {container.container_id} stopped")
        return tables

    # -- for the tools -------------------------------------------------------------------------------------------

    @property
    def cache(self) -> CacheManager:
        """The worker's cache."""
        return self._cache

    def containers(self) -> list[Container]:
        """Running containers by number."""
        return [self._containers[container_id] for container_id in sorted(self._containers)]

    def status(self) -> list[ContainerStatus]:
        """Status of every owned container, stopped ones with their reason."""
        known = dict(self._failed)
        known.update({container_id: container.status() for container_id, container in self._containers.items()})
        return [known[container_id] for container_id in self._owned if container_id in known]
