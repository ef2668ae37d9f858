"""A stream and a key-value table that are deleted and created again under one name: nothing of the old is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from sim.violations import Violation, require
from sim.workloads.clusterclients import LEASE_MS, Transactor, all_epochs, persist, stored_pieces
from sim.workloads.clusterledger import Ledger, Sent, check_cut, check_epochs
from tailrace.client.async_client import Client
from tailrace.client.control.tables import TableConfig
from tailrace.client.group.reader_group import group_config
from tailrace.client.model import PingStatus, StreamName
from tailrace.client.reader.batch import SegmentSlice
from tailrace.client.tables import KeyValueTable, TableKeyParts
from tailrace.client.writer.transactions import Transaction
from tailrace.common.errors import (
    IllegalStateError,
    NotFoundError,
    SegmentTruncatedError,
    TableKeyBadVersionError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.names import segment_number
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig, StreamDataRetention

KEYS = ["a", "b", "c"]


class RecreatedStream:
    """A stream that is created, written, sealed and deleted several times under one name.

    Seeds depend on the lengths of names and tags, such as ``life0``.
    """

    def __init__(self, stream: StreamName, rng: random.Random) -> None:
        self.stream = stream
        self.rounds = rng.choice([0, 1, 2, 4])
        self.steps = 0
        self._random = rng
        self._numbers: set[int] = set()
        self._old_slices: list[SegmentSlice] = []
        self._old_transactions: list[tuple[Transaction, Sent]] = []
        self._old_cut: dict[int, int] = {}

    async def run(self, client: Client) -> None:
        """All rounds, from creation to deletion."""
        for number in range(self.rounds):
            await self._round(client, number)
            self.steps += 1

    async def _round(self, client: Client, number: int) -> None:
        rng = self._random
        ledger = Ledger(f"life{number}")
        await self._create(client, number)
        await self._check_new(client)
        group = await self._subscribe(client, number)
        transactor = Transactor(client, self.stream, ledger, KEYS, rng)
        async with client.writer(self.stream) as writer:
            for _ in range(rng.randint(1, 10)):
                key = rng.choice(KEYS)
                writer.write_events([ledger.event(key, 20) for _ in range(rng.randint(1, 5))], key)
                await asyncio.sleep(rng.random() ** 3)
            if rng.random() < 0.5:
                with contextlib.suppress(WriteConflictError, IllegalStateError, UnavailableError):
                    await client.streams.scale_to(self.stream, rng.randint(1, 3), deadline_s=60)
            await transactor.rounds(rng.choice([0, 1]))
        await self._retag(client, number)
        async with client.transactional_writer(self.stream, lease_ms=LEASE_MS) as transactions:
            left = await transactor.open(transactions) if rng.random() < 0.5 else None
            await self._seal(client, ledger, transactor)
        self._old_transactions += transactor.known if left is not None else transactor.known[:1]
        await self._delete(client, group)

    # -- from creation to deletion

    async def _create(self, client: Client, number: int) -> None:
        config = StreamConfig(ScalingPolicy.fixed(self._random.randint(1, 3)), tags=(f"life{number}",))
        while not await persist(lambda: client.streams.create_stream(self.stream, config)):
            if await persist(lambda: client.streams.tags(self.stream)) == config.tags:
                break  # by an attempt whose answer was lost
            await self._delete_late_one(client)
        require(
            await persist(lambda: client.context.controller.stream_exists(self.stream)), "a new stream is not there"
        )
        await self._check_listed(client, f"life{number}", listed=True)

    async def _check_new(self, client: Client) -> None:
        """Nothing of an older stream of that name is visible, and no client of it can do anything.

        See docs/protocol/naming.md#names.
        """
        epochs = await all_epochs(client, self.stream)
        require(len(epochs) == 1, f"a new stream has {len(epochs)} epochs")
        numbers = {segment_number(segment.identifier) for segment in epochs[0]}
        again = sorted(numbers & self._numbers)
        require(not again, f"segment numbers {again} of the deleted stream are given out again")
        require(not any(await stored_pieces(client, self.stream)), "a new stream has events")
        subscribers = await persist(lambda: client.context.controller.list_subscribers(self.stream))
        require(not subscribers, f"a new stream has subscribers: {subscribers}")
        for piece in self._old_slices:
            with contextlib.suppress(NotFoundError, SegmentTruncatedError):
                found = [event async for events in client.read_slice(piece) for event in events]
                raise Violation(f"segment {piece.segment} of a deleted stream can be read: {found[:2]}")
        for transaction, sent in self._old_transactions:
            await self._check_powerless(client, transaction, sent)
        if self._old_cut:
            valid = await persist(lambda: client.context.controller.is_cut_valid(self.stream, self._old_cut))
            require(not valid, "a cut of a deleted stream is valid in the new one of its name")

    async def _check_powerless(self, client: Client, transaction: Transaction, sent: Sent) -> None:
        controller, identity = client.context.controller, transaction.transaction_id
        ping = await persist(lambda: controller.ping_transaction(self.stream, identity, LEASE_MS))
        require(ping is PingStatus.UNKNOWN, f"{sent.name} of a deleted stream is {ping.name} in the new one")
        for call in (controller.commit_transaction, controller.abort_transaction):
            try:
                await persist(lambda: call(self.stream, identity))  # noqa: B023
            except (IllegalStateError, NotFoundError):
                continue
            raise Violation(f"{sent.name} of a deleted stream could be decided in the new one")

    async def _subscribe(self, client: Client, number: int) -> str | None:
        if self._random.random() < 0.5:
            return None
        group = f"watch{number}"
        config = group_config({self.stream: None}, retention=StreamDataRetention.MANUAL)
        await persist(lambda: client.reader_groups(self.stream.scope).create(group, config))
        return group

    async def _retag(self, client: Client, number: int) -> None:
        """Replace the configuration; lists by tag follow."""
        if self._random.random() < 0.5:
            return
        config = await persist(lambda: client.context.controller.stream_config(self.stream))
        tagged = StreamConfig(config.scaling, tags=(f"later{number}",))
        try:
            await persist(lambda: client.streams.update_stream(self.stream, tagged))
        except IllegalStateError:
            return  # another attempt of the same call goes on
        await self._check_listed(client, f"later{number}", listed=True)
        await self._check_listed(client, f"life{number}", listed=False)

    async def _check_listed(self, client: Client, tag: str, *, listed: bool) -> None:
        found = await persist(lambda: client.streams.list_streams(self.stream.scope, tag=tag))
        require((self.stream in found) == listed, f"by tag {tag} the scope lists {found}")

    async def _seal(self, client: Client, ledger: Ledger, transactor: Transactor) -> None:
        """Sealed: what was written stays, open transactions are aborted, nothing can be written any more."""
        await persist(lambda: client.streams.seal_stream(self.stream))
        await transactor.check_answers()
        ledger.check_stored(await stored_pieces(client, self.stream))
        epochs = await all_epochs(client, self.stream)
        ranges = check_epochs(epochs)
        tail = await persist(lambda: client.streams.tail(self.stream))
        check_cut(tail.positions, ranges, "the end of a sealed stream")
        require(not await persist(lambda: client.context.controller.current_segments(self.stream)), "sealed, and open")
        self._numbers |= {segment_number(identifier) for identifier in ranges}
        self._old_cut = dict(tail.positions)
        self._old_slices = await persist(lambda: client.slices(self.stream))

    async def _delete(self, client: Client, group: str | None) -> None:
        if group is not None:
            subscribers = await persist(lambda: client.context.controller.list_subscribers(self.stream))
            require(subscribers == [f"{self.stream.scope}/{group}"], f"{group} subscribed; subscribers: {subscribers}")
            if self._random.random() < 0.5:
                await self._delete_group(client, group)
                group = None
        await persist(lambda: client.streams.delete_stream(self.stream))
        while await persist(lambda: client.context.controller.stream_exists(self.stream)):
            await self._delete_late_one(client)
        found = await persist(lambda: client.streams.list_streams(self.stream.scope, internal=True))
        mark = StreamName(self.stream.scope, f"_MARK{self.stream.stream}")
        require(self.stream not in found and mark not in found, f"a deleted stream is listed: {found}")
        if group is not None:
            await self._delete_group(client, group)

    async def _delete_group(self, client: Client, group: str) -> None:
        await persist(lambda: client.reader_groups(self.stream.scope).delete(group))

    async def _delete_late_one(self, client: Client) -> None:
        """A call to create the stream whose answer was lost may have its effect late: then this is a new stream."""
        with contextlib.suppress(NotFoundError):
            await self._check_new(client)
            await persist(lambda: client.streams.seal_stream(self.stream))
            await persist(lambda: client.streams.delete_stream(self.stream))


class RecreatedTable:
    """A key-value table that two clients update under conditions, deleted and created again."""

    def __init__(self, scope: str, rng: random.Random) -> None:
        self.rounds = rng.choice([0, 0, 1, 2])
        self.steps = 0
        self._scope = scope
        self._random = rng

    async def run(self, client: Client) -> None:
        """All rounds, from creation to deletion."""
        for number in range(self.rounds):
            config = TableConfig(self._random.randint(1, 3), 4, 4)
            await persist(lambda: client.context.controller.create_table(self._scope, "table", config))  # noqa: B023
            tables = [await self._open(client) for _ in range(2)]
            found = [entry async for entry in tables[0].entries()]
            require(not found, f"a new table has entries: {found}")
            keys = [TableKeyParts(b"%04d" % key, b"here") for key in range(3)]
            done = await asyncio.gather(*(self._update(table, keys, f"{number}.{n}") for n, table in enumerate(tables)))
            await self._check(tables[0], keys, [token for answers in done for token in answers])
            await persist(lambda: client.context.controller.delete_table(self._scope, "table"))

    async def _open(self, client: Client) -> KeyValueTable:
        return await persist(lambda: client.table(self._scope, "table").start())

    async def _update(self, table: KeyValueTable, keys: list[TableKeyParts], who: str) -> list[tuple[Any, bytes]]:
        """Add tokens to the values, each under the version read; those that were acknowledged."""
        answers = []
        for number in range(self._random.randint(1, 12)):
            key, token = self._random.choice(keys), f"{who}.{number};".encode()
            while True:
                before = await persist(lambda: table.get(key))  # noqa: B023
                value, version = (before.value, before.version) if before is not None else (b"", -1)
                try:
                    await table.put(key, value + token, version=version)
                except TableKeyBadVersionError:
                    continue
                except UnavailableError:
                    break  # unknown
                answers.append((key, token))
                self.steps += 1
                break
        return answers

    @staticmethod
    async def _check(table: KeyValueTable, keys: list[TableKeyParts], answers: list[tuple[Any, bytes]]) -> None:
        values = {}
        for key in keys:
            found = await persist(lambda: table.get(key))  # noqa: B023
            values[key] = [] if found is None else found.value.split(b";")[:-1]
            require(len(set(values[key])) == len(values[key]), f"a table update happened twice: {values[key]}")
        for key, token in answers:
            require(token[:-1] in values[key], f"an acknowledged table update is lost: {token!r} of {key}")
