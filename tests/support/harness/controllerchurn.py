"""Work for controllers, of all kinds and without end, while they are killed; what must hold when the kills have ended.

A call whose controller dies has an unknown outcome: it is called again where that is the way to a known state, and what
it may have done is not counted. What was accepted must have been done in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.pods import CONTAINERS, Pods, until
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.group.reader_group import group_config
from tailrace.client.model import TransactionState
from tailrace.client.writer.transactions import Transaction
from tailrace.cluster.endpoints import Endpoint
from tailrace.cluster.segment_mapping import container_of
from tailrace.common.errors import IllegalStateError, NotFoundError, UnavailableError, WriteConflictError
from tailrace.controller.metadata.metadata_store import PENDING_TABLE
from tailrace.controller.metadata.records import PendingRecord, decode

LEASE_MS = 10_000
SEGMENTS_MAX = 4
EVENTS_OF_EACH = 2
ENDED_WITHIN_S = 120.0
KNOWN_WITHIN_S = 120.0
PAGE = 100
T = TypeVar("T")
ENDS = (TransactionState.COMMITTED, TransactionState.ABORTED)
UNKNOWN = (UnavailableError, WriteConflictError)
"""Errors of calls whose outcome is unknown, or which another workflow held up: only because a controller died."""


@dataclass
class Ended:
    """A transaction, and how its end was called."""

    transaction: Transaction
    events: list[bytes] = field(default_factory=list)
    wanted: TransactionState | None = None
    """What was accepted; None: nothing, or the answer did not come."""
    state: TransactionState | None = None


@dataclass
class Churn:
    """The work of one stream, one call at a time."""

    clients: Sequence[Client]
    stream: StreamName
    random: random.Random
    counts: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    stopped: bool = False
    _written: int = 0
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    """The last calls and how they ended."""
    _scale_may_run: bool = False
    """Whether the outcome of a scale is unknown, so that it may go on during later calls."""
    _transactions: list[Ended] = field(default_factory=list)

    @property
    def client(self) -> Client:
        """The client of any controller."""
        return self.random.choice(self.clients)

    async def run(self) -> None:
        """Work until `stopped`, and end the call that is under way. What no death of a controller excuses ends it."""
        await self.remake()
        actions = [self.commit] * 5 + [self.abort] * 2 + [self.scale] * 2 + [self.update, self.group, self.remake]
        while not self.stopped:
            action = self.random.choice(actions)
            try:
                await action()
            except UNKNOWN as error:
                self.unknown += 1
                self._last.append(f"{action.__name__}: {type(error).__name__}: {error}")
            except IllegalStateError as error:
                before = "; ".join(self._last)
                raise AssertionError(f"{self.stream}: {action.__name__}: {error} (before it: {before})") from error
            else:
                self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
                self._last.append(f"{action.__name__}: done")

    # -- calls --------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit a transaction of some events."""
        await self._transact(TransactionState.COMMITTED)

    async def abort(self) -> None:
        """Abort one."""
        await self._transact(TransactionState.ABORTED)

    async def scale(self) -> None:
        """Change the number of segments."""
        try:
            await self.client.streams.scale_to(self.stream, self.random.randint(1, SEGMENTS_MAX))
        except UNKNOWN:
            self._scale_may_run = True
            raise
        except IllegalStateError as error:
            if not self._scale_may_run:
                raise
            raise UnavailableError(f"an earlier scale may go on: {error}") from error
        self._scale_may_run = False

    async def update(self) -> None:
        """Change the stream's tags."""
        await self.client.streams.update_stream(self.stream, _config(f"tag-{self.random.randrange(1000)}"))

    async def group(self) -> None:
        """Make a reader group, and delete it."""
        groups, name = self.client.reader_groups(self.stream.scope), f"group-of-{self.stream.stream}"
        try:
            await groups.create(name, group_config({self.stream: None}))
        finally:
            await _gone(lambda: groups.delete(name))

    async def remake(self) -> None:
        """Check what the stream has, seal it, delete it, make it again."""
        await self.check()
        await self.remove()
        await _known(lambda: self.client.streams.create_stream(self.stream, _config("new")))
        self._scale_may_run = False

    async def remove(self) -> None:
        """Seal the stream and delete it."""
        await _gone(lambda: self.client.streams.seal_stream(self.stream))
        await _gone(lambda: self.client.streams.delete_stream(self.stream))

    async def _transact(self, wanted: TransactionState) -> None:
        writer = self.client.transactional_writer(self.stream, lease_ms=LEASE_MS)
        ended = Ended(await writer.begin())
        self._transactions.append(ended)
        try:
            for _ in range(EVENTS_OF_EACH):
                event = str(self._written).encode()
                self._written += 1
                await ended.transaction.write_event(event, event.decode())
                ended.events.append(event)
            await ended.transaction.flush()
            await (ended.transaction.commit() if wanted is TransactionState.COMMITTED else ended.transaction.abort())
            ended.wanted = wanted
        except IllegalStateError:  # its lease ended, or it was called again after a lost answer
            self.unknown += 1
        finally:
            await ended.transaction.abandon()

    # -- checks -------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Every transaction ends as it was accepted, and events of those that are committed are there once."""
        if not self._transactions:
            return

        async def have_ended() -> bool:
            for one in self._transactions:
                if one.state not in ENDS:
                    one.state = await _known(self._state_of(one))
            return all(one.state in ENDS for one in self._transactions)

        await until(f"{self.stream}: every transaction has ended", have_ended, ENDED_WITHIN_S)
        wrong = [(one.wanted, one.state) for one in self._transactions if one.wanted not in (None, one.state)]
        assert not wrong, f"{self.stream}: accepted, and ended otherwise: {wrong}"
        committed = [one for one in self._transactions if one.state is TransactionState.COMMITTED]
        events = [event for one in committed for event in one.events]
        found = await _known(self._read_all)
        assert sorted(found) == sorted(events), f"{self.stream}: {len(found)} events are stored, not {len(events)}"
        self._transactions.clear()

    def _state_of(self, one: Ended) -> Callable[[], Awaitable[TransactionState]]:
        return lambda: self.client.context.controller.transaction_state(self.stream, one.transaction.transaction_id)

    async def _read_all(self) -> list[bytes]:
        client = self.client
        pieces = await client.slices(self.stream)
        return [bytes(event) for piece in pieces async for events in client.read_slice(piece) for event in events]


