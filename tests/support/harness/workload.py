"""Clients of ours that write, commit and abort while their server comes and goes, and record the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from harness.history import Event, History, Outcome, encode
from tailrace.client import Client, EventWriter, ScalingPolicy, StreamConfig, StreamName, Transaction, TransactionState
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError, IllegalStateError, TailraceError, UnavailableError

EVENT_MIN_BYTES = 20
EVENT_MAX_BYTES = 200_000
ABANDON_PROBABILITY = 0.003
COMMIT_PROBABILITY = 0.6
ABORT_PROBABILITY = 0.25
VISIBLE_DEADLINE_S = 120.0
RETRY_DELAY_S = 0.1


def event_length(rng: random.Random) -> int:
    """Many small events, and some large ones, so that Tier 2 is written to often."""
    return int(EVENT_MIN_BYTES * (EVENT_MAX_BYTES / EVENT_MIN_BYTES) ** rng.random() ** 2)


async def create_stream(client: Client, stream: StreamName, segments: int) -> None:
    """Make a stream and its scope."""
    await client.streams.create_scope(stream.scope)
    await client.streams.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(segments)))


async def read_from_head(client: Client, stream: StreamName) -> list[list[bytes]]:
    """Everything that is in a stream now: the events of each segment, older segments first."""
    pieces = await client.slices(stream)
    return [[event async for events in client.read_slice(piece) for event in events] for piece in pieces]


@dataclass
class Workload:
    """Writers and transactions over one stream. ``run`` until ``stop`` is called, then ``settle``."""

    client: Client
    stream: StreamName
    history: History
    seed: int
    writers: int = 4
    transactors: int = 2
    keys_per_writer: int = 5
    bytes_per_second: int = 8_000_000
    """Of each writer, so that a run does not fill the disk."""
    abandon_probability: float = ABANDON_PROBABILITY
    """Of a writer, after each write: it goes away with events under way."""
    writers_give_up: bool = False
    """Whether faults may last longer than writers retry: one that gives up then counts as one that went away."""
    errors: Counter[str] = field(default_factory=Counter)
    """Every error of a client, by what it did, for the report."""
    unexpected: list[str] = field(default_factory=list)
    """Errors that no kill or outage of a server excuses."""
    decided: Counter[Outcome] = field(default_factory=Counter)
    """Transactions whose commit or abort the server answered with success."""
    abandoned: int = 0
    """Events that failed because their writer went away with them."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _undecided: list[tuple[str, Transaction]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Workload]:
        """Writes while the block runs; afterwards everything is acknowledged, or its outcome is unknown for good."""
        loop = asyncio.get_running_loop()
        for number in range(self.writers):
            self._tasks.append(loop.create_task(self._write(f"w{number}", random.Random(f"{self.seed} w{number}"))))
        for number in range(self.transactors):
            self._tasks.append(loop.create_task(self._transact(f"t{number}", random.Random(f"{self.seed} t{number}"))))
        try:
            yield self
            self._stopping.set()
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def check_alive(self) -> None:
        """Fails when a writer ended early."""
        for task in self._tasks:
            if task.done() and not self._stopping.is_set():
                task.result()

    # -- writers -------------------------------------------------------------------------------------------------

    async def _write(self, name: str, rng: random.Random) -> None:
        """One writer after the other: now and then one goes away with events on their way."""
        for incarnation in itertools.count():
            keys = [f"{name}.{incarnation}.{number}" for number in range(self.keys_per_writer)]
            writer, gone = await self._started(), asyncio.Event()
            abandoned = await self._write_until_abandoned(writer, keys, rng, gone)
            if not abandoned:
                await writer.close()
                return
            gone.set()
            await writer.abandon()

    async def _started(self) -> EventWriter:
        """A writer; the controller may be away."""
        while True:
            try:
                return await self.client.writer(self.stream).start()
            except TailraceError as error:
                self._note("start of a writer", error, _is_away(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def _write_until_abandoned(
        self, writer: EventWriter, keys: list[str], rng: random.Random, gone: asyncio.Event
    ) -> bool:
        while not self._stopping.is_set():
            try:
                await writer.ready()
            except TailraceError as error:
                if not (self.writers_give_up and _is_away(error)):
                    raise
                self._note("writer gave up", error, expected=True)
                return True
            size = self._write_some(writer, rng.choice(keys), rng, gone)
            if rng.random() < self.abandon_probability:
                return True
            await asyncio.sleep(size / self.bytes_per_second)
        return False

    def _write_some(self, writer: EventWriter, key: str, rng: random.Random, gone: asyncio.Event) -> int:
        """Hand over one or several events of a key; return their bytes. ``gone`` is set when the writer goes away."""
        numbers = self.history.write(key, rng.choice((1, 1, 2, 10)))
        events = [encode(Event(key, number, ""), event_length(rng)) for number in numbers]
        if len(events) == 1:
            future = writer.write_event(events[0], key)
        else:
            future = writer.write_events(events, key)
        future.add_done_callback(lambda done: self._written(key, numbers, done, gone))
        return sum(map(len, events))

    def _written(self, key: str, numbers: range, done: asyncio.Future[None], gone: asyncio.Event) -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            self.history.acknowledge(key, numbers)
        elif (gone.is_set() and isinstance(error, ConnectionLostError)) or (self.writers_give_up and _is_away(error)):
            self.abandoned += len(numbers)
        else:
            self._note("write", error, expected=False)  # writers reconnect while they exist

    # -- transactions --------------------------------------------------------------------------------------------

    async def _transact(self, name: str, rng: random.Random) -> None:
        writer = self.client.transactional_writer(self.stream)
        for number in itertools.count():
            if self._stopping.is_set():
                break
            try:
                transaction = await writer.begin()
            except TailraceError as error:
                self._note("begin", error, _is_away(error))
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            await self._one_transaction(f"{name}.{number}", transaction, rng)
        await writer.close()

    async def _one_transaction(self, name: str, transaction: Transaction, rng: random.Random) -> None:
        record = self.history.begin(name)
        began_s = asyncio.get_running_loop().time()
        try:
            for _ in range(rng.randint(1, 20)):
                key = f"{name}.{rng.randrange(4)}"
                event = encode(Event(key, record.events[key], name), event_length(rng) // 10)
                record.events[key] += 1
                transaction.write_event(event, key).add_done_callback(_seen)
            choice = rng.random()
            if choice < COMMIT_PROBABILITY:
                await self._commit(name, transaction)
            elif choice < COMMIT_PROBABILITY + ABORT_PROBABILITY:
                await self._abort(name, transaction)
            else:
                # Without a commit its lease ends, and none of it may be seen.
                await transaction.abandon()
                record.outcome = Outcome.ABORTED
        except TailraceError as error:
            lasted_ms = (asyncio.get_running_loop().time() - began_s) * 1000
            lease_ended = isinstance(error, IllegalStateError) and lasted_ms >= limits.TRANSACTION_LEASE_DEFAULT_MS
            self._note("transaction", error, lease_ended or _is_away(error))
            self._undecided.append((name, transaction))
            await transaction.abandon()

    async def _commit(self, name: str, transaction: Transaction) -> None:
        await transaction.commit()
        self.history.transactions[name].outcome = Outcome.COMMITTED
        self.decided[Outcome.COMMITTED] += 1
        self._undecided.append((name, transaction))

    async def _abort(self, name: str, transaction: Transaction) -> None:
        await transaction.abort()
        self.history.transactions[name].outcome = Outcome.ABORTED
        self.decided[Outcome.ABORTED] += 1

    async def settle(self) -> None:
        """Once the server is back for good: wait until what was committed is visible, ask for unknown outcomes."""
        for name, transaction in self._undecided:
            record = self.history.transactions[name]
            if record.outcome is Outcome.UNKNOWN:
                record.outcome = await self._decided(transaction)
            if record.outcome is Outcome.COMMITTED:
                await transaction.wait_until_visible(VISIBLE_DEADLINE_S)
        self._undecided.clear()

    async def _decided(self, transaction: Transaction) -> Outcome:
        """Return the outcome of a transaction whose owner got no answer; abort an open one."""
        state = await transaction.state()
        if state is TransactionState.OPEN:
            with contextlib.suppress(IllegalStateError):  # its lease has just ended
                await transaction.abort()
            state = await transaction.state()
        committed = state in (TransactionState.COMMITTED, TransactionState.COMMITTING)
        return Outcome.COMMITTED if committed else Outcome.ABORTED

    def _note(self, what: str, error: BaseException, expected: bool) -> None:
        self.errors[f"{what}: {type(error).__name__}"] += 1
        if not expected:
            self.unexpected.append(f"{what}: {error!r}")


def _is_away(error: BaseException) -> bool:
    """Return whether a call failed because its server was not there; such calls are repeated."""
    return isinstance(error, UnavailableError)


def _seen(done: asyncio.Future[None]) -> None:
    """Ignore the error of an event of a transaction; the commit reports it."""
    if not done.cancelled():
        done.exception()
