"""Truncate streams where their retention policies demand it.

See "Pravega Stream Retention" and docs/controller.md#retention.

The decision is in `tailrace.controller.retention`; here are its records. Policy, subscribers and retention set are read
together with the root. A truncation is written under the root's version, and only if none of them has changed in a way
that matters: never by an earlier policy, and never against a subscriber that the decision did not know.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NoSuchSegmentError, WriteConflictError
from tailrace.common.stream_cut import CutOrder, compare_cuts
from tailrace.common.stream_policies import RetentionType
from tailrace.controller.managers.retention_places import CutMissingError, Places
from tailrace.controller.managers.sizes import SizeReader
from tailrace.controller.managers.subscribers import subscribers_in
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.model import WRITABLE_STATES, RecordedCut, StreamState
from tailrace.controller.metadata.ports import NOT_EXISTS
from tailrace.controller.metadata.records import (
    RetentionCut,
    RetentionRecord,
    RetentionTruncation,
    StreamRecord,
    SubscribersRecord,
)
from tailrace.controller.metadata.transitions import require, truncating
from tailrace.controller.retention.clock import judged
from tailrace.controller.retention.decision import Truncation, count_before, decide
from tailrace.controller.retention.lower_bound import earliest
from tailrace.controller.retention.retention_set import is_due, thinned, time_of_next
from tailrace.controller.workflows.context import segment_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tailrace.common.stream_policies import RetentionPolicy
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.managers.streams import StreamManager
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.retention.decision import Cut, Place
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Application:
    """What one application of a stream's policy came to."""

    truncation: RetentionTruncation | None = None
    """None: nothing was truncated."""
    trouble: str = ""
    """Why the policy is still to be applied: the stream ran a workflow, or changed meanwhile. Empty: it was applied."""
    clock_lapse_ms: int = 0
    """How far the clock is from the last application, when its time did not count yet; 0: it counted."""
    retained: bool = True
    """False: the stream was deleted or has no policy, so that nothing is to be applied to it."""


@dataclass(slots=True)
class _Stream:
    """A stream with a policy that runs no workflow, and what was read of it so far."""

    key: StreamKey
    root: StreamRecord
    snapshot: Snapshot
    """The root, the retention set and the index of subscribers, as they were read together when it began."""
    policy: RetentionPolicy
    recorded: tuple[RecordedCut, ...]
    applied_ms: int
    seen_ms: int
    now_ms: int
    """When the application began. All of its decisions are for this time."""
    places: Places
    edited: bool = False
    """Whether it changed the retention set since, so that the snapshot has an earlier one."""

    @property
    def record_key(self) -> bytes:
        return self.key.retention(self.root.incarnation)