def _config(tag: str) -> StreamConfig:
    return StreamConfig(scaling=ScalingPolicy.fixed(1), tags=(tag,))


async def _known(call: Callable[[], Awaitable[T]]) -> T:
    """What a call answers; it is repeated while its outcome is unknown."""
    ends_at_s = asyncio.get_running_loop().time() + KNOWN_WITHIN_S
    while True:
        try:
            return await call()
        except UNKNOWN:
            assert asyncio.get_running_loop().time() < ends_at_s, f"no answer within {KNOWN_WITHIN_S:g} s"
            await asyncio.sleep(0.1)


async def _gone(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call that ends something, until it has ended."""
    with contextlib.suppress(NotFoundError):
        await _known(call)


async def pending(pods: Pods) -> list[PendingRecord]:
    """What the controllers have listed as work that has not ended."""
    cluster_map = pods.map()
    owner = cluster_map.workers[cluster_map.assignments[container_of(PENDING_TABLE, CONTAINERS)].worker]

    async def locate(_: str) -> Endpoint:
        return owner.internal

    pool = ConnectionPool()
    try:
        found, _ = await SegmentClient(pool, locate).table_entries(PENDING_TABLE, PAGE, b"")
    finally:
        await pool.close()
    return [decode(PendingRecord, entry.value, PENDING_TABLE) for entry in found]
