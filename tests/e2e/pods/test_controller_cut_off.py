"""A controller that no packet of a segment store reaches, while another one works: a partition without a death."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from harness.kubernetesserver import address_view
from harness.pods import PodProcess, Pods, until
from harness.tcprelay import Relay, relay
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName
from tailrace.client.writer.transactions import Transaction

STREAM = StreamName("cut", "stream")
AT_ONCE = 40
ROUNDS_MAX = 20
LEASE_MS = 10_000
FINISHED_WITHIN_S = 120.0

pytestmark = pytest.mark.timeout(290)


class CutOff:
    """Two controllers over the same stores; the first one reaches them through relays."""

    def __init__(self, pods: Pods, relays: list[Relay]) -> None:
        self.victim, self.other = pods.controllers
        self._relays = relays

    def cut(self) -> None:
        """From now on nothing passes between the victim and the stores."""
        for each in self._relays:
            each.cut()

    def heal(self) -> None:
        """Let everything pass again."""
        for each in self._relays:
            each.heal()


@asynccontextmanager
async def cut_off(pods: Pods) -> AsyncIterator[CutOff]:
    pods.declare()
    pods.store(0)
    async with contextlib.AsyncExitStack() as stack:
        addresses, relays = {}, []
        for address in pods.store_addresses():
            relays.append(await stack.enter_async_context(relay(f"http://{address}")))
            addresses[address] = relays[-1].endpoint.removeprefix("http://")
        view = await stack.enter_async_context(address_view(pods.kubernetes, addresses))
        pods.controller(0, view)
        pods.controller(1)
        await pods.complete()
        yield CutOff(pods, relays)


class Transactions:
    """Transactions of one event each, by what became of the calls to commit them."""

    def __init__(self) -> None:
        self.accepted: list[tuple[Transaction, bytes]] = []
        self.asked: list[tuple[Transaction, bytes]] = []
        self.one_more = asyncio.Event()
        """Set when another one was accepted."""
        self.names = 0

    async def commit_many(self, client: Client) -> None:
        """Begin some, write an event into each, and commit all at once; what fails may have been accepted."""
        writer = client.transactional_writer(STREAM, lease_ms=LEASE_MS)
        pairs = []
        for _ in range(AT_ONCE):
            event = f"{self.names}".encode()
            self.names += 1
            transaction = await writer.begin()
            await transaction.write_event(event, event.decode())
            await transaction.flush()
            pairs.append((transaction, event))
        self.asked += pairs

        async def commit(pair: tuple[Transaction, bytes]) -> None:
            await pair[0].commit()
            self.accepted.append(pair)
            self.one_more.set()

        try:
            await asyncio.gather(*(commit(pair) for pair in pairs))
        finally:
            for transaction, _ in pairs:
                transaction.stop_pinging()

    async def check(self, client: Client) -> None:
        """All end; those that were accepted are committed; the events of the committed ones are there, each once."""
        state = client.context.controller.transaction_state
        committed: set[bytes] = set()

        async def ended() -> bool:
            committed.clear()
            for transaction, event in self.asked:
                name = (await state(STREAM, transaction.transaction_id)).name
                if name not in ("COMMITTED", "ABORTED"):
                    return False
                if name == "COMMITTED":
                    committed.add(event)
            return True

        await until("every transaction has ended", ended, FINISHED_WITHIN_S)
        assert {event for _, event in self.accepted} <= committed
        pieces = await client.slices(STREAM)
        found = [event for piece in pieces async for events in client.read_slice(piece) for event in events]
        assert sorted(found) == sorted(committed), "an event is lost, doubled, or was not committed"


async def cut_while_committing(network: CutOff, transactions: Transactions, survivor: Client, pods: Pods) -> None:
    """Cut the victim off while commits that it has accepted are not carried out."""
    state = survivor.context.controller.transaction_state
    for _ in range(ROUNDS_MAX):
        async with Client(pods.address_of(network.victim)) as doomed:
            before = len(transactions.accepted)
            transactions.one_more.clear()
            calls = asyncio.ensure_future(transactions.commit_many(doomed))
            first = asyncio.ensure_future(transactions.one_more.wait())
            await asyncio.wait([first, calls], return_when=asyncio.FIRST_COMPLETED)
            network.cut()
            first.cancel()
            calls.cancel()
            await asyncio.gather(first, calls, return_exceptions=True)
        states = [await state(STREAM, pair[0].transaction_id) for pair in transactions.accepted[before:]]
        if any(found.name == "COMMITTING" for found in states):
            return
        network.heal()
        await network.victim.wait_ready()
    raise AssertionError(f"in {ROUNDS_MAX} rounds no commit was left when the controller that accepted it was cut off")


async def is_away(controller: PodProcess, pods: Pods) -> bool:
    """Whether it says that it is cut off, and no client can connect."""
    with contextlib.suppress(httpx.HTTPError):
        answer = await controller.get("/readyz")
        said = "no segment store has answered for" in str(answer.json()["reasons"])
        if answer.status_code == 503 and said:
            host, _, port = pods.address_of(controller).removeprefix("tcp://").rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=5.0).close()
            except ConnectionRefusedError:
                return True
    return False


async def test_a_controller_that_is_cut_off_sends_its_clients_away_and_harms_nothing(pods: Pods) -> None:
    """Its accepted work is done by the other one; it serves again when stores answer, and undoes nothing."""
    async with cut_off(pods) as network, Client(pods.address_of(network.other)) as client:
        await client.streams.create_scope(STREAM.scope)
        await client.streams.create_stream(STREAM, StreamConfig(scaling=ScalingPolicy.fixed(4)))
        transactions = Transactions()
        await cut_while_committing(network, transactions, client, pods)
        await transactions.check(client)
        await until("the controller that is cut off sends clients away", lambda: is_away(network.victim, pods))
        await transactions.commit_many(client)
        await client.streams.scale_to(STREAM, 8)
        network.heal()
        await network.victim.wait_ready()
        async with Client(pods.address_of(network.victim)) as again:
            await transactions.commit_many(again)
            await transactions.check(again)
            assert len(await again.context.controller.controllers()) == 2
        away = network.victim.log_events("controller_cut_off")
        assert len(away) == len(network.victim.log_events("controller_reaches_segment_stores")) > 0
        assert not network.other.log_events("controller_cut_off")
