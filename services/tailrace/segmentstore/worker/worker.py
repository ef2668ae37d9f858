"""A segment store worker: the containers of one process, with their cache and table segments.

See docs/design.md#processes, docs/design.md#ownership.

It shares nothing with its siblings. The follower opens and releases containers while the worker runs; a
`ContainerSupervisor` keeps each one running.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, ContainerStoppedError, TailraceError, WrongHostError
from tailrace.kernel import BlockCache
from tailrace.segmentstore.attributes.pages import PageRoom
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.metadata.value_room import ValueRoom
from tailrace.segmentstore.worker.container_supervisor import ContainerSupervisor, Shared, WorkerPorts
from tailrace.segmentstore.worker.pending_containers import PendingContainers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.common.budgets import Budgets
    from tailrace.segmentstore.api import ContainerStatus, SegmentContainer
    from tailrace.segmentstore.container.arena_pool import ArenaPool
    from tailrace.segmentstore.container.container import Container
    from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
    from tailrace.segmentstore.tables.service import TableService
    from tailrace.segmentstore.worker.not_open import NotOpen
    from tailrace.storage.figures import StoreFigures

__all__ = ["Worker", "WorkerPorts"]

_logger = structlog.get_logger()


class Worker:
    """Runs containers; implements the server's `ContainerRegistry`.

    `start` opens the containers in ``owned``; `open_container` adds others. The budgets must suffice for the largest
    number of containers that the worker owns at a time.
    """

    def __init__(self, container_count: int, owned: Sequence[int], budgets: Budgets, ports: WorkerPorts) -> None:
        self.container_count = container_count
        self.budgets = budgets
        self._first = tuple(owned)
        self._shared = Shared(
            ports,
            cache=CacheManager(BlockCache(budgets.cache_bytes)),
            pages=PageRoom(budgets.index_page_bytes),
            values=ValueRoom(budgets.attribute_value_bytes),
        )
        self._supervisors: dict[int, ContainerSupervisor] = {}
        self._pending = PendingContainers()
        self._routes: dict[str, int] = {}
        self._compaction: asyncio.Task[None] | None = None
        self._closed = False
        self.start_trouble = ""
        """Why Tier 2 has taken no objects since the start; empty: it does."""

    # -- lifecycle -----------------------------------------------------------------------------------------------

    async def start(self, *, on_full_disks: bool = False) -> None:
        """Recover the first containers, one after another, then keep them running.

        A container whose data is not proved whole stays stopped and is reported; the others run. One that fails with an
        error that no code foresaw is opened later; with `on_full_disks`, so is one whose disk is full. A TailraceError
        or an OSError that prevents an opening is raised.
        """
        self._compaction = asyncio.get_running_loop().create_task(self._compact_tables())
        for container_id in self._first:
            await self._supervisor(container_id).open_first(on_full_disk=on_full_disks)

    def expect_container(self, container_id: int) -> None:
        """Let requests for the container wait: it opens here soon. `unexpect_container` ends this."""
        self._pending.begin(container_id)

    def unexpect_container(self, container_id: int) -> None:
        """End the waiting of requests: the container is open, or is not opened here for now."""
        self._pending.end(container_id)

    async def open_container(self, container_id: int) -> None:
        """Own the container from now on; return when the first attempt to open it has ended.

        After a failure that may pass, the supervisor retries until the container is open or released; `status` returns
        the reason. Does nothing when the worker owns the container already.

        Raises:
            NotOwnerError: the container belongs to another worker; this worker does not own it.
            BadRequestError: there is no such container. ContainerStoppedError: the worker is closed.
        """
        if not 0 <= container_id < self.container_count:
            raise BadRequestError(f"container {container_id} does not exist: there are {self.container_count}")
        while (leaving := self._supervisors.get(container_id)) is not None and leaving.leaving:
            await self._let_go(leaving, flush=False)
        if self._closed:
            raise ContainerStoppedError("the worker is closed")
        await self._supervisor(container_id).begin()

    async def release_container(self, container_id: int, flush: bool = True) -> None:
        """Release a container: its requests get WrongHost; with `flush` not before most of it is in Tier 2.

        Staged operations are committed. With `flush` they are moved to Tier 2 within
        ``limits.CONTAINER_LEAVE_DEADLINE_S``, so that the next owner recovers quickly. The log is closed when this
        returns. Does nothing when the worker does not own the container.
        """
        supervisor = self._supervisors.get(container_id)
        if supervisor is not None:
            await self._let_go(supervisor, flush=flush)

    async def _let_go(self, supervisor: ContainerSupervisor, *, flush: bool) -> None:
        try:
            await supervisor.release(flush=flush)
        finally:
            if self._supervisors.get(supervisor.container_id) is supervisor and supervisor.released:
                del self._supervisors[supervisor.container_id]

    def owned(self) -> tuple[int, ...]:
        """Return the containers that this worker owns, running or not, by number."""
        return tuple(sorted(number for number, supervisor in self._supervisors.items() if not supervisor.leaving))

    @property
    def log_buffers(self) -> ArenaPool:
        """Return the buffers of log frames that the containers share."""
        return self._shared.arenas

    @property
    def untiered(self) -> UntieredRoom:
        """Return the room for records of what Tier 2 lacks that the containers share."""
        return self._shared.untiered

    @property
    def attribute_values(self) -> ValueRoom:
        """Return the room for attribute values that the containers share."""
        return self._shared.values

    async def close(self, *, flush: bool = False) -> None:
        """Stop all containers; with `flush`, first move everything to Tier 2, as far as the deadline allows.

        All are closed even if some fail; the first failure is raised afterwards.
        """
        self._closed = True
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.wait([self._compaction])
        closings = [self._let_go(supervisor, flush=flush) for supervisor in self._supervisors.values()]
        ends = await asyncio.gather(*closings, return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    def _supervisor(self, container_id: int) -> ContainerSupervisor:
        supervisor = self._supervisors.get(container_id)
        if supervisor is None:
            supervisor = ContainerSupervisor(container_id, self._shared, self._given_up)
            self._supervisors[container_id] = supervisor
        return supervisor

    def _given_up(self, supervisor: ContainerSupervisor) -> None:
        if self._supervisors.get(supervisor.container_id) is supervisor:
            del self._supervisors[supervisor.container_id]

    async def _compact_tables(self) -> None:
        while True:
            await asyncio.sleep(limits.TABLE_COMPACTION_INTERVAL_S)
            for supervisor in list(self._supervisors.values()):
                if supervisor.tables is None or supervisor.leaving:
                    continue
                try:
                    await supervisor.tables.compact_due()
                except (TailraceError, OSError) as error:
                    _logger.warning("table_compaction_failed", container=supervisor.container_id, reason=str(error))
                except Exception as error:  # of one container: the others are compacted, and this one is tried again
                    _logger.exception("table_compaction_failed", container=supervisor.container_id, reason=repr(error))

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
        """Return the container of a segment.

        Raises:
            WrongHostError: the worker does not own it. ContainerStoppedError: it is not open.
        """
        return self.container_by_id(self._container_id(segment))

    def container_by_id(self, container_id: int) -> Container:
        """Return a container by its number; errors as of `container_for`."""
        supervisor = self._supervisors.get(container_id)
        if supervisor is None or supervisor.refuses:
            raise WrongHostError(f"container {container_id} does not run here")
        if supervisor.container is None:
            reason = f"stopped: {supervisor.failed.reason}" if supervisor.failed is not None else "is opening"
            raise ContainerStoppedError(f"container {container_id} {reason}")
        return supervisor.container

    def is_pending(self, segment: str) -> bool:
        """See ContainerRegistry."""
        # Do not cache segment names before validation.
        return self._pending.expects_any and self._pending.expects(container_of(segment, self.container_count))

    async def wait_opened(self, segment: str) -> None:
        """See ContainerRegistry."""
        await self._pending.wait(container_of(segment, self.container_count))

    def table_service(self, container: SegmentContainer) -> TableService:
        """Return the table segments of a container."""
        supervisor = self._supervisors.get(container.container_id)
        if supervisor is None or supervisor.tables is None or supervisor.container is not container:
            raise ContainerStoppedError(f"container {container.container_id} stopped")
        return supervisor.tables

    # -- for the tools -------------------------------------------------------------------------------------------

    @property
    def cache(self) -> CacheManager:
        """Return the worker's cache."""
        return self._shared.cache

    @property
    def store_silent_s(self) -> float | None:
        """Return for how long the object store has not answered; None: that is not followed."""
        contact = self._shared.ports.contact
        return None if contact is None else contact.silent_s(asyncio.get_running_loop().time())

    @property
    def tier2_trouble(self) -> str:
        """Return why Tier 2 takes no objects, or that it does not answer or refuses requests; empty: it serves."""
        contact = self._shared.ports.contact
        silent = "" if contact is None else contact.trouble(asyncio.get_running_loop().time())
        return self.start_trouble or silent

    @property
    def store_figures(self) -> StoreFigures | None:
        """Return the figures of requests to the object store; None: nothing counts them."""
        return self._shared.ports.figures

    def containers(self) -> list[Container]:
        """Return the running containers by number."""
        supervisors = [self._supervisors[container_id] for container_id in self.owned()]
        return [supervisor.container for supervisor in supervisors if supervisor.container is not None]

    def closed(self) -> list[NotOpen]:
        """Return the owned containers that are not open, and why."""
        found = [self._supervisors[container_id].not_open() for container_id in self.owned()]
        return [each for each in found if each is not None]

    def not_open(self) -> list[NotOpen]:
        """Return those that have not been open for longer than an ordinary opening takes."""
        return [each for each in self.closed() if each.for_s > limits.CONTAINER_NOT_OPEN_REPORT_S]

    def status(self) -> list[ContainerStatus]:
        """Return the status of every owned container; stopped ones carry their reason."""
        found = [self._supervisors[container_id].status() for container_id in self.owned()]
        return [status for status in found if status is not None]
