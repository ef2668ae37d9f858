"""A log in memory, for the simulator and for benchmarks without Tier 1 (docs/design.md#tier-1)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, DiskFullError, FencedError, IllegalStateError, TailraceError
from tailrace.log.base import SequencedLog
from tailrace.log.port import Buffer, RecoveredFrame


@dataclass(slots=True)
class MemoryLogStore:
    """The durable frames of one log, which outlive an owner. ``capacity_bytes`` bounds their payloads."""

    capacity_bytes: int = limits.GIB
    epoch: int = 0
    first_sequence: int = 0
    frames: deque[tuple[int, bytes]] = field(default_factory=deque)
    stored_bytes: int = 0

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the last durable frame."""
        return self.first_sequence + len(self.frames)


class MemoryLog(SequencedLog):
    """A DurableLog over a MemoryLogStore; frames become durable in order, `delay_s` after their append."""

    def __init__(
        self,
        store: MemoryLogStore,
        *,
        delay_s: float = 0.0,
        max_frame_bytes: int = limits.LOG_FRAME_MAX_BYTES,
    ) -> None:
        super().__init__(max_frame_bytes)
        self._store = store
        self._delay_s = delay_s
        self._epoch = 0
        self._pending: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        self._failure: TailraceError | None = None

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the durable payloads."""
        return self._store.stored_bytes

    @property
    def owned_at_s(self) -> float:
        """See DurableLog.owned_at_s: this log sees a later owner at once."""
        owned = self._failure is None and self._store.epoch == self._epoch
        return float("inf") if owned else float("-inf")

    async def confirm_owner(self) -> None:
        """See DurableLog.confirm_owner."""
        if self._failure is None and self._store.epoch != self._epoch:
            self._fail(FencedError(f"the log was taken by epoch {self._store.epoch}", self._store.epoch))
        if self._failure is not None:
            raise self._failure

    async def open(self, epoch: int, nonce: bytes) -> None:
        """See DurableLog.open."""
        if self._epoch or self._failure is not None:
            raise IllegalStateError("the log was opened before")
        if epoch <= self._store.epoch:
            raise FencedError(f"the log knows epoch {self._store.epoch}, {epoch} is not above it", self._store.epoch)
        self._epoch = self._store.epoch = epoch
        self._next_sequence = self._store.next_sequence
        self._log_start = self._store.first_sequence
        self._epochs_at_opening = len({epoch for epoch, _ in self._store.frames})

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See DurableLog.recover."""
        for sequence in range(max(first_sequence, self._store.first_sequence), self._store.next_sequence):
            epoch, payload = self._store.frames[sequence - self._store.first_sequence]
            yield RecoveredFrame(sequence, epoch, memoryview(payload))

    def check_space(self, length_bytes: int, frame_count: int = 1, *, reserved: bool = False) -> None:
        """See DurableLog.check_space."""
        reserve = 0 if reserved else min(limits.LOG_RESERVE_BYTES, self._store.capacity_bytes // 8)
        if self._store.stored_bytes + self._unsynced_bytes + length_bytes > self._store.capacity_bytes - reserve:
            raise DiskFullError(f"the log has no room for {length_bytes} bytes")

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """See DurableLog.append."""
        loop = asyncio.get_running_loop()
        data = b"".join(payload)
        if len(data) > self._max_frame_bytes:
            raise BadRequestError(f"payload: {len(data)} bytes do not fit in a log frame of {self._max_frame_bytes}")
        future: asyncio.Future[int] = loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        if not self._epoch:
            raise IllegalStateError("the log is not open")
        self._next_sequence += 1
        self._pending.append((data, future))
        self._unsynced_bytes += len(data)
        if self._delay_s:
            loop.call_later(self._delay_s, self._complete_first)
        else:
            loop.call_soon(self._complete_first)
        return future

    def _complete_first(self) -> None:
        if not self._pending:
            return
        if self._store.epoch != self._epoch:
            self._fail(FencedError(f"the log was taken by epoch {self._store.epoch}", self._store.epoch))
            return
        data, future = self._pending.popleft()
        self._unsynced_bytes -= len(data)
        sequence = self._store.next_sequence
        self._store.frames.append((self._epoch, data))
        self._store.stored_bytes += len(data)
        if not future.done():
            future.set_result(sequence)

    def _fail(self, error: TailraceError) -> None:
        self._failure = error
        while self._pending:
            future = self._pending.popleft()[1]
            if not future.done():
                future.set_exception(error)

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See DurableLog.read."""
        if not self._store.first_sequence <= sequence < self._store.next_sequence:
            raise KeyError(f"log frame {sequence} does not exist")
        return self._store.frames[sequence - self._store.first_sequence][1][offset : offset + length]

    async def truncate(self, sequence: int) -> None:
        """See DurableLog.truncate."""
        if self._failure is not None:
            raise self._failure
        if self._store.epoch != self._epoch:
            raise FencedError(f"the log was taken by epoch {self._store.epoch}", self._store.epoch)
        if sequence > self._store.next_sequence:
            raise BadRequestError(f"sequence: frame {sequence} is not durable, the log cannot start there")
        while self._store.first_sequence < sequence:
            self._store.stored_bytes -= len(self._store.frames.popleft()[1])
            self._store.first_sequence += 1
        self._log_start = max(self._log_start, sequence)

    async def close(self) -> None:
        """See DurableLog.close."""
        if self._failure is None:
            self._fail(FencedError("the log is closed"))
