"""Clients of one stream: writers, transactions, scales, a reader group whose checkpoints truncate the stream."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sim.violations import Violation, require
from sim.workloads.clusterledger import Ledger, Sent, check_cut, check_epochs
from tailrace.client.async_client import Client
from tailrace.client.group.reader_group import group_config
from tailrace.client.group.state.records import Position
from tailrace.client.model import PingStatus, StreamName, TransactionState
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import Transaction, TransactionalWriter
from tailrace.common.errors import (
    AlreadyExistsError,
    IllegalStateError,
    NotFoundError,
    OverloadedError,
    SegmentTruncatedError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.names import parse_segment_name
from tailrace.common.stream_policies import StreamDataRetention

T = TypeVar("T")

GROUP = "group"
LEASE_MS = 12_000
STANDS_S = 30.0
"""After so long without a further segment a group is blocked: ten times the longest interval of checkpoints."""
ENDING_S = 60.0
"""Without faults the end of a lease is followed by the end of the transaction within so long."""
ENDED = (TransactionState.COMMITTED, TransactionState.ABORTED)


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer, as users do."""
    while True:
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(0.5)


async def stored_pieces(client: Client, stream: StreamName) -> list[list[bytes]]:
    """What the stream holds from its head to its tail, segment by segment, those of older epochs first."""
    slices = await persist(lambda: client.slices(stream))
    pieces = []
    for piece in sorted(slices, key=lambda piece: parse_segment_name(piece.segment).identifier):
        events: list[bytes] = []
        async for part in client.read_slice(piece):
            events += part
        pieces.append(events)
    return pieces


async def all_epochs(client: Client, stream: StreamName) -> list[Any]:
    """The segments of every epoch that the stream has had."""
    epochs: list[Any] = []
    with contextlib.suppress(NotFoundError):
        while True:
            epochs.append(await persist(lambda: client.context.controller.epoch_segments(stream, len(epochs))))
    return epochs


