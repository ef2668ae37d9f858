"""Delete segments that no record names, and entries of deleted streams, in the buckets of this controller.

See docs/controller.md#segments-that-no-record-names, ADR 0030. A controller that was paused can create segments of a
stream, or of a transaction, that has ended since.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, NoSuchStreamError, TailraceError
from tailrace.common.names import segment_epoch
from tailrace.common.task_groups import run_all
from tailrace.controller.jobs.entries import EntrySweep
from tailrace.controller.jobs.lists import LostListings
from tailrace.controller.metadata.metadata_store import bucket_of
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.sweep.decision import (
    Fate,
    fate_of_segment,
    fate_of_transaction,
    name_by_controller,
    transaction_of,
)
from tailrace.controller.sweep.sightings import Sightings
from tailrace.controller.workflows.slots import StepSlots

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tailrace.common.names import SegmentName
    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.managers.transactions import TransactionManager
    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver

_LOG = structlog.get_logger(__name__)


class SegmentSource(Protocol):
    """Names of all segments; ``tailrace.client.connections.listing.SegmentLister`` satisfies it."""

    @property
    def container_count(self) -> int:
        """Return the number of containers."""
        ...

    async def page(self, container_id: int, after: int) -> tuple[Sequence[str], int | None]:
        """Return names of segments with an id above `after` (-1: all), and where the next page begins; None: nowhere.

        Raises UnavailableError.
        """
        ...


class SweepJob:
    """A task that looks for segments without a record until it is closed."""

    def __init__(
        self,
        context: WorkflowContext,
        membership: Membership,
        transactions: TransactionManager,
        driver: StreamDriver,
        source: SegmentSource | None,
    ) -> None:
        self._context = context
        self._membership = membership
        self._transactions = transactions
        self._source = source
        self.entries = EntrySweep(context)
        self.lists = LostListings(context, driver)
        self._slots = StepSlots(limits.SEGMENT_SWEEP_STREAMS_CONCURRENT_MAX)
        self._sightings = Sightings(limits.SEGMENT_SWEEP_REMEMBERED_MAX)
        self._task: asyncio.Task[None] | None = None
        self.rounds = 0
        """Looks at the segments of all containers that ended, since the start."""
        self.deleted = 0
        self.kept = 0
        """Segments that no record names and that have bytes, counted in each round."""
        self.failures = 0
        """Containers that were not listed and streams that could not be looked at, counted in each round."""

    @property
    def nameless(self) -> int:
        """Return how many segments no record named at the last look."""
        return len(self._sightings)

    def start(self) -> None:
        """Begin, if there is a source of names."""
        if self._source is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._source), name="segment sweep")

    async def close(self) -> None:
        """Stop. What was seen is forgotten."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, source: SegmentSource) -> None:
        while True:
            await asyncio.sleep(self._context.config.sweep_period_s)
            await self.round(source)

    async def round(self, source: SegmentSource) -> None:
        """Look at all segments once; delete those that were seen without a record for long enough."""
        mine = self._membership.own_buckets
        if not mine:
            return
        found: set[str] = set()
        complete = True
        self.lists.begin_round()
        for container_id in range(source.container_count):
            try:
                await self._look(source, container_id, mine, found)
            except Exception as error:  # any error is repeated: without this task nothing is deleted
                complete = False
                self._fail("segments_not_listed", error, container=container_id)
        try:
            await self.entries.round(mine)
        except Exception as error:
            complete = False
            self._fail("scopes_not_listed", error)
        if complete:
            self._sightings.keep(found)
            self.rounds += 1

    async def _look(self, source: SegmentSource, container_id: int, buckets: Collection[int], found: set[str]) -> None:
        """Look at a container's segments; add those that no record names to `found`."""
        after: int | None = -1
        while after is not None:
            listed, after = await source.page(container_id, after)
            streams: dict[StreamKey, dict[str, SegmentName]] = {}
            for segment in listed:
                name = name_by_controller(segment)
                if name is not None and bucket_of(name.scope, name.stream) in buckets:
                    streams.setdefault(StreamKey(name.scope, name.stream), {})[segment] = name
            await run_all(*(self._look_at(key, names, found) for key, names in streams.items()))

    async def _look_at(self, key: StreamKey, segments: Mapping[str, SegmentName], found: set[str]) -> None:
        """Look at segments of one stream. A failure is logged: other streams go on."""
        try:
            async with self._slots.slot(), asyncio.timeout(limits.WORKFLOW_STEP_DEADLINE_S):
                root = await self._context.store.load(key)
                await self.lists.look(key, root)
                try:
                    await self._sweep(key, root, segments, found)
                except (CorruptionError, NoSuchStreamError):
                    if await self._context.store.load(key) == root:
                        raise
                    # deleted since its root was read, with the records of its epochs; the next round decides
        except Exception as error:  # any error concerns this stream only
            self._fail("segment_sweep_failed", error, stream=str(key))

    async def _sweep(
        self, key: StreamKey, root: StreamRecord | None, segments: Mapping[str, SegmentName], found: set[str]
    ) -> None:
        first = await self._epoch(key, root, 0)
        for segment, name in segments.items():
            fate = await self._fate(key, root, first, name)
            if fate is Fate.KEEP:
                self._sightings.forget(segment)
                continue
            found.add(segment)
            seen_s = self._sightings.see(segment, asyncio.get_running_loop().time())
            if seen_s is not None and seen_s >= self._context.config.sweep_age_s:
                await self._delete(segment, fate, seen_s)

    async def _fate(self, key: StreamKey, root: StreamRecord | None, first: Epoch | None, name: SegmentName) -> Fate:
        transaction_id = transaction_of(name)
        if transaction_id is None:
            own = await self._epoch(key, root, segment_epoch(name.identifier))
            return fate_of_segment(name, root, first, own)
        exists = first is not None
        state = await self._transactions.state(key, transaction_id) if exists else None
        return fate_of_transaction(name, root, first, state)

    async def _epoch(self, key: StreamKey, root: StreamRecord | None, number: int) -> Epoch | None:
        """Return an epoch of a stream that exists; None when it does not have it."""
        gone = root is None or root.state in (StreamState.CREATING, StreamState.DELETING, StreamState.DELETED)
        if gone or root is None or number > root.active_epoch:
            return None
        return await self._context.store.epoch(key, root, number)

    async def _delete(self, segment: str, fate: Fate, seen_s: float) -> None:
        (info,) = await self._context.segments.infos([segment])
        length = 0 if info is None else info.length
        if length and fate is Fate.DELETE_IF_EMPTY:
            self.kept += 1
            _LOG.error("segment_without_record_has_data", segment=segment, length_bytes=length)
            return
        await self._context.segments.delete([segment])
        self._sightings.forget(segment)
        if info is not None:
            self.deleted += 1
            _LOG.info(
                "segment_without_record_deleted", segment=segment, length_bytes=length, seen_for_s=round(seen_s, 1)
            )

    def _fail(self, event: str, error: Exception, **place: object) -> None:
        self.failures += 1
        known = isinstance(error, TailraceError | TimeoutError)
        _LOG.warning(event, reason=f"{type(error).__name__}: {error}", exc_info=not known, **place)
