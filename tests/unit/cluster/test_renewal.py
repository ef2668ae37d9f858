"""Renewals of a worker's Lease, and the heartbeat rule: load is not death, a loop that hangs is.

See docs/design.md#failure-detection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.localkubernetes import LocalKubernetes
from sim import SimWorld
from sim.kubernetes import KubernetesCore
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.heartbeat import Heart, HeartbeatRule
from tailrace.cluster.kubernetes import LEASES
from tailrace.cluster.leases import WorkerLease, read_worker_lease
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, NotOwnerError, UnavailableError
from tailrace.common.real_ports import SystemClock

ENDPOINTS = ContainerEndpoints(Endpoint("h", 1))


def renewer(api: LocalKubernetes, incarnation: str = "1", heart: Heart | None = None) -> Renewer:
    return Renewer(api, "c", "w", incarnation, ENDPOINTS, SystemClock(), heart or Heart())


def stored(core: KubernetesCore) -> WorkerLease:
    lease = read_worker_lease(core.get(LEASES, "c.worker.w"))
    assert lease is not None
    return lease


@pytest.fixture
def api() -> LocalKubernetes:
    return LocalKubernetes()


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_a_loop_that_beats_is_renewed_for() -> None:
    rule = HeartbeatRule(0.0, fresh_s=15.0)
    assert all(rule.may_renew(beats, float(beats)) for beats in range(100))


def test_a_slow_loop_is_load_and_a_blocked_one_is_death() -> None:
    rule = HeartbeatRule(0.0, fresh_s=15.0)
    assert rule.may_renew(1, 10.0)
    assert rule.may_renew(1, 25.0)
    assert not rule.may_renew(1, 25.1)
    assert rule.may_renew(2, 60.0)


def test_a_loop_that_never_beats_is_not_renewed_for_ever() -> None:
    rule = HeartbeatRule(100.0, fresh_s=15.0)
    assert rule.may_renew(0, 100.0)
    assert not rule.may_renew(0, 115.1)


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=30))
def test_it_renews_exactly_as_long_as_a_beat_was_seen_lately(steps: list[tuple[float, bool]]) -> None:
    rule, now_s, beats, seen_s = HeartbeatRule(0.0, fresh_s=15.0), 0.0, -1, 0.0
    for wait_s, beaten in steps:
        now_s += wait_s
        if beaten:
            beats += 1
            seen_s = now_s
        assert rule.may_renew(beats, now_s) == (now_s - seen_s <= 15.0)


# -- one renewer ------------------------------------------------------------------------------------------------------


async def test_each_renewal_has_a_number_of_its_own(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()
    assert stored(api.core) == WorkerLease("w", "1", 1, False, ENDPOINTS)
    for number in range(2, 5):
        await one.renew()
        assert stored(api.core).renewal == number
    assert [verb for verb, _ in api.requests] == ["get", "create", "replace", "replace", "replace"]


async def test_the_lease_names_what_the_worker_cannot_open(api: LocalKubernetes) -> None:
    texts = ["", "container 1 is not open: damaged", ""]
    one = Renewer(api, "c", "w", "1", ENDPOINTS, SystemClock(), Heart(), not_open=lambda: texts[0])
    await one.register()
    assert stored(api.core).not_open == ""
    del texts[0]
    await one.renew()
    assert stored(api.core).not_open == "container 1 is not open: damaged"
    del texts[0]
    await one.renew()
    assert stored(api.core).not_open == ""


async def test_the_lease_says_for_how_long_the_object_store_does_not_answer(api: LocalKubernetes) -> None:
    seconds = [0, 12, 0]
    one = Renewer(api, "c", "w", "1", ENDPOINTS, SystemClock(), Heart(), store_silent_s=lambda: seconds[0])
    await one.register()
    for expected in (0, 12, 0):
        seconds[0] = expected
        await one.renew()
        assert stored(api.core).store_silent_s == expected


async def test_who_leaves_says_so(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()
    one.leave()
    assert not one.left.is_set()
    await one.renew()
    assert one.left.is_set()
    assert stored(api.core).leaving


async def test_a_mark_whose_writing_was_not_acknowledged_counts_as_not_written(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()

    async def lose(verb: str, kind: Any, name: str) -> None:
        raise DeadlineError("no answer")

    api.after = lose
    one.leave()
    with pytest.raises(UnavailableError):
        await one.renew()
    assert not one.left.is_set()
    api.after = None
    await one.renew()
    assert one.left.is_set()


async def test_a_renewal_under_way_as_the_worker_leaves_is_not_its_mark(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()

    async def leave(verb: str, kind: Any, name: str) -> None:
        api.before = None
        one.leave()

    api.before = leave
    running = asyncio.ensure_future(one.run())
    async with asyncio.timeout(limits.WORKER_LEASE_RENEW_S / 2):  # the next one does not wait for its time
        await one.left.wait()
    assert stored(api.core).leaving
    assert [verb for verb, _ in api.requests] == ["get", "create", "replace", "replace"]
    running.cancel()
    await asyncio.wait([running])


async def test_a_wiped_lease_is_made_again(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()
    api.core.delete(LEASES, "c.worker.w")
    await one.renew()
    assert stored(api.core).incarnation == "1"


async def test_an_edited_lease_is_still_renewed(api: LocalKubernetes) -> None:
    one = renewer(api)
    await one.register()
    edited = api.core.get(LEASES, "c.worker.w")
    edited["metadata"]["labels"]["mine"] = "1"
    api.core.replace(LEASES, edited)
    await one.renew()
    assert stored(api.core).renewal > 1
    assert api.core.get(LEASES, "c.worker.w")["metadata"]["labels"]["mine"] == "1"


async def test_the_younger_process_is_the_worker(api: LocalKubernetes) -> None:
    old, new = renewer(api, "1"), renewer(api, "2")
    await old.register()
    await new.register()
    with pytest.raises(NotOwnerError, match="started elsewhere"):
        await old.renew()
    await new.renew()
    assert stored(api.core).incarnation == "2"


@pytest.mark.parametrize("verb", ["create", "replace"])
async def test_a_renewal_whose_outcome_is_unknown_uses_its_number_up(api: LocalKubernetes, verb: str) -> None:
    one = renewer(api)

    async def lose(sent: str, kind: Any, name: str) -> None:
        if sent == verb:
            api.after = None
            raise DeadlineError("no answer")

    if verb == "create":
        api.after = lose
        with pytest.raises(UnavailableError):
            await one.register()
        await one.register()
        assert stored(api.core).renewal == 2
    else:
        await one.register()
        api.after = lose
        with pytest.raises(UnavailableError):
            await one.renew()
        await one.renew()
        assert stored(api.core).renewal == 3


async def test_a_lease_that_others_always_change_is_reported(api: LocalKubernetes) -> None:
    one = renewer(api)

    async def edit(verb: str, kind: Any, name: str) -> None:
        if verb == "replace":
            edited = api.core.get(LEASES, "c.worker.w")
            edited["metadata"]["labels"]["count"] = str(len(api.requests))
            api.core.replace(LEASES, edited)

    await one.register()
    api.before = edit
    with pytest.raises(UnavailableError, match="always changed"):
        await one.renew()
    with pytest.raises(UnavailableError, match="always changed"):
        await one.register()


def test_it_goes_on_through_outages_and_stops_while_the_loop_hangs() -> None:
    with SimWorld(1) as world:
        heart = Heart()

        async def main() -> None:
            process = world.process("w")
            one = Renewer(world.kubernetes.attach(process), "c", "w", "1", ENDPOINTS, world.clock(), heart)
            beating = process.spawn(heart.beat())
            process.spawn(one.run())

            async def renewals_in(seconds: float) -> int:
                found = world.kubernetes.core.objects.get(("leases", "c.worker.w"))
                before = stored(world.kubernetes.core).renewal if found else 0
                await asyncio.sleep(seconds)
                return stored(world.kubernetes.core).renewal - before

            assert 25 <= await renewals_in(30) <= 31
            world.kubernetes.outage(60)
            await asyncio.sleep(65)
            assert 25 <= await renewals_in(30) <= 31
            beating.cancel()
            await asyncio.sleep(limits.HEARTBEAT_FRESH_S + 1)
            assert await renewals_in(30) == 0
            process.spawn(heart.beat())
            await asyncio.sleep(1)
            assert 25 <= await renewals_in(30) <= 31

        world.run(main())


def test_who_leaves_renews_at_once_and_then_in_time_as_before() -> None:
    with SimWorld(1) as world:
        heart = Heart()

        async def main() -> None:
            process = world.process("w")
            one = Renewer(world.kubernetes.attach(process), "c", "w", "1", ENDPOINTS, world.clock(), heart)
            process.spawn(heart.beat())
            process.spawn(one.run())
            await asyncio.sleep(10.5)
            one.leave()
            began_s = world.loop.time()
            await one.left.wait()
            assert world.loop.time() - began_s < limits.WORKER_LEASE_RENEW_S / 4
            assert stored(world.kubernetes.core).leaving
            before = stored(world.kubernetes.core).renewal
            await asyncio.sleep(30)
            assert 25 <= stored(world.kubernetes.core).renewal - before <= 31

        world.run(main())


# -- the thread -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_LEASE_RENEW_S", 0.01)
    monkeypatch.setattr(limits, "HEARTBEAT_S", 0.005)


class Threaded:
    """A renewal thread over a core of its own."""

    def __init__(self, core: KubernetesCore, incarnation: str = "1") -> None:
        self.core = core
        self.heart = Heart()
        self.renewed = threading.Semaphore(0)
        self.closed = threading.Event()
        self.incarnation = incarnation
        self.failing: Exception | None = None
        self.thread = RenewalThread(self.connect)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Renewer]:
        api = LocalKubernetes(self.core)

        async def before(verb: str, kind: Any, name: str) -> None:
            if self.failing is not None:
                raise self.failing

        async def after(verb: str, kind: Any, name: str) -> None:
            if verb in ("create", "replace"):
                self.renewed.release()

        api.before, api.after = before, after
        try:
            yield renewer(api, self.incarnation, self.heart)
        finally:
            self.closed.set()

    async def renewals(self, count: int) -> bool:
        """Wait, without the loop, for so many renewals from now on; whether they came."""
        while self.renewed.acquire(blocking=False):
            pass
        return all(self.renewed.acquire(timeout=120) for _ in range(count))


@pytest.mark.usefixtures("fast")
async def test_the_thread_renews_while_the_loop_is_busy() -> None:
    one = Threaded(KubernetesCore())
    await one.thread.start()
    assert stored(one.core).incarnation == "1"
    assert await one.renewals(5)  # this blocks the loop: no beat is made, and none is needed yet
    one.thread.leave()
    assert await one.renewals(2)
    assert stored(one.core).leaving
    await one.thread.stop()
    assert one.closed.is_set()


async def test_the_thread_reports_when_the_lease_says_that_the_worker_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_LEASE_RENEW_S", 3600.0)
    one = Threaded(KubernetesCore())
    await one.thread.start()
    one.failing = UnavailableError("no API here")
    one.thread.leave()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.thread.wait_left(), 0.2)
    one.failing = None
    one.thread.leave()
    await asyncio.wait_for(one.thread.wait_left(), 120)
    assert stored(one.core).leaving
    await one.thread.stop()


@pytest.mark.usefixtures("fast")
async def test_a_thread_that_begins_as_the_worker_leaves_says_so_at_once() -> None:
    one = Threaded(KubernetesCore())
    one.thread.leave()
    await one.thread.start()
    await asyncio.wait_for(one.thread.wait_left(), 120)
    assert stored(one.core).leaving
    await one.thread.stop()


@pytest.mark.usefixtures("fast")
async def test_the_thread_stops_renewing_for_a_loop_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_FRESH_S", 0.2)
    one = Threaded(KubernetesCore())
    await one.thread.start()
    while one.renewed.acquire(timeout=1):
        pass  # the loop waits here and makes no beat; this ends when there was no renewal for a second
    last = stored(one.core).renewal
    one.heart.beats += 1
    assert one.renewed.acquire(timeout=120)
    assert stored(one.core).renewal > last
    await one.thread.stop()


@pytest.mark.usefixtures("fast")
async def test_the_thread_reports_when_the_worker_was_started_again_elsewhere() -> None:
    old = Threaded(KubernetesCore())
    await old.thread.start()
    new = Threaded(old.core, "2")
    await new.thread.start()
    await asyncio.wait_for(old.thread.wait_superseded(), 120)
    assert await new.renewals(2)
    for one in (old, new):
        await one.thread.stop()
        assert one.closed.is_set()


@pytest.mark.usefixtures("fast")
async def test_a_thread_that_cannot_register_says_why() -> None:
    one = Threaded(KubernetesCore())
    one.failing = UnavailableError("no API here")
    with pytest.raises(UnavailableError, match="no API here"):
        await one.thread.start()
    await one.thread.stop()
    assert one.closed.is_set()


@pytest.mark.usefixtures("fast")
async def test_a_thread_that_was_never_started_stops() -> None:
    await Threaded(KubernetesCore()).thread.stop()
