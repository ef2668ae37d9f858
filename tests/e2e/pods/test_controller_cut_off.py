"""A controller that no packet of a segment store reaches, while another one works: a partition without a death."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from harness.committing import LEASE_MS, STREAM, Strike, Transactions, check, strike_while_committing
from harness.kubernetesserver import address_view
from harness.pods import PodProcess, Pods, until
from harness.tcprelay import Relay, relay
from tailrace.client import Client, ScalingPolicy, StreamConfig

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


async def commit_some(client: Client) -> Transactions:
    """Transactions that are all committed, or their commits accepted."""
    transactions = Transactions(client.transactional_writer(STREAM, lease_ms=LEASE_MS))
    for pair in await transactions.begin(10):
        await transactions.commit(pair)
    assert not transactions.open
    return transactions


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

        async def heal() -> None:
            network.heal()
            await network.victim.wait_ready()

        strike = Strike(network.cut, heal)
        done = [(await strike_while_committing(pods.address_of(network.victim), client, strike))[0]]
        await check(client, done[0])
        await until("the controller that is cut off sends clients away", lambda: is_away(network.victim, pods))
        done.append(await commit_some(client))
        await client.streams.scale_to(STREAM, 8)
        await heal()
        async with Client(pods.address_of(network.victim)) as again:
            done.append(await commit_some(again))
            for transactions in done:
                await check(again, transactions)
            assert len(await again.context.controller.controllers()) == 2
        away = network.victim.log_events("controller_cut_off")
        assert len(away) == len(network.victim.log_events("controller_reaches_segment_stores")) > 0
        assert not network.other.log_events("controller_cut_off")
