"""Apply the retention policies of all streams in the buckets of this controller, each period.

See "Pravega Stream Retention" and docs/controller.md#retention.

Streams with policies are listed in a table of their own, so that a round reads no others.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

import structlog

from tailrace.common import limits
from tailrace.common.call_deadline import request_deadline
from tailrace.common.errors import BadRequestError, NoSuchStreamError, TailraceError, WriteConflictError
from tailrace.controller.managers.retention import Application
from tailrace.controller.metadata.metadata_store import RETENTION_TABLE, bucket_of
from tailrace.controller.metadata.reading import readable
from tailrace.controller.metadata.records import RetainedStream
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.workflows.slots import StepSlots

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.managers.retention import RetentionManager
    from tailrace.controller.metadata.ports import Stored
    from tailrace.controller.workflows.context import WorkflowContext

_LOG = structlog.get_logger(__name__)


class _Repeat(NamedTuple):
    """A request that is made again when the timer ends, after that pause, and how often it was incomplete."""

    timer: asyncio.TimerHandle
    pause_s: float
    incomplete: int


def _by_table(entries: Sequence[Stored], buckets: Collection[int]) -> list[tuple[StreamKey, Stored]]:
    """Return the listed streams of these buckets, those of one table together: their changes share appends to it."""
    found: list[tuple[int, StreamKey, Stored]] = []
    for entry in entries:
        record = readable(RetainedStream, RETENTION_TABLE, entry)
        if record is not None and (bucket := bucket_of(record.scope, record.stream)) in buckets:
            found.append((bucket, StreamKey(record.scope, record.stream), entry))
    return [(key, entry) for _, key, entry in sorted(found, key=lambda each: each[:2])]


class RetentionJob:
    """A task that applies policies until it is closed."""

    def __init__(self, context: WorkflowContext, membership: Membership, retention: RetentionManager) -> None:
        self._context = context
        self._membership = membership
        self._retention = retention
        self._slots = StepSlots(limits.RETENTION_STREAMS_CONCURRENT_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self._repeats: dict[StreamKey, _Repeat] = {}
        self.rounds = 0
        """Rounds through all buckets of this controller that ended, since the start."""
        self.truncations = 0
        self.freed_bytes = 0
        self.failures = 0
        """Streams whose policy could not be applied, counted in each round."""
        self.clock_waits = 0
        """Applications that deleted nothing by age, because a later round is to confirm the time."""
        self._clock_waits_reported = 0
        self._clock_lapse_ms = 0

    def start(self) -> None:
        """Begin. The first round begins when the controller has served for a short time."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._run(), name="retention"),
            *(
                loop.create_task(self._answer_requests(), name=f"retention {number}")
                for number in range(limits.RETENTION_REQUESTS_CONCURRENT_MAX)
            ),
        ]

    @property
    def repeats(self) -> int:
        """Requests that could not be carried out yet, and are repeated."""
        return len(self._repeats)

    async def close(self) -> None:
        """Stop. A truncation that has begun is continued by the stream's workflow."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in list(self._repeats):
            self._forget(key)

    async def _run(self) -> None:
        loop, config = asyncio.get_running_loop(), self._context.config
        served: frozenset[int] = frozenset()
        next_s = loop.time() + min(limits.RETENTION_START_S, config.retention_period_s)
        retry_s = next_s
        await asyncio.sleep(next_s - loop.time())
        while True:
            mine = self._membership.own_buckets
            due = loop.time() >= next_s
            if loop.time() >= retry_s and mine and (due or mine - served):
                began_s = loop.time()
                try:
                    await self._round(mine if due else mine - served)
                    served = mine
                    if due:
                        self.rounds += 1
                        next_s = began_s + config.retention_period_s
                except Exception as error:  # any error is repeated: without this task no policy is applied
                    known = isinstance(error, TailraceError | TimeoutError)
                    reason = f"{type(error).__name__}: {error}"
                    _LOG.warning("retention_round_failed", reason=reason, exc_info=not known)
                    retry_s = loop.time() + min(limits.RETENTION_RETRY_S, config.retention_period_s)
            served &= mine
            # What is due and could not begin has no bucket: only a look at the others can change that.
            until_due_s = max(next_s, retry_s) - loop.time()
            await asyncio.sleep(min(config.look_s, until_due_s) if until_due_s > 0 else config.look_s)

    async def _answer_requests(self) -> None:
        while True:
            key = await self._retention.requests.get()
            if not await self._apply(key):
                self._repeat(key)
            self._report_clock()

    def _forget(self, key: StreamKey) -> None:
        """Repeat a stream's request no more."""
        repeat = self._repeats.pop(key, None)
        if repeat is not None:
            repeat.timer.cancel()

    def _repeat(self, key: StreamKey, *, incomplete: int = 0) -> None:
        """Ask again after a pause, twice as long each time; the next round does what there is no room for."""
        pause_s, before = limits.RETENTION_REQUEST_RETRY_S, self._repeats.get(key)
        if before is not None:
            pause_s, incomplete = min(2 * before.pause_s, limits.RETENTION_RETRY_S), before.incomplete + incomplete
            self._forget(key)
        if len(self._repeats) < limits.RETENTION_REQUESTS_MAX:
            timer = asyncio.get_running_loop().call_later(pause_s, self._ask_again, key)
            self._repeats[key] = _Repeat(timer, pause_s, incomplete)

    def _ask_again(self, key: StreamKey) -> None:
        if not self._retention.request(key):
            self._repeat(key)

    async def _round(self, buckets: Collection[int]) -> None:
        """Apply the policies of all listed streams of these buckets. The others do not wait for slow ones."""
        metadata, token = self._context.store.metadata, b""
        under_way: set[asyncio.Task[bool]] = set()
        room = asyncio.Semaphore(limits.RETENTION_STREAMS_UNDER_WAY_MAX)

        def ended(task: asyncio.Task[bool]) -> None:
            under_way.discard(task)
            room.release()

        try:
            while True:
                entries, token = await metadata.entries(RETENTION_TABLE, limits.METADATA_TABLE_PAGE_ENTRIES, token)
                if not entries:
                    break
                for key, entry in _by_table(entries, buckets):
                    await room.acquire()
                    task = asyncio.get_running_loop().create_task(self._apply(key, entry), name=f"retention of {key}")
                    under_way.add(task)
                    task.add_done_callback(ended)
            if under_way:
                await asyncio.wait(set(under_way))
        finally:
            left = list(under_way)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        self._report_clock()

    def _report_clock(self) -> None:
        """Report, once for a round or request, that the times of applications are far from those of the last ones."""
        streams = self.clock_waits - self._clock_waits_reported
        if streams:
            self._clock_waits_reported = self.clock_waits
            _LOG.warning(
                "retention_waits_for_clock",
                streams=streams,
                lapse_s=round(self._clock_lapse_ms / 1000),
                reason="the clock is far from the last application of a policy; deletes by age from the next round on",
            )

    async def _apply(self, key: StreamKey, entry: Stored | None = None) -> bool:
        """Apply a stream's policy; take a stream without one from the list, where it is `entry`.

        One that could not be applied yet, because the stream was changing, is repeated soon. A failure is logged: other
        streams go on, and the next round tries again. Returns False when a request is worth an earlier repetition.
        """
        made = Application()
        try:
            config = self._context.config
            async with self._slots.slot(), asyncio.timeout(config.blocking_deadline_s):
                with request_deadline(config.requests_deadline_s):
                    made = await self._retention.apply(key)
                    if entry is not None and not made.retained:
                        await self._unlist(entry)
            if made.truncation is not None:
                self.truncations += 1
                self.freed_bytes += made.truncation.freed_bytes
            if made.clock_lapse_ms:
                self.clock_waits += 1
                self._clock_lapse_ms = made.clock_lapse_ms
        except NoSuchStreamError:
            pass  # deleted just now, or created; the next round takes a deleted one from the list
        except Exception as error:  # any error concerns this stream only
            self._report(key, f"{type(error).__name__}: {error}", known=isinstance(error, TailraceError | TimeoutError))
            if not isinstance(error, BadRequestError):  # a subscriber's cut is no position: that stays so for long
                return False
        if made.trouble:
            self._repeat(key, incomplete=1)
            self._report_incomplete(key, made.trouble, in_round=entry is not None)
        else:
            self._forget(key)
        return True

    def _report_incomplete(self, key: StreamKey, trouble: str, *, in_round: bool) -> None:
        """Report a policy that could not be applied for long: once, and in each later round."""
        repeat = self._repeats.get(key)
        times, most = 0 if repeat is None else repeat.incomplete, limits.RETENTION_INCOMPLETE_MAX
        if repeat is None or times == most or (times > most and in_round):
            self._report(key, trouble)

    def _report(self, key: StreamKey, reason: str, *, known: bool = True) -> None:
        self.failures += 1
        _LOG.warning("retention_failed", stream=str(key), reason=reason, exc_info=not known)

    async def _unlist(self, entry: Stored) -> None:
        """Take a stream from the list, unless a workflow has listed it again since the list was read."""
        with contextlib.suppress(WriteConflictError):
            await self._context.store.metadata.remove(RETENTION_TABLE, [(entry.key, entry.version)])
