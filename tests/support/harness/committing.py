"""Transactions whose controller is struck while it commits them, and what must have become of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from harness.pods import until
from tailrace.client import Client, StreamName
from tailrace.client.writer.transactions import Transaction, TransactionalWriter

STREAM = StreamName("live", "stream")
ROUNDS_MAX = 50
AT_ONCE = 40
LEASE_MS = 10_000
FINISHED_WITHIN_S = 120.0

Pair = tuple[Transaction, bytes]
"""A transaction and its one event."""


class Transactions:
    """Transactions of one event each, with what became of them."""

    def __init__(self, writer: TransactionalWriter) -> None:
        self._writer = writer
        self.accepted: list[Pair] = []
        self.open: list[Pair] = []

    async def begin(self, count: int) -> list[Pair]:
        """Begin some, and write an event into each."""
        made = []
        for _ in range(count):
            transaction = await self._writer.begin()
            event = str(transaction.transaction_id).encode()  # of no other transaction, also of other rounds
            await transaction.write_event(event, event.decode())
            await transaction.flush()
            made.append((transaction, event))
        self.open += made
        return made

    async def commit(self, pair: Pair) -> None:
        """Commit one; what fails stays open, or was accepted without an answer."""
        await pair[0].commit()
        self.open.remove(pair)
        self.accepted.append(pair)


class Strike(NamedTuple):
    """What happens to a controller, and how it is undone so that the controller is ready again."""

    do: Callable[[], object]
    undo: Callable[[], Awaitable[object]]


async def committing(client: Client, pairs: Sequence[Pair]) -> int:
    """How many are accepted, and not carried out yet."""
    call = client.context.controller.transaction_state
    states = await asyncio.gather(*(call(STREAM, pair[0].transaction_id) for pair in pairs))
    return sum(state.name == "COMMITTING" for state in states)


async def strike_while_committing(address: str, survivor: Client, strike: Strike) -> tuple[Transactions, float]:
    """Commit many at once at a controller, and strike it at the first answer, until some were accepted and not done.

    Returns them, and when it was struck on the loop's clock.
    """
    loop = asyncio.get_running_loop()
    for _ in range(ROUNDS_MAX):
        async with Client(address) as doomed:
            transactions = Transactions(doomed.transactional_writer(STREAM, lease_ms=LEASE_MS))
            pairs = await transactions.begin(AT_ONCE)
            calls = [asyncio.ensure_future(transactions.commit(pair)) for pair in pairs]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            strike.do()
            struck_s = loop.time()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            for transaction, _ in pairs:
                transaction.stop_pinging()
        if await committing(survivor, transactions.accepted):
            return transactions, struck_s
        await strike.undo()
        await check(survivor, transactions)  # none of a round that was too late is lost or doubled either
    raise AssertionError(f"in {ROUNDS_MAX} rounds no commit was accepted and not carried out when its controller ended")


async def check(client: Client, transactions: Transactions) -> None:
    """Accepted ones are committed, the others end with their leases; only events of committed ones are there, once."""
    state = client.context.controller.transaction_state

    async def ended() -> bool:
        pairs = [*transactions.accepted, *transactions.open]
        names = {(await state(STREAM, pair[0].transaction_id)).name for pair in pairs}
        return names <= {"COMMITTED", "ABORTED"}

    await until("every transaction has ended", ended, FINISHED_WITHIN_S)
    committed = set()
    for transaction, event in (*transactions.accepted, *transactions.open):
        if (await state(STREAM, transaction.transaction_id)).name == "COMMITTED":
            committed.add(event)
    assert {event for _, event in transactions.accepted} <= committed
    pieces = await client.slices(STREAM)
    found = [event for piece in pieces async for events in client.read_slice(piece) for event in events]
    assert len(found) == len(set(found)), "an event of any round is doubled"
    mine = [event for event in found if event in {pair[1] for pair in (*transactions.accepted, *transactions.open)}]
    assert sorted(mine) == sorted(committed), "an event is lost, doubled, or of a transaction that was not committed"
