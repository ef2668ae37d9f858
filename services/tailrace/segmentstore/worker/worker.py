"""A segment store worker: one process's containers, their cache, and the server in front of them (design §1, §9).

It shares nothing with its siblings. Containers come and go while it runs (`keeper` keeps each of them).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ContainerStoppedError, TailraceError, WrongHostError
from tailrace.kernel import BlockCache
from tailrace.segmentstore.attributes.attribute_store import PageRoom
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.worker.container_supervisor import ContainerSupervisor, NotOpen, Shared, WorkerPorts
from tailrace.segmentstore.worker.pending_containers import PendingContainers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.budgets import Budgets
    from tailrace.segmentstore.api import ContainerStatus, SegmentContainer
    from tailrace.segmentstore.container.container import Container
    from tailrace.segmentstore.tables.service import TableService

__all__ = ["Worker", "WorkerPorts"]

_logger = structlog.get_logger()


class Worker:
    """Runs containers; implements the server's `ContainerRegistry`.

    ``owned`` are the containers that `start` opens; others come by `open_container`. The budgets must do for as many as
    there will be at a time.
    """

    def __init__(self, container_count: int, owned: Sequence[int], budgets: Budgets, ports: WorkerPorts) -> None:
        self.container_count = container_count
        self.budgets = budgets
        self._first = tuple(owned)
        self._shared = Shared(ports, CacheManager(BlockCache(budgets.cache_bytes)), PageRoom(budgets.index_page_bytes))
        self._keepers: dict[int, ContainerSupervisor] = {}
        self._arrivals = PendingContainers()
        self._routes: dict[str, int] = {}
        self._compaction: asyncio.Task[None] | None = None
        self._closed = False

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the first containers, one after another, then keep them running.

        A container that cannot prove its data stays stopped and is reported; the others go on. Whatever else prevents
        one from being opened is raised.
        """
        self._compaction = asyncio.get_running_loop().create_task(self._compact_tables())
        for container_id in self._first:
            await self._keeper(container_id).open_first()

    def expect_container(self, container_id: int) -> None:
        """The container is to be opened here soon: until `unexpect_container`, requests that may wait do."""
        self._arrivals.begin(container_id)

    def unexpect_container(self, container_id: int) -> None:
        """It is open, or nobody opens it here for now."""
        self._arrivals.end(container_id)

    async def open_container(self, container_id: int) -> None:
        """Own the container from now on; returns when the first attempt to open it has ended.

        When that failed, for a reason that may pass, it is repeated until it succeeds or the container is released;
        `status` tells. Nothing happens when the container is owned already.

        Raises:
            NotOwnerError: who hands out epochs says that it belongs to another worker; it is not owned.
            BadRequestError: there is no such container. ContainerStoppedError: the worker is closed.
        """
        if not 0 <= container_id < self.container_count:
            raise BadRequestError(f"container {container_id}: there are {self.container_count}")
        while (leaving := self._keepers.get(container_id)) is not None and leaving.leaving:
            await self._let_go(leaving, flush=False)
        if self._closed:
            raise ContainerStoppedError("the worker is closed")
        await self._keeper(container_id).begin()

    async def release_container(self, container_id: int, flush: bool = True) -> None:
        """Give a container away: its requests are answered WrongHost from this moment on.

        What is staged is committed and, with `flush`, moved to Tier 2 within ``limits.CONTAINER_LEAVE_DEADLINE_S``, so
        that the next owner recovers quickly. Its log is closed when this returns. Nothing happens when it is not owned.
        """
        keeper = self._keepers.get(container_id)
        if keeper is not None:
            await self._let_go(keeper, flush=flush)

    async def _let_go(self, keeper: ContainerSupervisor, *, flush: bool) -> None:
        try:
            await keeper.release(flush=flush)
        finally:
            if self._keepers.get(keeper.container_id) is keeper and keeper.released:
                del self._keepers[keeper.container_id]

    def owned(self) -> tuple[int, ...]:
        """The containers that belong to this worker now, whether they run or not, by number."""
        return tuple(sorted(number for number, keeper in self._keepers.items() if not keeper.leaving))

    async def close(self, *, flush: bool = False) -> None:
        """Stop all containers; with `flush`, everything is moved to Tier 2 first, as far as the deadline allows.

        All are closed whatever fails; the first failure is raised then.
        """
        self._closed = True
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.wait([self._compaction])
        keepers = list(self._keepers.values())
        ends = await asyncio.gather(*(self._let_go(keeper, flush=flush) for keeper in keepers), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    def _keeper(self, container_id: int) -> ContainerSupervisor:
        keeper = self._keepers.get(container_id)
        if keeper is None:
            keeper = self._keepers[container_id] = ContainerSupervisor(container_id, self._shared, self._given_up)
        return keeper

    def _given_up(self, keeper: ContainerSupervisor) -> None:
        if self._keepers.get(keeper.container_id) is keeper:
            del self._keepers[keeper.container_id]

    async def _compact_tables(self) -> None:
        while True:
            await asyncio.sleep(limits.TABLE_COMPACTION_INTERVAL_S)
            for keeper in list(self._keepers.values()):
                if keeper.tables is None or keeper.leaving:
                    continue
                try:
                    await keeper.tables.compact_due()
                except (TailraceError, OSError) as error:
                    _logger.warning("table_compaction_failed", container=keeper.container_id, reason=str(error))

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
        keeper = self._keepers.get(container_id)
        if keeper is None or keeper.leaving:
            raise WrongHostError(f"container {container_id} does not run here")
        if keeper.container is None:
            reason = f"stopped: {keeper.failed.reason}" if keeper.failed is not None else "is being opened"
            raise ContainerStoppedError(f"container {container_id} {reason}")
        return keeper.container

    def is_arriving(self, segment: str) -> bool:
        """See ContainerRegistry."""
        # Not by the routes: the name is not checked yet, and would be kept there.
        return self._arrivals.expects_any and self._arrivals.expects(container_of(segment, self.container_count))

    async def wait_arrived(self, segment: str) -> None:
        """See ContainerRegistry."""
        await self._arrivals.wait(container_of(segment, self.container_count))

    def table_service(self, container: SegmentContainer) -> TableService:
        """The table segments of a container."""
        keeper = self._keepers.get(container.container_id)
        if keeper is None or keeper.tables is None or keeper.container is not container:
            raise ContainerStoppedError(f"container {container.container_id} stopped")
        return keeper.tables

    # -- for the tools -------------------------------------------------------------------------------------------

    @property
    def cache(self) -> CacheManager:
        """The worker's cache."""
        return self._shared.cache

    def containers(self) -> list[Container]:
        """Running containers by number."""
        keepers = [self._keepers[container_id] for container_id in self.owned()]
        return [keeper.container for keeper in keepers if keeper.container is not None]

    def not_open(self) -> list[NotOpen]:
        """Owned containers that are not open for longer than an ordinary opening takes, and why."""
        found = [self._keepers[container_id].not_open() for container_id in self.owned()]
        return [each for each in found if each is not None and each.for_s > limits.CONTAINER_NOT_OPEN_REPORT_S]

    def status(self) -> list[ContainerStatus]:
        """Status of every owned container, stopped ones with their reason."""
        found = [self._keepers[container_id].status() for container_id in self.owned()]
        return [status for status in found if status is not None]
