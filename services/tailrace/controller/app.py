"""Compose the controller of its stores, workflows, managers and calls (docs/controller.md)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits, names
from tailrace.common.auth import Account, Authorize, account_nothing, allow_all
from tailrace.common.errors import TailraceError
from tailrace.common.task_groups import gather_bounded
from tailrace.controller.calls.call import Core
from tailrace.controller.calls.services import ControllerServices
from tailrace.controller.instances.membership import Membership
from tailrace.controller.instances.table_contact import TableContact
from tailrace.controller.jobs.retention import RetentionJob
from tailrace.controller.jobs.scaling import ScalingJob
from tailrace.controller.jobs.sweep import SweepJob
from tailrace.controller.jobs.watermarks import WatermarkJob
from tailrace.controller.managers.groups import ReaderGroupManager
from tailrace.controller.managers.held_bytes import HeldBytes
from tailrace.controller.managers.retention import RetentionManager
from tailrace.controller.managers.scopes import ScopeManager
from tailrace.controller.managers.segment_rates import SegmentRates
from tailrace.controller.managers.stream_cuts import CutReader
from tailrace.controller.managers.streams import StreamManager
from tailrace.controller.managers.tables import TableManager
from tailrace.controller.managers.tag_lists import TagLists
from tailrace.controller.managers.transactions import TransactionManager
from tailrace.controller.managers.watermarks import WatermarkManager
from tailrace.controller.metadata.metadata_store import (
    CONTROLLERS_TABLE,
    OWN_TABLES,
    PENDING_TABLE,
    SCOPES_TABLE,
    RetryableMetadata,
)
from tailrace.controller.metadata.scope_store import ScopeStore
from tailrace.controller.metadata.stream_store import StreamStore
from tailrace.controller.metadata.tag_index import TagIndex
from tailrace.controller.scaling.times import ScalingTimes
from tailrace.controller.workflows.adoption import PendingWork
from tailrace.controller.workflows.context import INTENT_ID_BYTES, ControllerConfig, WorkflowContext
from tailrace.controller.workflows.driver import StreamDriver
from tailrace.controller.workflows.entities import EntityDriver
from tailrace.controller.workflows.segments import SegmentOperations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.common.ports import Clock, Entropy
    from tailrace.controller.jobs.scaling import RateSource
    from tailrace.controller.jobs.sweep import SegmentSource
    from tailrace.controller.managers.held_bytes import HeldBytesSource
    from tailrace.controller.managers.watermarks import MarkSegmentPort
    from tailrace.controller.metadata.ports import ContainerMap, MetadataStore, SegmentStorePort

_logger = structlog.get_logger()


class Load(NamedTuple):
    """What the workflows of a controller do. ``failed_steps`` counts from the start."""

    streams: int
    others: int
    slow_steps: int
    failed_steps: int
    open_transactions: int
    oldest_work_s: float


class Controller:
    """A controller without listeners.

    ``metadata`` stores all its records, ``segments`` carries segment requests, and ``container_map`` locates containers
    for clients. Without `rates` no stream scales by itself; without `listing` no segment without a record is deleted;
    without `held` no description says what a stream holds in Tier 2;
    without `mark_segments`, which opens the segment of a mark stream by its name, no watermark is written.
    After `start`, `services` answers calls; listeners (`ControllerServer`, the REST application) call `services`.
    `close` stops the tasks; another controller, or the next `start`, resumes their work.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        segments: SegmentStorePort,
        container_map: ContainerMap,
        clock: Clock,
        entropy: Entropy,
        config: ControllerConfig | None = None,
        *,
        rates: RateSource | None = None,
        listing: SegmentSource | None = None,
        held: HeldBytesSource | None = None,
        mark_segments: Callable[[str], MarkSegmentPort] | None = None,
        authorize: Authorize = allow_all,
        account: Account = account_nothing,
    ) -> None:
        self.contact = TableContact(metadata)
        """Who listens for clients runs its `watch`, and stops listening while no segment store answers."""
        metadata = RetryableMetadata(metadata)
        config = config or ControllerConfig()
        store = StreamStore(metadata, entropy, config.records_cached_max_bytes)
        scopes = ScopeStore(metadata, clock, entropy)
        operations = SegmentOperations(segments)
        context = WorkflowContext(
            store=store,
            scopes=scopes,
            tags=TagIndex(metadata, scopes, entropy),
            segments=operations,
            clock=clock,
            entropy=entropy,
            config=config,
            instance=entropy.token(INTENT_ID_BYTES).hex(),
        )
        endpoints: list[tuple[str, int]] = []
        membership = Membership(metadata, context.instance, endpoints, lapse_s=context.config.lapse_s)
        driver = StreamDriver(context)
        entities = EntityDriver(context)
        cuts = CutReader(store, operations)
        streams = StreamManager(context, driver, cuts)
        groups = ReaderGroupManager(context, entities, streams, cuts)
        tables = TableManager(context, entities)
        retention = RetentionManager(context, driver, streams, cuts)
        self._tag_lists = TagLists(context, membership)
        self._held_bytes = HeldBytes(held)
        segment_rates = SegmentRates(ScalingTimes(context.config.scaling_time_factor))
        core = Core(
            context=context,
            driver=driver,
            streams=streams,
            groups=groups,
            tables=tables,
            scopes=ScopeManager(context, entities, streams=streams, groups=groups, tables=tables),
            tag_lists=self._tag_lists,
            cuts=cuts,
            retention=retention,
            held_bytes=self._held_bytes,
            segment_rates=segment_rates,
            containers=container_map,
            membership=membership,
            endpoints=endpoints,
        )
        self._metadata = metadata
        self._scopes = scopes
        self._driver = driver
        self._entities = entities
        self._config = context.config
        self._membership = membership
        self.retention = RetentionJob(context, membership, retention)
        self.scaling = ScalingJob(context, membership, streams, rates, segment_rates)
        watermarks = None if mark_segments is None else WatermarkManager(context, mark_segments)
        self.watermarks = WatermarkJob(context, membership, watermarks)
        self.sweep = SweepJob(context, membership, TransactionManager(context, driver), driver, listing)
        self._pending = PendingWork(context, driver, entities)
        self._living: tuple[asyncio.Task[None], ...] = ()
        self._adopts = asyncio.Event()
        """Set when owners have changed, or an adoption has failed."""
        self._beating: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._troubles: dict[str, str] = {}
        self.services = ControllerServices(core, authorize, account)

    @property
    def ready(self) -> bool:
        """Whether all calls can be answered."""
        return self._ready.is_set() and self.contact.reached

    async def wait_ready(self, timeout_s: float | None) -> bool:
        """Wait until it was `ready` once, at most for the timeout (None: for ever); return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        return self.ready

    @property
    def instance(self) -> str:
        """This controller's name among all that run."""
        return self._membership.instance

    @property
    def active_streams(self) -> int:
        """Return how many streams have workflows, transactions or leases."""
        return self._driver.active_streams

    def load(self) -> Load:
        """Return what the workflows do now, for metrics."""
        return Load(
            streams=self._driver.active_streams,
            others=self._entities.active,
            slow_steps=self._driver.slow_steps,
            failed_steps=self._driver.failed_steps + self._entities.failed_steps,
            open_transactions=self._driver.open_transactions,
            oldest_work_s=self._driver.oldest_work_s(),
        )

    @property
    def trouble(self) -> str:
        """Why not all calls can be answered: what of the start has failed so far, and is repeated; else empty."""
        if self.contact.trouble:
            return self.contact.trouble
        if not self._troubles:
            return ""
        (part, reason), more = next(iter(self._troubles.items())), len(self._troubles) - 1
        return f"{part}: {reason}" + (f" (and {more} more)" if more else "")

    async def start(self) -> None:
        """Create the tables and the internal scope where missing, then resume unfinished workflows, also of others.

        Raises:
            UnavailableError: the metadata store does not answer.
        """
        await gather_bounded(OWN_TABLES, self._metadata.create_table)
        for step in self._first_steps().values():
            await step()
        self._begin()

    def start_when_possible(self) -> None:
        """Start in the background, and repeat what fails until it succeeds. `trouble` returns the reason.

        Until then a call succeeds if the records that it needs can be reached; it raises UnavailableError otherwise,
        also when its tables do not exist yet. `ready` becomes true when all calls can be answered, or when some tables
        can be reached and others could not for `limits.CONTROLLER_START_TIMEOUT_S`: a container that is away keeps
        no controller from serving the streams of the others.
        """
        self._starting = asyncio.get_running_loop().create_task(self._start_in_parts())

    async def _start_in_parts(self) -> None:
        loop = asyncio.get_running_loop()
        parts = [loop.create_task(self._start_part(table)) for table in OWN_TABLES]
        try:
            done, _ = await asyncio.wait(parts, timeout=limits.CONTROLLER_START_TIMEOUT_S)
            if not done:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            self._begin()
            await asyncio.wait(parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    def _first_steps(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """What a start does with a table, beside making it."""
        return {
            SCOPES_TABLE: lambda: self._scopes.create(names.INTERNAL_SCOPE),
            CONTROLLERS_TABLE: self._join,
            PENDING_TABLE: lambda: self._pending.adopt(lambda record: True, marks_end=self._config.sole),
        }

    async def _start_part(self, table: str) -> None:
        """Make a table and take its first step, until both have succeeded."""
        step = self._first_steps().get(table)
        pause_s = limits.WORKFLOW_BACKOFF_INITIAL_S
        while True:
            try:
                await self._metadata.create_table(table)
                if step is not None:
                    await step()
                self._troubles.pop(table, None)
                return
            except Exception as error:  # any error is repeated: without its tables no controller is of use
                self._note_trouble(table, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.WORKFLOW_BACKOFF_MAX_S)

    def _note_trouble(self, table: str, error: Exception) -> None:
        """Keep the reason of a failure, and log it when it is a new one."""
        known = isinstance(error, TailraceError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        if reason not in self._troubles.values():
            _logger.warning("controller_starts_in_part", table=table, reason=reason, exc_info=not known)
        self._troubles[table] = reason

    async def _join(self) -> None:
        if self._config.sole:
            self._membership.take_all()
            return
        await self._membership.beat()
        if self._beating is None:  # from here on others count on heartbeats, whatever else the start waits for
            self._beating = asyncio.get_running_loop().create_task(self._beat(), name="controller heartbeat")
        await self._membership.look()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._living = (loop.create_task(self._adopt(), name="controller adoption"),)
        if not self._config.sole:
            self._living += (loop.create_task(self._look(), name="controller membership"),)
        self.retention.start()
        self.scaling.start()
        self.watermarks.start()
        self.sweep.start()
        self._ready.set()

    async def _beat(self) -> None:
        """Write heartbeats; no other work of this controller delays them."""
        while True:
            await asyncio.sleep(self._config.beat_s)
            try:
                async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                    await self._membership.beat()
            except Exception as error:  # any error is repeated: a controller without heartbeats counts as dead
                self._log_failure("heartbeat_not_written", error)

    async def _look(self) -> None:
        """Look at the heartbeats of other controllers; an adoption that lasts keeps no death from being seen."""
        while True:
            await asyncio.sleep(self._config.look_s)
            try:
                async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                    if await self._membership.look():
                        self._adopts.set()
            except Exception as error:  # any error is repeated: without this task no dead controller is seen
                self._log_failure("controllers_not_seen", error)

    async def _adopt(self) -> None:
        """Adopt work that no controller runs: after a change of owners, and from time to time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.rescan_s):
                    await self._adopts.wait()
            self._adopts.clear()
            try:
                async with asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                    await self._pending.adopt(self._membership.is_to_adopt, marks_end=True)
            except Exception as error:  # any error is repeated: without this task no dead controller's work is adopted
                self._log_failure("work_not_adopted", error)
                self._adopts.set()
                await asyncio.sleep(self._config.look_s)

    @staticmethod
    def _log_failure(event: str, error: Exception) -> None:
        known = isinstance(error, TailraceError | TimeoutError)
        _logger.warning(event, reason=f"{type(error).__name__}: {error}", exc_info=not known)

    async def close(self) -> None:
        """Stop every task; another controller, or the next start, resumes their work."""
        if self._starting is not None:  # before the tasks that it begins
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        joined, tasks = self._beating is not None, [*self._living, *([self._beating] if self._beating else [])]
        self._living, self._beating = (), None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ready.clear()
        await self.retention.close()
        await self.scaling.close()
        await self.watermarks.close()
        await self.sweep.close()
        await self._tag_lists.close()
        await self._held_bytes.close()
        await self._entities.close()
        await self._driver.close()
        if joined:
            await self._membership.leave()
