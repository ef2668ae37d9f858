"""The object log: Tier 1 on an object store, one object per frame (docs/design.md#object-log, docs/formats/log.md).

An acknowledged frame is safe: the owner acknowledges it after its whole prefix is stored *and then* a read of
``claims/<epoch + 1>`` finds nothing. A later owner creates that claim before it reads its first object. So it had not
begun to read when the frame was stored, and finds it. Frames that an owner stores after the claim are never
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    DataError,
    FencedError,
    IllegalStateError,
    OverloadedError,
    TailraceError,
    UnavailableError,
)
from tailrace.log import frames
from tailrace.log.base import SequencedLog
from tailrace.log.claims import Claim, Claims
from tailrace.log.frame_index import FrameIndex
from tailrace.log.frames import FrameIdentity, FrameKind, StartRecord
from tailrace.log.object_cleaner import ObjectCleaner
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_recovery import WINDOW_FRAMES, ObjectDecision, lost_epoch
from tailrace.log.object_requests import ObjectRequests, pause_s
from tailrace.log.object_scan import ObjectScanner
from tailrace.log.port import Buffer, RecoveredFrame

if TYPE_CHECKING:
    from tailrace.storage.port import ObjectStore
    from tailrace.storage.put_window import PutWindow


@dataclass(slots=True)
class _Append:
    """An append that is not acknowledged yet."""

    sequence: int
    payload: list[memoryview]
    length_bytes: int
    future: asyncio.Future[int]
    stored: bool = False


class ObjectLog(SequencedLog):
    """A DurableLog of one container in an object store; see the port for the contract.

    The store must have passed `probe.probe_conditions`. While it does not answer, the log does not fail: it retries
    frames under their keys, and appends wait. ``opened_epoch`` is the last epoch for which the log is known to have
    been opened; a log that ends before it is refused. The logs of a process share ``scan_slots``
    (`object_scan.scan_slots`) and ``put_window``. Construct it inside a running event loop.
    """

    def __init__(
        self,
        store: ObjectStore,
        container: int,
        *,
        max_frame_bytes: int = limits.LOG_FRAME_MAX_BYTES,
        opened_epoch: int = 0,
        scan_slots: asyncio.Semaphore | None = None,
        put_window: PutWindow | None = None,
    ) -> None:
        super().__init__(max_frame_bytes)
        self._opened_epoch = opened_epoch
        self._keys = LogKeys(container)
        self._requests = ObjectRequests(store, put_window)
        self._claims = Claims(self._requests, self._keys)
        self._scanner = ObjectScanner(self._requests, self._keys, scan_slots)
        self._identity = FrameIdentity(container, 0, b"")
        self._index = FrameIndex()
        self._cleaner = ObjectCleaner(self._requests, self._keys)
        self._opened = False
        self._begun = False
        self._queue: deque[_Append] = deque()  # not sent yet
        self._flight: deque[_Append] = deque()  # sent or stored, not acknowledged
        self._puts = 0
        self._stored_through = -1
        self._acknowledged_through = -1
        self._marked_log_start = 0
        self._marks = 0
        self._stored_bytes = 0
        self._looking = False
        self._truncating = False
        self._owned_at_s = float("-inf")
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their beginning
        self._failure: TailraceError | None = None

    # -- properties ----------------------------------------------------------------------------------------------

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the objects of valid frames that are not deleted yet."""
        return self._stored_bytes

    @property
    def frame_target_bytes(self) -> int:
        """See DurableLog.frame_target_bytes: a request costs as much as some hundred KiB of data."""
        return min(limits.LOG_OBJECT_FRAME_TARGET_BYTES, self._max_frame_bytes)

    @property
    def frames_in_flight_max(self) -> int:
        """See DurableLog.frames_in_flight_max."""
        return limits.LOG_OBJECT_PUTS_MAX

    @property
    def part_frames_in_flight_max(self) -> int:
        """See DurableLog.part_frames_in_flight_max."""
        return limits.LOG_OBJECT_PART_FRAMES_MAX

    @property
    def frames_cost_requests(self) -> bool:
        """See DurableLog.frames_cost_requests."""
        return True

    def frames_per_checkpoint(self, worth: int) -> int:
        """See DurableLog.frames_per_checkpoint: opening needs a request for each frame."""
        return min(max(worth, limits.LOG_OBJECT_CHECKPOINT_FRAMES_MIN), limits.LOG_OBJECT_CHECKPOINT_FRAMES)

    @property
    def owned_at_s(self) -> float:
        """See DurableLog.owned_at_s: the start of the last check that found no later claim."""
        return self._owned_at_s

    # -- opening -------------------------------------------------------------------------------------------------

    async def open(self, epoch: int, nonce: bytes) -> None:
        """See DurableLog.open. UnavailableError: the store does not answer; the epoch must not be used again."""
        if self._opened:
            raise IllegalStateError(f"log {self._keys.folder} was opened before")
        self._opened = True
        try:
            # Before the first claim is made: the log may be gone as a whole.
            if self._opened_epoch and await self._requests.persist(self._opened_claim) is None:
                raise lost_epoch(self._keys.folder, self._opened_epoch)
            await self._claims.take(epoch, nonce)
            self._identity = FrameIdentity(self._keys.container, epoch, nonce)
            await self._begin(await self._recovered(epoch))
        except TailraceError as error:
            self._failure = error
            raise
        self._begun = True
        self._spawn(partial(self._cleaner.sweep, self._index, epoch))

    async def _opened_claim(self) -> Claim | None:
        return await self._claims.look(self._opened_epoch)

    async def _recovered(self, epoch: int) -> ObjectDecision:
        try:
            decision = await self._scanner.decision(epoch)
            decision.check_opened(self._keys.folder, self._opened_epoch)
        except DataError as error:
            await self._raise_if_fenced(error)
            raise
        await self._scanner.make_durable(decision)
        return decision

    async def _begin(self, decision: ObjectDecision) -> None:
        """Write the START frame: from now on only the frames that it lists are valid of earlier epochs."""
        epoch = self._identity.epoch
        self._next_sequence = decision.next_sequence
        self._stored_through = self._acknowledged_through = decision.next_sequence - 1
        self._log_start = self._marked_log_start = decision.log_start
        self._index = FrameIndex(decision.extents, epoch, decision.next_sequence)
        self._stored_bytes = self._index.length_bytes(0, decision.next_sequence)
        self._epochs_at_opening = len(decision.history)
        record = StartRecord(decision.next_sequence, decision.previous_epoch, decision.history).encode()
        if len(record) > limits.LOG_START_RECORD_MAX_BYTES:
            count = len(decision.history)
            raise IllegalStateError(f"log {self._keys.folder} was opened {count} times without a truncation")
        frame, _ = self._encode(FrameKind.START, [memoryview(record)], decision.next_sequence)
        await self._requests.settle(self._keys.start(epoch), frame, limits.LOG_OBJECT_OPEN_ATTEMPTS)
        await self._requests.persist(self._look)

    async def _look(self) -> None:
        """Check for the next claim, after all frames that are stored by now.

        Raises:
            FencedError: the claim exists. UnavailableError: that is unknown.
        """
        began_s = asyncio.get_running_loop().time()
        claim = await self._claims.look(self._identity.epoch + 1)
        if claim is not None:
            raise FencedError(f"log {self._keys.folder} was taken by epoch {claim.epoch}", claim.epoch)
        self._owned_at_s = max(self._owned_at_s, began_s)

    async def confirm_owner(self) -> None:
        """See DurableLog.confirm_owner."""
        if self._failure is not None:
            raise self._failure
        try:
            await self._look()
        except FencedError as error:
            self._fail(error)
            raise
        except DataError as error:
            self._fail(error)
            assert self._failure is not None
            raise self._failure from error

    async def _raise_if_fenced(self, error: DataError) -> None:
        """Raise FencedError if there is a later owner: it deletes frames, so a missing one is no loss then."""
        try:
            await self._requests.persist(self._look)
        except FencedError as fenced:
            raise fenced from error

    def _encode(self, kind: FrameKind, payload: list[memoryview], sequence: int) -> tuple[list[Buffer], int]:
        return frames.encode_frame(
            self._identity,
            kind,
            payload,
            sequence=sequence,
            acknowledged_through=self._acknowledged_through,
            log_start=self._log_start,
            offset=0,
        )

    # -- writing -------------------------------------------------------------------------------------------------

    def check_space(self, length_bytes: int, frame_count: int = 1, *, reserved: bool = False) -> None:
        """See DurableLog.check_space: an object store does not report free space."""

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """See DurableLog.append."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        views = [memoryview(buffer).cast("B") for buffer in payload if len(buffer)]
        length = sum(map(len, views))
        if length > self._max_frame_bytes:
            raise BadRequestError(f"payload: {length} bytes do not fit in a log frame of {self._max_frame_bytes}")
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        if not self._begun:
            raise IllegalStateError(f"log {self._keys.folder} is not open")
        if self._unsynced_bytes + length > limits.LOG_UNACKNOWLEDGED_MAX_BYTES:
            raise OverloadedError(f"log {self._keys.folder}: {self._unsynced_bytes} bytes are not acknowledged yet")
        self._scanner.drop_cached()  # the recovery is over
        self._queue.append(_Append(self._next_sequence, views, length, future))
        self._next_sequence += 1
        self._unsynced_bytes += length
        self._start_puts()
        return future

    def _start_puts(self) -> None:
        """Send as many waiting frames as may be in flight."""
        while self._queue and self._failure is None and self._puts < limits.LOG_OBJECT_PUTS_MAX:
            if self._queue[0].sequence - self._acknowledged_through > WINDOW_FRAMES:
                return
            item = self._queue.popleft()
            self._flight.append(item)
            frame, length = self._encode(FrameKind.DATA, item.payload, item.sequence)
            self._index.own.lengths.append(length)
            self._puts += 1
            self._spawn(partial(self._store, item, frame))

    async def _store(self, item: _Append, frame: list[Buffer]) -> None:
        """Store one frame, without a deadline; then acknowledge the frames that are stored without a gap."""
        await self._requests.settle(self._keys.frame(self._identity.epoch, item.sequence), frame, in_turn=True)
        self._puts -= 1
        item.stored = True
        item.payload = []
        frame.clear()
        for earlier in self._flight:
            if not earlier.stored:
                break
            self._stored_through = earlier.sequence
        if not self._looking and self._stored_through > self._acknowledged_through:
            self._looking = True
            self._spawn(self._acknowledge_stored)
        self._start_puts()

    async def _acknowledge_stored(self) -> None:
        """Check the next claim until all is acknowledged; each check covers what was stored without a gap before it."""
        attempt = 0
        while self._stored_through > self._acknowledged_through and self._failure is None:
            through = self._stored_through
            try:
                await self._look()
            except FencedError:
                raise
            except UnavailableError:
                await asyncio.sleep(pause_s(attempt))
                attempt += 1
                continue
            attempt = 0
            if self._failure is None:
                self._acknowledge(through)
        self._looking = False

    def _acknowledge(self, through: int) -> None:
        self._acknowledged_through = through
        while self._flight and self._flight[0].sequence <= through:
            item = self._flight.popleft()
            self._unsynced_bytes -= item.length_bytes
            self._stored_bytes += self._index.own.length_of(item.sequence)
            if not item.future.done():
                item.future.set_result(item.sequence)
        self._start_puts()

    # -- ending --------------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._fail(error)
            if not isinstance(error, TailraceError):
                raise  # a bug must be visible

    def _fail(self, error: Exception) -> None:
        """Stop for good: this owner acknowledges no more frames."""
        self._owned_at_s = float("-inf")
        if self._failure is None:
            if isinstance(error, FencedError):
                self._failure = error
            else:
                self._failure = UnavailableError(f"log {self._keys.folder} stopped: {error}")
                self._failure.__cause__ = error
            current = asyncio.current_task()
            for task in self._tasks:
                if task is not current:
                    task.cancel()
        self._scanner.drop_cached()
        pending = [*self._flight, *self._queue]
        self._flight.clear()
        self._queue.clear()
        for item in pending:
            if not item.future.done():
                item.future.set_exception(self._failure)

    async def close(self) -> None:
        """See DurableLog.close. A later owner may or may not find frames that are not acknowledged yet."""
        self._opened = True
        if self._failure is None:
            self._fail(FencedError(f"log {self._keys.folder} is closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- truncation ----------------------------------------------------------------------------------------------

    async def truncate(self, sequence: int) -> None:
        """See DurableLog.truncate. Objects are deleted once a MARK is stored and no later owner existed after that."""
        if self._failure is not None:
            raise self._failure
        if sequence > self._acknowledged_through + 1:
            raise BadRequestError(f"sequence: frame {sequence} is not durable, the log cannot start there")
        if sequence <= self._log_start:
            return
        self._log_start = sequence
        if not self._truncating:
            self._truncating = True
            self._spawn(self._truncate_marked)

    async def _truncate_marked(self) -> None:
        while self._marked_log_start < self._log_start:
            target = self._log_start
            number = self._marks + 1
            frame, _ = self._encode(FrameKind.MARK, [], self._next_sequence)
            await self._requests.settle(self._keys.mark(self._identity.epoch, number), frame)
            await self._check_until_answered()
            await self._delete_below(target)
            await self._cleaner.supersede_marks(self._identity.epoch, number)
            self._marks, self._marked_log_start = number, target
        self._truncating = False

    async def _check_until_answered(self) -> None:
        attempt = 0
        while True:
            try:
                return await self._look()
            except FencedError:
                raise
            except UnavailableError:
                await asyncio.sleep(pause_s(attempt))
                attempt += 1

    async def _delete_below(self, sequence: int) -> None:
        doomed = list(self._index.places(0, sequence))
        await self._cleaner.delete_frames(doomed)
        self._stored_bytes -= sum(length for _, _, length in doomed)
        self._index.forget_below(sequence)

    # -- reading -------------------------------------------------------------------------------------------------

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See DurableLog.recover.

        Raises:
            CorruptionError, DataLossError: a valid frame is damaged or missing; the text names its object.
            FencedError: a later owner took the log.
        """
        first = max(first_sequence, self._log_start)
        found = self._scanner.frames(self._index.places(first, self._acknowledged_through + 1))
        try:
            async for epoch, sequence, payload in found:
                yield RecoveredFrame(sequence, epoch, payload)
        except DataError as error:
            await self._raise_if_fenced(error)
            raise
        finally:
            await found.aclose()

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See DurableLog.read."""
        epoch = self._index.epoch_of(sequence) if self._log_start <= sequence <= self._acknowledged_through else None
        if epoch is None:
            raise KeyError(f"log frame {sequence} does not exist")
        try:
            payload = await self._scanner.frame(epoch, sequence)
        except DataError as error:
            if sequence < self._log_start:
                raise KeyError(f"log frame {sequence} does not exist") from error
            await self._raise_if_fenced(error)
            raise
        return bytes(payload[offset : offset + length])