class Transactor:
    """Runs transactions on a stream and remembers the answer for each."""

    def __init__(self, client: Client, stream: StreamName, ledger: Ledger, keys: list[str], rng: random.Random) -> None:
        self._client = client
        self._stream = stream
        self._ledger = ledger
        self._keys = keys
        self._random = rng
        self.known: list[tuple[Transaction, Sent]] = []

    async def rounds(self, count: int) -> None:
        """Some at a time: opened together, decided one after the other in any order."""
        rng = self._random
        async with self._client.transactional_writer(self._stream, lease_ms=LEASE_MS) as transactions:
            for _ in range(count):
                await asyncio.sleep(rng.random() ** 2 * 3)
                opened = [await self.open(transactions) for _ in range(rng.choice([1, 3, 6]))]
                mine = [item for item in opened if item is not None]
                rng.shuffle(mine)
                for transaction, sent in mine:
                    await self._end(transaction, sent)
                for transaction, sent in rng.sample(mine, len(mine) // 2):
                    await self.change_mind(transaction, sent)
                for transaction, sent in mine:
                    if sent.committed:
                        await persist(lambda waiting=transaction: waiting.wait_until_visible(60))  # type: ignore[misc]

    async def open(self, transactions: TransactionalWriter) -> tuple[Transaction, Sent] | None:
        """Begin one and write its events; None when it was aborted while it began."""
        rng = self._random
        try:
            transaction = await persist(transactions.begin)
        except WriteConflictError:
            return None
        keys = rng.choices(self._keys, k=rng.choice([1, 2, 4, 12]))
        sent = self._ledger.transaction(len(self._ledger.transactions), keys, rng.choice([0, 20]))
        sent.epoch = transaction.transaction_id.int >> 96
        self.known.append((transaction, sent))
        with contextlib.suppress(IllegalStateError):  # the lease is over
            for key, event in sent.events:
                transaction.write_event(event, key)
            if rng.random() < 0.5:
                await transaction.flush()
        return transaction, sent

    async def _end(self, transaction: Transaction, sent: Sent) -> None:
        kind = self._random.random()
        if kind < 0.7:
            await self.commit(transaction, sent)
        elif kind < 0.9:
            await self.abort(transaction, sent)
        else:
            transaction.stop_pinging()  # its owner died; the lease ends it
            sent.committed = await self.decided(transaction, sent)
            require(not sent.committed, f"{sent.name} is committed without a request")

    async def commit(self, transaction: Transaction, sent: Sent) -> None:
        """Commit; what came of it is known after that."""
        loop = asyncio.get_running_loop()
        sent.asked_s = loop.time()
        try:
            await transaction.commit()
            sent.committed = True
        except (IllegalStateError, UnavailableError):  # its lease was over, or no server answered
            sent.committed = await self.decided(transaction, sent)
        if sent.committed:
            sent.answered_s = loop.time()

    async def abort(self, transaction: Transaction, sent: Sent) -> None:
        """Abort; what came of it is known after that."""
        try:
            await transaction.abort()
            sent.committed = False
        except (IllegalStateError, UnavailableError):
            sent.committed = await self.decided(transaction, sent)
        require(not sent.committed, f"{sent.name} is committed, and it was to be aborted")

    async def decided(self, transaction: Transaction, sent: Sent) -> bool:
        """Wait until it is no longer open: whether it was committed."""
        state = await persist(transaction.state)
        while state is TransactionState.OPEN:
            await asyncio.sleep(1)
            state = await persist(transaction.state)
        require(state is not TransactionState.UNKNOWN, f"{sent.name} is forgotten")
        return state in (TransactionState.COMMITTING, TransactionState.COMMITTED)

    async def change_mind(self, transaction: Transaction, sent: Sent) -> None:
        """What is decided stays: late calls change nothing, and say so (I6)."""
        controller, identity = self._client.context.controller, transaction.transaction_id
        ping = await persist(lambda: controller.ping_transaction(self._stream, identity, LEASE_MS))
        wanted = PingStatus.COMMITTED if sent.committed else PingStatus.ABORTED
        require(ping is wanted, f"a late ping of {sent.name}, committed = {sent.committed}, was answered {ping.name}")
        late = controller.abort_transaction if sent.committed else controller.commit_transaction
        try:
            await persist(lambda: late(self._stream, identity))
        except IllegalStateError:
            return
        raise Violation(f"{sent.name} ended with committed = {sent.committed}, and the opposite was accepted later")

    async def check_answers(self) -> None:
        """Every transaction has ended, at most `ENDING_S` after its owner went; the answer then stays the same."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + ENDING_S
        for transaction, sent in self.known:
            state = await persist(transaction.state)
            while state not in ENDED and loop.time() < deadline_s:  # its lease may have ended only now
                await asyncio.sleep(1)
                state = await persist(transaction.state)
            require(state in ENDED, f"{sent.name} is {state.name} after all that time")
            reported, committed = sent.committed, state is TransactionState.COMMITTED
            require(reported in (None, committed), f"{sent.name} was {reported}, is {state.name} now")
            sent.committed = state is TransactionState.COMMITTED


class StreamClients:
    """Everything that goes on in the main stream of a seed."""

    def __init__(self, stream: StreamName, rng: random.Random) -> None:
        self.random = rng
        self.stream = stream
        self.ledger = Ledger(stream.stream)
        self.keys = [f"key{number}" for number in range(rng.randint(1, 8))]
        self.turns = rng.choice([5, 20, 80])
        self.pause_s = rng.choice([0.02, 0.1, 0.5])
        self.scales = rng.choice([0, 2, 4, 8])
        self.rounds = rng.choice([0, 3, 6])
        self.transactors = rng.choice([1, 2])
        self.truncations = rng.choice([0, 0, 1, 3])
        self.readers = rng.randint(1, 3)
        self.checkpoint_ms = rng.choice([200, 500, 3000])
        self.retention = rng.choice([StreamDataRetention.NONE, StreamDataRetention.MANUAL])
        self.writing = True
        self.read: list[bytes] = []
        self.reached: set[str] = set()
        """Segments that a reader has come to."""
        self.reached_s = 0.0
        """When a reader came to one for the first time, on the loop's clock."""
        self.cuts: list[dict[int, int]] = []
        self.steps = 0

    async def live(self, client: Client) -> None:
        """Until everything was written and read."""
        groups = client.reader_groups(self.stream.scope)
        config = group_config({self.stream: None}, automatic_checkpoint_ms=self.checkpoint_ms, retention=self.retention)
        await persist(lambda: groups.create(GROUP, config))
        reading = [asyncio.create_task(self._read(client, f"reader{number}")) for number in range(self.readers)]
        transactors = [
            Transactor(client, self.stream, self.ledger, self.keys, self.random) for _ in range(self.transactors)
        ]
        async with client.writer(self.stream) as writer:
            await asyncio.gather(
                self._write(writer),
                self._scale(client),
                self._truncate(client),
                *(transactor.rounds(self.rounds) for transactor in transactors),
            )
        self.writing = False
        await asyncio.gather(*reading)
        for transactor in transactors:
            await transactor.check_answers()

    async def check(self, client: Client) -> None:
        """Nothing lost, nothing twice, everything in order; cuts and epochs cover the key space."""
        self.ledger.check_stored(await stored_pieces(client, self.stream))
        self.ledger.check_read(self.read)
        ranges = check_epochs(await all_epochs(client, self.stream))
        for cut in self.cuts:
            check_cut(cut, ranges, "a checkpoint")
        head = await persist(lambda: client.context.controller.head_segments(self.stream))
        check_cut(head, ranges, "the head of the stream")

    # -- what they do

    async def _write(self, writer: EventWriter) -> None:
        rng = self.random
        for _ in range(self.turns):
            for _ in range(rng.choice([1, 1, 1, 10])):
                key = rng.choice(self.keys)
                batch = [self.ledger.event(key, rng.choice([0, 10, 300])) for _ in range(rng.choice([1, 1, 3, 20]))]
                await writer.ready()
                writer.write_events(batch, key)
                self.steps += len(batch)
            await asyncio.sleep(rng.random() ** 4 * self.pause_s)

    async def _scale(self, client: Client) -> None:
        writing_s = self.turns * self.pause_s / 5
        longest_s = self.random.choice([3.0, 2 * writing_s / max(1, self.scales)])
        for _ in range(self.scales):
            await asyncio.sleep(self.random.random() * longest_s)
            # refused: another scale runs; unavailable: it goes on
            with contextlib.suppress(WriteConflictError, IllegalStateError, UnavailableError):
                await client.streams.scale_to(self.stream, self.random.choice([1, 1, 2, 3, 4]), deadline_s=120)

    async def _truncate(self, client: Client) -> None:
        """Drop what the group has read: everything before a cut that it published."""
        rng = self.random
        for number in range(self.truncations):
            await asyncio.sleep(rng.random() * 6)
            group = await persist(lambda: client.reader_groups(self.stream.scope).open(GROUP))
            try:
                checkpoint = await group.checkpoint(f"cut{number}", deadline_s=60)
            except (IllegalStateError, UnavailableError):
                continue  # too many are under way, or one that did not end in time
            cut = checkpoint.cuts.get(str(self.stream))
            if cut is None:
                raise Violation("a checkpoint is complete, and has no position in the stream")
            self.cuts.append(dict(cut.positions))
            self.ledger.released.update(self.read)
            if self.retention is not StreamDataRetention.NONE:
                await persist(lambda: group.publish_cuts({self.stream: cut}))  # noqa: B023
            with contextlib.suppress(UnavailableError):
                await client.streams.truncate_stream(self.stream, cut)

    # -- readers

    async def _read(self, client: Client, name: str) -> None:
        """Read until everything was read; now and then die and be declared offline, or leave and come again."""
        idle = 0
        while not self._is_read(idle):
            reader = client.reader(self.stream.scope, GROUP, name)
            try:
                await persist(reader.start)
            except AlreadyExistsError:
                await self._offline(client, name, None)  # joined, and the answer was lost
                continue
            for _ in range(self.random.randint(3, 300)):
                count = await self._read_batch(reader)
                idle = 0 if count else idle + 1
                if self._is_read(idle):
                    break
            if self.random.random() < 0.5:
                await persist(reader.close)
            else:
                position = reader.position
                await self._vanish(reader)
                await self._offline(client, name, position)

    def _is_read(self, idle: int) -> bool:
        """Whether a reader that got nothing for so many times need not wait longer.

        A group that comes to further segments is not done: it takes a checkpoint to leave each, also without events.
        """
        if self.writing or idle < 6:
            return False
        stands = asyncio.get_running_loop().time() >= self.reached_s + STANDS_S
        return (idle >= 60 and stands) or len(self.read) >= self.ledger.expected_events

    async def _read_batch(self, reader: EventReader) -> int:
        try:
            batch = await persist(lambda: reader.read_batch(self.random.choice([1, 10, 1000]), 500))
        except SegmentTruncatedError as error:
            raise Violation(f"events were dropped that a reader had not read: {error}") from error
        if not reader.position.positions.keys() <= self.reached:
            self.reached.update(reader.position.positions)
            self.reached_s = asyncio.get_running_loop().time()
        if batch is None:
            return 0
        self.read += batch.events
        self.steps += 1
        return len(batch.events)

    @staticmethod
    async def _vanish(reader: Any) -> None:
        """What is left of a reader whose process died: nothing but its place in the group."""
        for segment in list(reader._inputs):
            await reader._drop_input(segment)

    async def _offline(self, client: Client, name: str, position: Position | None) -> None:
        with contextlib.suppress(OverloadedError):
            group = await persist(lambda: client.reader_groups(self.stream.scope).open(GROUP))
            await persist(lambda: group.reader_offline(name, position))
