"""Two live controllers: what one accepted is carried out by the other when it dies or stops; no third one starts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

import pytest

from harness.pace import Tries
from harness.pods import PodProcess, Pods, until
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName
from tailrace.client.writer.transactions import Transaction, TransactionalWriter
from tailrace.common.errors import NotFoundError

STREAM = StreamName("live", "stream")
ROUNDS_MAX = 50
AT_ONCE = 40
VISIBLE_WITHIN_S = 10.0
FINISHED_WITHIN_S = 120.0
LEASE_MS = 10_000
STOPPED_S = {"ci": 12.0, "full": 60.0}
"""Beyond the time after which a silent controller counts as dead."""

pytestmark = [pytest.mark.timeout(290), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def pods(whole_pods: Pods) -> Pods:
    """One cluster for all tests of this file."""
    return whole_pods


class Transactions:
    """Transactions of one event each, with what became of them."""

    def __init__(self, writer: TransactionalWriter) -> None:
        self._writer = writer
        self.written = 0
        self.accepted: list[tuple[Transaction, bytes]] = []
        self.open: list[tuple[Transaction, bytes]] = []

    async def begin(self, count: int) -> list[tuple[Transaction, bytes]]:
        """Begin some, and write an event into each."""
        made = []
        for _ in range(count):
            transaction, event = await self._writer.begin(), str(self.written).encode()
            self.written += 1
            await transaction.write_event(event, event.decode())
            await transaction.flush()
            made.append((transaction, event))
        self.open += made
        return made

    async def commit(self, pair: tuple[Transaction, bytes]) -> None:
        """Commit one; what fails stays open, or was accepted without an answer."""
        await pair[0].commit()
        self.open.remove(pair)
        self.accepted.append(pair)


async def committing(client: Client, pairs: Sequence[tuple[Transaction, bytes]]) -> int:
    """How many are accepted, and not carried out yet."""
    call = client.context.controller.transaction_state
    states = await asyncio.gather(*(call(STREAM, pair[0].transaction_id) for pair in pairs))
    return sum(state.name == "COMMITTING" for state in states)


async def strike_while_committing(
    pods: Pods, victim: PodProcess, survivor: Client, number: signal.Signals
) -> tuple[Transactions, float]:
    """Commit many at once at a controller, and strike it at the first answer, until some were accepted and not done."""
    loop = asyncio.get_running_loop()
    for _ in range(ROUNDS_MAX):
        async with Client(pods.address_of(victim)) as doomed:
            transactions = Transactions(doomed.transactional_writer(STREAM, lease_ms=LEASE_MS))
            pairs = await transactions.begin(AT_ONCE)
            calls = [asyncio.ensure_future(transactions.commit(pair)) for pair in pairs]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            victim.signal(number)
            struck_s = loop.time()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            for transaction, _ in pairs:
                transaction.stop_pinging()
        if await committing(survivor, transactions.accepted):
            return transactions, struck_s
        await revive(victim, number)
    raise AssertionError(f"in {ROUNDS_MAX} rounds no commit was accepted and not carried out when its controller ended")


async def revive(victim: PodProcess, number: signal.Signals) -> None:
    """Undo a strike."""
    if number is signal.SIGSTOP:
        victim.signal(signal.SIGCONT)
    else:
        await victim.kill()
        await victim.start()
    await victim.wait_ready()


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
    mine = [event for event in found if event in {pair[1] for pair in (*transactions.accepted, *transactions.open)}]
    assert sorted(mine) == sorted(committed), "an event is lost, doubled, or of a transaction that was not committed"


async def make_stream(pods: Pods, controller: PodProcess) -> None:
    """An empty stream, in the place of one that may be there; other controllers have no task for it."""
    async with Client(pods.address_of(controller)) as client:
        await client.streams.create_scope(STREAM.scope)
        with contextlib.suppress(NotFoundError):
            await client.streams.seal_stream(STREAM)
            await client.streams.delete_stream(STREAM)
        await client.streams.create_stream(STREAM, StreamConfig(scaling=ScalingPolicy.fixed(4)))


async def test_commits_of_a_controller_that_is_killed_are_carried_out(pods: Pods) -> None:
    victim, other = pods.controllers
    loop = asyncio.get_running_loop()
    async with Client(pods.address_of(other)) as client:
        for attempt in Tries("SIGKILL of a controller with accepted commits", {"visible": VISIBLE_WITHIN_S}):
            if attempt.number > 1:
                await revive(victim, signal.SIGKILL)
            await make_stream(pods, victim)
            transactions, killed_s = await strike_while_committing(pods, victim, client, signal.SIGKILL)

            async def visible(transactions: Transactions = transactions) -> bool:
                return not await committing(client, transactions.accepted)

            await until("all accepted commits are visible", visible, FINISHED_WITHIN_S)
            attempt.note("visible", loop.time() - killed_s)
            await check(client, transactions)
        addresses = await client.context.controller.controllers()
        assert len(addresses) == 1, "the dead one is no longer named"


async def test_a_controller_that_is_stopped_for_long_harms_nothing(pods: Pods, test_profile: str) -> None:
    victim, other = pods.controllers
    async with Client(pods.address_of(other)) as client:
        await make_stream(pods, victim)
        transactions, _ = await strike_while_committing(pods, victim, client, signal.SIGSTOP)
        await check(client, transactions)
        await make_stream(pods, other)  # again: what the stopped one had begun must not touch it
        more = Transactions(client.transactional_writer(STREAM, lease_ms=LEASE_MS))
        for pair in await more.begin(5):
            await more.commit(pair)
        await asyncio.sleep(STOPPED_S[test_profile])  # the fault's length
        await revive(victim, signal.SIGSTOP)
        await check(client, more)
        for pair in await more.begin(5):
            await more.commit(pair)
        await check(client, more)
