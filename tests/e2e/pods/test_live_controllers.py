"""Two live controllers: what one accepted is carried out by the other when it dies or stops; no third one starts."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from harness.committing import (
    FINISHED_WITHIN_S,
    LEASE_MS,
    STREAM,
    Strike,
    Transactions,
    check,
    committing,
    strike_while_committing,
)
from harness.pace import Tries
from harness.pods import PodProcess, Pods, until
from tailrace.client import Client, ScalingPolicy, StreamConfig
from tailrace.common.errors import NotFoundError

VISIBLE_WITHIN_S = 10.0
STOPPED_S = {"ci": 12.0, "full": 60.0}
"""Beyond the time after which a silent controller counts as dead."""

pytestmark = [pytest.mark.timeout(290), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture
def pods(whole_pods: Pods) -> Pods:
    """One cluster for all tests of this file."""
    return whole_pods


def struck(victim: PodProcess, number: signal.Signals) -> Strike:
    """A signal for all processes of a controller."""

    async def revive() -> None:
        if number is signal.SIGSTOP:
            victim.signal(signal.SIGCONT)
        else:
            await victim.kill()
            await victim.start()
        await victim.wait_ready()

    return Strike(lambda: victim.signal(number), revive)


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
    loop, strike = asyncio.get_running_loop(), struck(victim, signal.SIGKILL)
    async with Client(pods.address_of(other)) as client:
        for attempt in Tries("SIGKILL of a controller with accepted commits", {"visible": VISIBLE_WITHIN_S}):
            if attempt.number > 1:
                await strike.undo()
            await make_stream(pods, victim)
            transactions, killed_s = await strike_while_committing(pods.address_of(victim), client, strike)

            async def visible(transactions: Transactions = transactions) -> bool:
                return not await committing(client, transactions.accepted)

            await until("all accepted commits are visible", visible, FINISHED_WITHIN_S)
            attempt.note("visible", loop.time() - killed_s)
            await check(client, transactions)
        addresses = await client.context.controller.controllers()
        assert len(addresses) == 1, "the dead one is no longer named"


async def test_a_controller_that_is_stopped_for_long_harms_nothing(pods: Pods, test_profile: str) -> None:
    victim, other = pods.controllers
    strike = struck(victim, signal.SIGSTOP)
    async with Client(pods.address_of(other)) as client:
        await make_stream(pods, victim)
        transactions, _ = await strike_while_committing(pods.address_of(victim), client, strike)
        await check(client, transactions)
        await make_stream(pods, other)  # again: what the stopped one had begun must not touch it
        more = Transactions(client.transactional_writer(STREAM, lease_ms=LEASE_MS))
        for pair in await more.begin(5):
            await more.commit(pair)
        await asyncio.sleep(STOPPED_S[test_profile])  # the fault's length
        await strike.undo()
        await check(client, more)
        for pair in await more.begin(5):
            await more.commit(pair)
        await check(client, more)
