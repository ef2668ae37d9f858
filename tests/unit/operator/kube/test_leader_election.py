"""The operator's Lease: who leads, who takes over, who ends; in simulated time (ADR 0013)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from tailrace.cluster.kubernetes import LEASES, Kind
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace_operator.kube.leader_election import LEASE_NAME, LeaderElection, LeadershipLostError


class LoopClock:
    """Wall clock by the loop's."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_767_323_045_000


class Stage:
    """Processes with APIs of their own over one truth."""

    def __init__(self) -> None:
        self.first_api = LocalKubernetes()
        self.core = self.first_api.core
        self.second_api = LocalKubernetes(self.core)
        self.first = LeaderElection(self.first_api, "first", LoopClock())
        self.second = LeaderElection(self.second_api, "second", LoopClock())

    @property
    def holder(self) -> str:
        return str(self.core.get(LEASES, LEASE_NAME)["spec"]["holderIdentity"])


def away(*verbs: str) -> Callable[[str, Kind, str], Awaitable[None]]:
    async def fail(verb: str, kind: Kind, name: str) -> None:
        if not verbs or verb in verbs:
            raise UnavailableError("away")

    return fail


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario(Stage())

        world.run(main())


async def ended(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_one_of_two_leads_and_keeps_it() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.first.acquire()
        keeping: asyncio.Task[object] = asyncio.create_task(stage.first.keep())
        waiting: asyncio.Task[object] = asyncio.create_task(stage.second.acquire())
        await asyncio.sleep(120)
        assert stage.holder == "first"
        assert not keeping.done()
        assert not waiting.done()
        await ended(keeping, waiting)

    play(scenario)


def test_a_silent_leader_is_followed_only_after_it_must_have_ended() -> None:
    async def scenario(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        await stage.first.acquire()
        keeping: asyncio.Task[object] = asyncio.create_task(stage.first.keep())
        waiting: asyncio.Task[object] = asyncio.create_task(stage.second.acquire())
        await asyncio.sleep(10)
        cut_s = loop.time()
        stage.first_api.before = away()
        with pytest.raises(LeadershipLostError, match="has not been renewed for 4 s"):
            await keeping
        lost_s = loop.time() - cut_s
        assert not waiting.done()
        await waiting
        assert lost_s <= limits.LEADER_DEADLINE_S < loop.time() - cut_s <= limits.LEADER_LAPSE_S + 2
        assert stage.holder == "second"

    play(scenario)


def test_passing_failures_cost_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.first.acquire()
        keeping: asyncio.Task[object] = asyncio.create_task(stage.first.keep())
        for verb in ("replace", "get"):
            stage.first_api.before = away(verb)
            await asyncio.sleep(limits.LEADER_DEADLINE_S - limits.LEADER_RENEW_S - 0.5)
            stage.first_api.before = None
            await asyncio.sleep(3)
            stage.first_api.after = away(verb)  # it was done, and its answer is lost
            await asyncio.sleep(limits.LEADER_DEADLINE_S - limits.LEADER_RENEW_S - 0.5)
            stage.first_api.after = None
            await asyncio.sleep(3)
        assert not keeping.done()
        assert stage.holder == "first"
        await ended(keeping)

    play(scenario)


def test_a_lease_that_was_let_go_is_taken_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        await stage.first.acquire()
        waiting: asyncio.Task[object] = asyncio.create_task(stage.second.acquire())
        await asyncio.sleep(3)
        await stage.first.release()
        let_go_s = loop.time()
        await waiting
        assert loop.time() - let_go_s <= limits.LEADER_RENEW_S + 0.1
        await stage.first.release()
        assert stage.holder == "second", "only the holder releases the Lease"

    play(scenario)


def test_a_standby_that_was_cut_off_counts_again() -> None:
    async def scenario(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        await stage.first.acquire()
        keeping: asyncio.Task[object] = asyncio.create_task(stage.first.keep())
        waiting: asyncio.Task[object] = asyncio.create_task(stage.second.acquire())
        await asyncio.sleep(3)
        stage.second_api.before = away()
        await asyncio.sleep(60)
        await ended(keeping)
        stage.second_api.before = None
        back_s = loop.time()
        await waiting
        assert loop.time() - back_s >= limits.LEADER_LAPSE_S

    play(scenario)


def test_a_leader_whose_lease_was_taken_or_deleted() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.first.acquire()
        keeping: asyncio.Task[object] = asyncio.create_task(stage.first.keep())
        await asyncio.sleep(3)
        stage.core.delete(LEASES, LEASE_NAME)
        await asyncio.sleep(3)
        assert stage.holder == "first", "it creates the Lease again"
        found = stage.core.get(LEASES, LEASE_NAME)
        stage.core.replace(LEASES, {**found, "spec": {**found["spec"], "holderIdentity": "second"}})
        with pytest.raises(LeadershipLostError, match="acquired by second"):
            await keeping

    play(scenario)


def test_a_take_whose_answer_was_lost_is_a_take() -> None:
    async def scenario(stage: Stage) -> None:
        stage.first_api.after = away("create")
        waiting: asyncio.Task[object] = asyncio.create_task(stage.first.acquire())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        stage.first_api.after = None
        await asyncio.wait_for(waiting, 2 * limits.LEADER_RENEW_S)
        assert stage.holder == "first"

    play(scenario)