class RetentionManager:
    """Apply retention policies to streams."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver, streams: StreamManager, cuts: CutReader) -> None:
        self._context = context
        self._store = context.store
        self._driver = driver
        self._streams = streams
        self._cuts = cuts
        self._sizes = SizeReader(context.store, context.segments)
        self.requests: asyncio.Queue[StreamKey] = asyncio.Queue(limits.RETENTION_REQUESTS_MAX)
        """Streams whose policy the job is to apply before the next round."""

    def request(self, key: StreamKey) -> bool:
        """Have a policy applied soon, after a change. Returns False when too many wait: the next round applies it."""
        try:
            self.requests.put_nowait(key)
        except asyncio.QueueFull:
            return False
        return True

    async def apply(self, key: StreamKey) -> Application:
        """Record a cut at the tail when it is time, and truncate the stream where its policy demands it.

        A stream that has no policy or is sealed has nothing to apply; one that runs a workflow is left alone. At a time
        that does not count yet (`tailrace.controller.retention.clock`) no cut is recorded and nothing goes by age.

        Raises:
            NoSuchStreamError: it is being created, or was deleted meanwhile. UnavailableError. BadRequestError: a
            subscriber's cut names a segment that the stream does not have. DeadlineError: the truncation continues.
        """
        stream = await self._begin(key)
        if isinstance(stream, Application):
            return stream
        lapse_ms = await self._judge_clock(stream)
        if not lapse_ms:
            await self._record_tail(stream)
        by_age = stream.policy.kind is RetentionType.TIME
        while True:
            try:
                head = await self._cuts.head(key, stream.root)
                truncation = None if lapse_ms and by_age else await self._decide(stream, head)
                made = await self._truncate(stream, truncation, head) if truncation is not None else None
                if made is not None and truncation is not None:
                    await self._forget(stream, truncation.cut)
                elif stream.root.truncation is not None:  # no cut lies before the beginning of the stream
                    await self._forget(stream, head)
            except CutMissingError as missing:
                await self._drop(stream, [missing.recorded])
                continue
            except BadRequestError as error:
                if await self._has_changed(stream):  # a subscriber's cut may name a segment that was created meanwhile
                    return Application(trouble=f"{error}, or had not when the decision began")
                raise
            if not lapse_ms:
                await self._note_applied(stream)
            if truncation is not None and made is None:
                return Application(trouble="policy, head or subscribers changed, or a workflow began, again and again")
            return Application(made, clock_lapse_ms=lapse_ms)

    async def record(self, key: StreamKey, incarnation: int) -> RetentionRecord:
        """Return the retention set, the last truncation by policy, and when the policy was applied last."""
        item = key.retention(incarnation)
        return (await self._store.read(key, [item])).get(RetentionRecord, item) or RetentionRecord()

    # -- reading

    @property
    def _period_ms(self) -> int:
        return round(1000 * self._context.config.retention_period_s)

    async def _begin(self, key: StreamKey) -> _Stream | Application:
        root, snapshot = await self._read(key)
        if root is None or root.state is StreamState.DELETED or root.config.retention is None:
            return Application(retained=False)
        if require(root, key).state not in WRITABLE_STATES:
            return Application()
        if not _is_at_rest(root):
            return Application(trouble=f"the stream runs a workflow ({root.state})")
        record = snapshot.get(RetentionRecord, key.retention(root.incarnation)) or RetentionRecord()
        places = Places(self._store, self._cuts, self._sizes, key, root)
        now_ms, policy = self._context.clock.now_ms(), root.config.retention
        return _Stream(key, root, snapshot, policy, record.recorded, record.applied_ms, record.seen_ms, now_ms, places)

    async def _read(self, key: StreamKey) -> tuple[StreamRecord | None, Snapshot]:
        """Return the root, and the records that were read together with it: those of its incarnation.

        Raises:
            WriteConflictError: the stream is deleted and created again and again.
        """
        known = self._store.remembered(key, [key.root])
        root = None if known is None else known.get(StreamRecord, key.root)
        for _ in range(limits.METADATA_READS_ADDED_MAX):
            incarnation = 0 if root is None else root.incarnation
            snapshot = await self._store.read(key, [key.root, key.retention(incarnation), key.subscribers])
            root = snapshot.get(StreamRecord, key.root)
            if root is None or root.incarnation == incarnation:
                return root, snapshot
        raise WriteConflictError(f"stream {key} was created again and again while it was read; retry")

    async def _has_changed(self, stream: _Stream) -> bool:
        root = await self._store.load(stream.key)
        return root is None or root.active_epoch != stream.root.active_epoch

    # -- deciding

    async def _decide(self, stream: _Stream, head: Cut) -> Truncation | None:
        """Return where to truncate, beyond the head; None for nowhere."""
        places = stream.places
        moved: Cut | None = None

        async def head_position() -> Cut:
            nonlocal moved
            if moved is None:  # most streams have too little for any truncation, and no subscriber
                moved = await places.positions(head)
            return moved

        async def place(cut: Cut) -> Place:
            return await places.place_of_head(cut, await head_position())

        lowest: Cut | None = None
        async for _, subscriber in subscribers_in(self._context, stream.key, stream.root.incarnation, stream.snapshot):
            cut = subscriber.cut
            if not cut:
                continue
            await places.note_ranges(cut)
            lowest = cut if lowest is None else earliest([lowest, cut], places.ranges)
            await asyncio.sleep(0)  # a thousand subscribers of a thousand segments each take a second
        bound, head_bytes = None, 0
        if lowest is not None:
            bound = await place(lowest)
            head_bytes = await self._sizes.before(stream.key, stream.root, await head_position())
        deciding = decide(stream.policy, stream.now_ms, stream.recorded, bound, places.ranges, head_bytes)
        chosen = await places.answer(deciding, place)
        if chosen is None or compare_cuts(await head_position(), chosen.cut, places.ranges) is not CutOrder.BEFORE:
            return None
        return chosen

    # -- changing

    async def _record_tail(self, stream: _Stream) -> None:
        """Add a cut at the tail to the retention set when it is time."""
        key, root = stream.key, stream.root
        epoch = await self._store.active_epoch(key, root)
        try:
            lengths = await self._context.segments.lengths(segment_names(key, epoch.segments))
        except NoSuchSegmentError as error:
            _LOG.warning("retention_without_tail", stream=str(key), reason=str(error))
            return
        cut = {segment.identifier: length for segment, length in zip(epoch.segments, lengths, strict=True)}
        stream.places.lengths = cut
        size_bytes, now_ms = root.sealed_bytes + sum(lengths), self._context.clock.now_ms()
        period_ms = self._period_ms
        if not is_due(stream.recorded, now_ms, size_bytes, period_ms):
            return
        kept = thinned(stream.recorded)
        await self._drop(stream, [each for each in stream.recorded if each not in kept])

        def add(record: RetentionRecord) -> tuple[RetentionRecord, RetentionCut | None]:
            if not is_due(record.recorded, now_ms, size_bytes, period_ms):
                return record, None  # another controller recorded one meanwhile
            newest = RecordedCut(record.next_number, time_of_next(record.recorded, now_ms), size_bytes)
            changed = msgspec.structs.replace(
                record, recorded=(*record.recorded, newest), next_number=record.next_number + 1
            )
            return changed, RetentionCut(dict(sorted(cut.items())))

        await self._edit_with_cut(stream, add)

    def _known(self, stream: _Stream) -> Snapshot | None:
        """Return the records as they were read when the application began, with what it has written since."""
        if not stream.edited:
            return stream.snapshot
        written = self._store.remembered(stream.key, [stream.record_key])
        if written is None:
            return None
        return Snapshot(stream.key.table, {**stream.snapshot.stored, **written.stored})

    async def _judge_clock(self, stream: _Stream) -> int:
        """Return how far the time is from that of the last application, if it does not count yet; else 0."""
        found = judged(stream.now_ms, stream.applied_ms, stream.seen_ms, stream.recorded, self._period_ms)
        if found.seen_ms and found.seen_ms != stream.seen_ms:
            await self._edit(stream, lambda record: msgspec.structs.replace(record, seen_ms=found.seen_ms))
        return 0 if found.counts else found.lapse_ms

    async def _note_applied(self, stream: _Stream) -> None:
        """Store that the policy was applied, unless that was so just before. A round that fails stores nothing.

        A time of the future is replaced: a clock that was wrong stored it.
        """
        now_ms = stream.now_ms
        if stream.seen_ms or not 0 <= now_ms - stream.applied_ms < self._period_ms / 2:
            await self._edit(stream, lambda record: msgspec.structs.replace(record, applied_ms=now_ms, seen_ms=0))

    async def _truncate(self, stream: _Stream, truncation: Truncation, head: Cut) -> RetentionTruncation | None:
        """Truncate the stream, unless something has changed that the decision depends on; return what was freed.

        Raises:
            BadRequestError: the cut lies beyond the end of a segment.
        """
        key, root = stream.key, stream.root
        await self._streams.check_truncation(key, root, truncation.cut)
        before_bytes = await self._sizes.before(key, root, truncation.cut)
        freed_bytes = before_bytes - await self._sizes.before(key, root, head)
        made = RetentionTruncation(self._context.clock.now_ms(), truncation.reason, before_bytes, freed_bytes)
        intent_id = self._context.new_id()

        def begin(now: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
            if now is None or now.incarnation != root.incarnation or not _is_at_rest(now):
                return Change(False)
            if now.config.retention != stream.policy or now.truncation != root.truncation:
                return Change(False)
            if not _has_same_subscribers(stream, snapshot):
                return Change(False)
            record = snapshot.get(RetentionRecord, stream.record_key) or RetentionRecord()
            # A group that publishes its first cut writes the index, and not the root.
            index = snapshot.get(SubscribersRecord, key.subscribers)
            return Change(
                True,
                {
                    **({} if index is None else {key.subscribers: index}),
                    key.root: truncating(now, truncation.cut, intent_id, truncation.reason),
                    stream.record_key: msgspec.structs.replace(record, last=made),
                },
            )

        async with self._driver.enlisted(key):
            if not await self._store.change(key, [key.subscribers, stream.record_key], begin):
                return None
        await self._driver.wait(key, intent_id)
        _LOG.info("stream_truncated", stream=str(key), reason=str(truncation.reason), freed_bytes=freed_bytes)
        return made

    async def _forget(self, stream: _Stream, head: Cut) -> None:
        """Remove the recorded cuts before the head, which no later truncation can be at."""
        if not stream.recorded:
            return
        moved = await stream.places.positions(head)
        counting = count_before(stream.recorded, moved, stream.places.ranges)
        count = await stream.places.answer(counting, stream.places.place)
        await self._drop(stream, stream.recorded[:count])

    async def _drop(self, stream: _Stream, gone: Collection[RecordedCut]) -> None:
        """Remove cuts, first themselves and then from the list: a cut that is not listed would stay for ever."""
        if not gone:
            return
        incarnation = stream.root.incarnation
        await self._store.remove(stream.key, [stream.key.retention_cut(incarnation, each.number) for each in gone])
        await self._edit(stream, lambda record: _without(record, gone))

    async def _edit(self, stream: _Stream, edit: Callable[[RetentionRecord], RetentionRecord]) -> None:
        await self._edit_with_cut(stream, lambda record: (edit(record), None))

    async def _edit_with_cut(
        self, stream: _Stream, edit: Callable[[RetentionRecord], tuple[RetentionRecord, RetentionCut | None]]
    ) -> None:
        """Change the retention set, and add a cut under the number that was the next one."""
        key, incarnation = stream.key, stream.root.incarnation

        def change(now: StreamRecord | None, snapshot: Snapshot) -> Change[RetentionRecord]:
            root = require(now, key)
            before = snapshot.get(RetentionRecord, stream.record_key) or RetentionRecord()
            if root.incarnation != incarnation or root.state is StreamState.DELETING:
                return Change(before)
            after, cut = edit(before)
            if after == before:
                return Change(before)
            added = {} if cut is None else {key.retention_cut(incarnation, before.next_number): cut}
            # What is new also under the root's version: else a deleted stream could leave it behind. What a deletion
            # finds it removes, and then nothing is written under its version.
            is_new = added or snapshot.version(stream.record_key) == NOT_EXISTS
            return Change(after, {**({key.root: root} if is_new else {}), stream.record_key: after, **added})

        after = await self._store.change(key, [stream.record_key], change, first=self._known(stream))
        stream.edited = True
        stream.recorded, stream.applied_ms, stream.seen_ms = after.recorded, after.applied_ms, after.seen_ms


def _has_same_subscribers(stream: _Stream, snapshot: Snapshot) -> bool:
    """Return whether the decision knew all of them, and none was deleted and made again, perhaps with an earlier cut.

    A group writes the index when it begins or ends to subscribe, and with its first cut.
    """
    return snapshot.version(stream.key.subscribers) == stream.snapshot.version(stream.key.subscribers)


def _is_at_rest(root: StreamRecord) -> bool:
    """Return whether the stream runs no workflow, so that the sizes of all sealed segments are recorded."""
    return root.state is StreamState.ACTIVE and root.intent is None and root.rolling is None


def _without(record: RetentionRecord, gone: Collection[RecordedCut]) -> RetentionRecord:
    numbers = {each.number for each in gone}
    left = tuple(each for each in record.recorded if each.number not in numbers)
    return msgspec.structs.replace(record, recorded=left)
