"""Keeps one container of a worker running: opens it, watches it, reopens it after a passing fault.

See docs/design.md#ownership.

A container that stops because of its data stays stopped, with its reason. One whose cached bytes differ from those that
were written is recovered from its log, unless they differ again. One that lost its log is opened again with another
epoch only. The epoch store refuses that epoch when the container belongs to another worker by then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    DataError,
    DiskFullError,
    EpochTooHighError,
    FencedError,
    MemoryDamageError,
    NotOwnerError,
    TailraceError,
    UnavailableError,
)
from tailrace.segmentstore.api import ContainerStatus
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.container import Container, ContainerPorts
from tailrace.segmentstore.metadata.untiered_room import UntieredRoom
from tailrace.segmentstore.tables.cache import EntryCache
from tailrace.segmentstore.tables.service import TableService
from tailrace.segmentstore.worker.backoff import MemoryDamages, Pauses
from tailrace.segmentstore.worker.not_open import NotOpen, is_waiting
from tailrace.storage.put_window import PutWindow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.attributes.pages import PageRoom
    from tailrace.segmentstore.cache.cache_manager import CacheManager
    from tailrace.segmentstore.metadata.value_room import ValueRoom
    from tailrace.storage.contact import StoreContact
    from tailrace.storage.figures import StoreFigures
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()


def _nothing(container_id: int, epoch: int) -> None:
    """No-op for servers that keep logs and data in one folder."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """What a worker uses to open containers.

    ``open_log(container id)`` returns the log of a container, not yet opened. ``next_epoch(container id, floor)`` takes
    its next epoch (`cluster.ownership.Epochs.take`). ``log_opened(container id, epoch)`` records that its log exists.
    ``lower_epoch(container id, last)`` gives back an epoch that is too far above the log's last one, where the epoch
    store can do that (`cluster.lease_epochs.LeaseEpochs.lower`). ``contact`` follows whether ``store`` answers; None:
    nothing does. ``figures`` counts its requests; None: nothing does. ``moves``: other workers may take the containers,
    so that one is closed at once, without a last snapshot, while the store does not answer.
    """

    store: ObjectStore
    open_log: Callable[[int], DurableLog]
    next_epoch: Callable[[int, int], Awaitable[int]]
    clock: Clock
    entropy: Entropy
    cluster_id: bytes
    log_opened: Callable[[int, int], None] = _nothing
    lower_epoch: Callable[[int, int], Awaitable[None]] | None = None
    contact: StoreContact | None = None
    figures: StoreFigures | None = None
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """What the containers of a worker share.

    ``openings`` lets a few containers open at a time, because most of an opening is waiting for the store. ``turn``
    lets them recover one after another (docs/design.md#cache).
    """

    ports: WorkerPorts
    cache: CacheManager
    pages: PageRoom
    values: ValueRoom
    upload_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.UPLOADS_MAX))
    upload_window: PutWindow = field(default_factory=lambda: PutWindow(limits.UPLOADS_MAX))
    arenas: ArenaPool = field(default_factory=ArenaPool)
    index_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.INDEX_UPLOADS_MAX))
    untiered: UntieredRoom = field(default_factory=UntieredRoom)
    entries: EntryCache = field(default_factory=EntryCache)
    openings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.CONTAINERS_OPENING_MAX))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class ContainerSupervisor:
    """Keeps one container running until it is released.

    ``container`` and ``tables`` are None while it does not run. ``given_up(supervisor)`` is called when the container
    belongs to another worker.
    """

    def __init__(self, container_id: int, shared: Shared, given_up: Callable[[ContainerSupervisor], None]) -> None:
        self.container_id = container_id
        self.container: Container | None = None
        self.tables: TableService | None = None
        self.failed: ContainerStatus | None = None
        self._shared = shared
        self._given_up = given_up
        self._floor = 0
        self._pauses = Pauses()
        self._damages = MemoryDamages()
        self._provable = True
        self._task: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._refusal: NotOwnerError | None = None
        self._opened: Container | None = None  # the last one, until it is closed
        self._released: asyncio.Task[None] | None = None
        self._closed_at_s: float | None = asyncio.get_running_loop().time()  # None: it is open
        self._why_closed = "its first opening has not ended"
        self._waits = False  # see NotOpen

    # -- running -------------------------------------------------------------------------------------------------

    async def open_first(self, *, on_full_disk: bool) -> None:
        """Open the container, then keep it running. Raises what prevents the opening, except unproved data.

        With `on_full_disk` a full disk is not raised either: the container is opened when there is room. Nor is an
        error that no code foresaw: it is of one container, and the attempt is repeated.
        """
        try:
            await self._open()
        except DiskFullError as error:
            if not on_full_disk:
                raise
            self._not_opened(error)
        except (TailraceError, OSError):
            raise
        except Exception as error:
            self._broke(error)
        self._tried.set()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def begin(self) -> None:
        """Keep the container running; return when the first attempt to open it has ended, with or without success.

        Raises:
            NotOwnerError: it belongs to another worker; this supervisor has given it up.
        """
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_from_the_start())
        await self._tried.wait()
        if self._refusal is not None:
            raise self._refusal

    async def _keep_from_the_start(self) -> None:
        try:
            belongs_here = await self._try_to_open()
        finally:
            self._tried.set()
        if belongs_here:
            await self._keep()

    async def _keep(self) -> None:
        while self._provable:  # never reopen on unproved data: an operator must look at it
            if self.container is not None:
                await self._watch(self.container)
                continue
            await asyncio.sleep(self._pauses.next_s())
            _logger.warning("container_reopening", container=self.container_id)
            if not await self._try_to_open():
                return

    async def _try_to_open(self) -> bool:
        """Try to open once; return False when the container belongs to another worker."""
        try:
            await self._open()
        except NotOwnerError as error:
            _logger.warning("container_given_up", container=self.container_id, reason=str(error))
            self._refusal = error
            self._given_up(self)
            return False
        except (TailraceError, OSError) as error:
            # Any of these may pass: a full disk, a log that cannot be read or locked at the moment.
            self._not_opened(error)
        except Exception as error:
            self._broke(error)
        return True

    def _not_opened(self, error: Exception) -> None:
        """Record why an attempt to open failed that is repeated.

        The status of a container that ran keeps why it stopped. One that never did has the last failure as its status:
        an alert waits for containers that do not run.
        """
        _logger.warning("container_not_opened", container=self.container_id, reason=str(error))
        if self._provable:  # as in `_broke`
            self._pauses.not_opened(error)
            self._why_closed, self._waits = str(error) or repr(error), is_waiting(error)
            if self.failed is None or not self.failed.epoch:
                self.failed = self._status("stopped")

    def _broke(self, error: Exception) -> None:
        """Record an error that no code foresaw: the attempt is repeated as after any other one.

        A running container that has one stops and is opened again, too. The loop's handler of exceptions gets it, as it
        would without this: it writes the traceback, and ends a simulation.
        """
        details = {"message": f"container {self.container_id} was not opened", "exception": error}
        asyncio.get_running_loop().call_exception_handler(details)
        _logger.warning("container_not_opened", container=self.container_id, reason=repr(error))
        if self._provable:  # else it failed while a container with unproved data was closed, which is the reason
            self._pauses.not_opened(error)
            self._why_closed, self._waits = repr(error), False
            self.failed = self._status("stopped")

    def _status(self, state: str) -> ContainerStatus:
        return ContainerStatus(self.container_id, state, self._why_closed, 0, 0, 0, 0, 0, 0)

    async def _watch(self, container: Container) -> None:
        """Return when the container has stopped by itself and is closed."""
        started_s = asyncio.get_running_loop().time()
        cause = await container.wait_stopped()
        ran_s = asyncio.get_running_loop().time() - started_s
        self._pauses.stopped(cause, ran_s)
        self.failed = container.status()
        self.container = self.tables = None
        self._closed_at_s, self._why_closed = asyncio.get_running_loop().time(), str(cause) or repr(cause)
        self._waits = is_waiting(cause)
        if isinstance(cause, FencedError):
            self._floor = max(self._floor, cause.epoch)
        if isinstance(cause, MemoryDamageError) and self._damages.may_recover(cause, ran_s):
            self.failed = replace(self.failed, reason=f"{cause}; the container is recovered from its log")
            _logger.error("container_memory_damaged", container=self.container_id, place=cause.place)
        elif isinstance(cause, DataError):
            self._provable = False
        try:
            await container.close()
        except Exception as error:
            # It has stopped: the next opening fences its log, or is refused while that is locked, and is repeated.
            _logger.exception("container_not_closed", container=self.container_id, reason=repr(error))
        self._opened = None

    async def _open(self) -> None:
        """Recover the container with a new epoch.

        Raises:
            NotOwnerError: it belongs to another worker. UnavailableError, OSError, StartError: a retry may succeed.
        """
        ports = self._shared.ports
        loop = asyncio.get_running_loop()
        for _ in range(limits.EPOCH_RETRIES_MAX):
            began_s = loop.time()
            epoch = await ports.next_epoch(self.container_id, self._floor)
            epoch_s = loop.time() - began_s
            async with self._shared.openings:
                container = Container(self.container_id, epoch, self._ports_of_container())
                try:
                    await container.start(ports.entropy.token(16))
                except FencedError as error:
                    await container.close()
                    self._floor = max(self._floor, error.epoch)
                    continue
                except EpochTooHighError as error:
                    await container.close()
                    if ports.lower_epoch is None:
                        raise
                    _logger.warning("epoch_too_high", container=self.container_id, reason=str(error))
                    await ports.lower_epoch(self.container_id, error.last)
                    continue
                except DataError as error:
                    self.failed = container.status()
                    self._why_closed, self._waits = str(error), False
                    self._provable = False
                    await container.close()
                    return
                except BaseException:
                    await container.close()  # unlocks its log and frees its cache entries
                    raise
            self.failed = None
            self.container = self._opened = container
            self.tables = TableService(container, self._shared.entries)
            self._closed_at_s = None
            epoch_ms, all_ms = round(epoch_s * 1000), round((loop.time() - began_s) * 1000)
            _logger.info("container_opened", container=self.container_id, epoch=epoch, epoch_ms=epoch_ms, all_ms=all_ms)
            return
        raise UnavailableError(
            f"container {self.container_id} lost {limits.EPOCH_RETRIES_MAX} epochs to other owners or Lease writers"
        )

    def _ports_of_container(self) -> ContainerPorts:
        shared, ports = self._shared, self._shared.ports
        return ContainerPorts(
            log=ports.open_log(self.container_id),
            store=ports.store,
            cache=shared.cache,
            clock=ports.clock,
            entropy=ports.entropy,
            cluster_id=ports.cluster_id,
            upload_slots=shared.upload_slots,
            upload_window=shared.upload_window,
            pages=shared.pages,
            arenas=shared.arenas,
            index_slots=shared.index_slots,
            untiered=shared.untiered,
            values=shared.values,
            recovery_lock=shared.turn,
            log_opened=partial(ports.log_opened, self.container_id),
        )

    # -- release -------------------------------------------------------------------------------------------------

    async def release(self, *, flush: bool) -> None:
        """Flush the container within a bound while it serves, then refuse its requests, and close its log.

        Without a flush its requests are refused at once; also while the object store does not answer, when writers
        would wait for its deadline.
        The release runs in a task of its own: it ends even if the caller is cancelled, and later calls wait for it.
        """
        if self._released is None:
            if self.container is not None and not flush:
                self.container.leave()
            self._released = asyncio.get_running_loop().create_task(self._release(flush))
        await asyncio.shield(self._released)

    async def _release(self, flush: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._tried.set()
        if self._opened is not None:
            await self._opened.close(flush=flush, at_once=self._store_is_silent())
            self._opened = None
        self.container = self.tables = None

    def _store_is_silent(self) -> bool:
        """Return whether the object store leaves requests of this worker without an answer, and others may go on."""
        contact = self._shared.ports.contact if self._shared.ports.moves else None
        now_s = asyncio.get_running_loop().time()
        return contact is not None and contact.silent_s(now_s) >= limits.WORKER_STORE_SILENT_REPORT_S

    @property
    def leaving(self) -> bool:
        """Return whether `release` was called."""
        return self._released is not None

    @property
    def refuses(self) -> bool:
        """Return whether requests are refused, because `release` was called and what it flushes first is in Tier 2."""
        return self.leaving and (self.container is None or self.container.leaving)

    @property
    def released(self) -> bool:
        """Return whether the release has ended."""
        return self._released is not None and self._released.done()

    def not_open(self) -> NotOpen | None:
        """Return for how long the container has not been open, and why; None when it is open."""
        if self._closed_at_s is None:
            return None
        now_s = asyncio.get_running_loop().time()
        return NotOpen(self.container_id, now_s - self._closed_at_s, self._why_closed, self._waits)

    def status(self) -> ContainerStatus | None:
        """Return the container's status, or why it stopped or did not open; None while it first opens in time.

        An attempt lasts for minutes while the object store is silent, and such a container does not run either.
        """
        status = self.failed if self.container is None else self.container.status()
        if status is None:
            late = self.not_open()
            if late is None or late.for_s <= limits.CONTAINER_NOT_OPEN_REPORT_S:
                return None
            status = self._status("opening")
        return replace(status, details={**status.details, "memory_damages": self._damages.recoveries})
