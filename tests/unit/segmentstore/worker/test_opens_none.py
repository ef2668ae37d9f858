"""What a worker reports of whether it can open any of its containers: its pod's readiness follows from that."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    ContainerStoppedError,
    CorruptionError,
    DiskFullError,
    FencedError,
    NoSuchBucketError,
    UnavailableError,
)
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.worker.cluster_service import report_not_open
from tailrace.segmentstore.worker.not_open import NotOpen, Openings, Opens, is_waiting

from ..conftest import eventually
from .test_worker_containers import Cluster, cluster, running

__all__ = ["cluster"]

DAMAGED = NotOpen(0, 5.0, "damaged")
AWAY = NotOpen(1, 5.0, "no answer", waits=True)


def test_a_worker_that_opens_none_says_so_after_a_while() -> None:
    openings = Openings()
    assert openings.look(100.0, 0, [], store_answers=True) is Opens.NOTHING_DUE
    assert openings.look(200.0, 2, [DAMAGED, DAMAGED], store_answers=True) is Opens.TRYING
    assert openings.look(219.9, 1, [DAMAGED], store_answers=True) is Opens.TRYING
    assert openings.look(220.0, 1, [DAMAGED], store_answers=True) is Opens.NONE
    assert openings.look(221.0, 2, [DAMAGED], store_answers=True) is Opens.SOME
    assert openings.look(222.0, 1, [DAMAGED], store_answers=True) is Opens.TRYING
    assert openings.look(250.0, 0, [], store_answers=True) is Opens.NOTHING_DUE


@pytest.mark.parametrize(("closed", "answers"), [([DAMAGED], False), ([AWAY], True), ([DAMAGED, AWAY], True)])
def test_an_outage_is_no_fault_of_the_worker_and_no_time_of_it_counts(closed: list[NotOpen], answers: bool) -> None:
    openings = Openings()
    assert openings.look(0.0, 2, [DAMAGED, DAMAGED], store_answers=True) is Opens.TRYING
    assert openings.look(19.0, len(closed), closed, store_answers=answers) is Opens.NOTHING_DUE
    assert openings.look(600.0, len(closed), closed, store_answers=answers) is Opens.NOTHING_DUE
    assert openings.look(601.0, 2, [DAMAGED, DAMAGED], store_answers=True) is Opens.TRYING
    assert openings.look(621.0, 2, [DAMAGED, DAMAGED], store_answers=True) is Opens.NONE


@pytest.mark.parametrize(("closed", "answers"), [([DAMAGED], False), ([AWAY], True), ([DAMAGED, AWAY], True)])
def test_an_outage_does_not_hide_a_fault_that_was_there_before(closed: list[NotOpen], answers: bool) -> None:
    """Else a rollout that has stopped would go on to the next pod."""
    openings = Openings()
    openings.look(0.0, 2, [DAMAGED, DAMAGED], store_answers=True)
    assert openings.look(20.0, 2, [DAMAGED, DAMAGED], store_answers=True) is Opens.NONE
    assert openings.look(30.0, len(closed), closed, store_answers=answers) is Opens.NONE
    assert openings.look(31.0, 2, [DAMAGED], store_answers=True) is Opens.SOME
    assert openings.look(32.0, len(closed), closed, store_answers=answers) is Opens.NOTHING_DUE


def test_which_errors_are_of_something_else() -> None:
    waiting = [UnavailableError("x"), NoSuchBucketError("x"), FencedError("x", 3)]
    own = [CorruptionError("frame 3", "x"), DiskFullError("x"), OSError("x"), KeyError("x"), ContainerStoppedError("x")]
    assert all(map(is_waiting, waiting))
    assert not any(map(is_waiting, own))
    for error, expected in ((waiting[0], True), (own[0], False)):
        stopped = ContainerStoppedError("container 3 stopped")
        stopped.__cause__ = error
        assert is_waiting(stopped) is expected


@pytest.mark.parametrize("how", ["raises", "hangs", "damaged"])
async def test_a_fault_of_the_image_is_reported_and_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(limits, "CONTAINERS_NOT_OPEN_POLL_S", 0.01)
    monkeypatch.setattr(limits, "POD_OPENS_NONE_S", 0.2)
    start, heard = Container.start, list[Opens]()

    async def fails(container: Container, nonce: bytes) -> None:
        if how == "raises":
            raise ValueError("a fault of the image")
        if how == "damaged":
            raise CorruptionError("frame 3", "a fault of the image")
        await asyncio.Event().wait()

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    worker = cluster.worker("one")
    async with running(worker):
        monkeypatch.setattr(Container, "start", fails)
        reporting = asyncio.ensure_future(report_not_open(worker, lambda _: None, opens=heard.append))
        await eventually(lambda: heard == [Opens.NOTHING_DUE])
        opening = [asyncio.ensure_future(worker.open_container(number)) for number in (0, 1)]
        await eventually(lambda: heard[1:] == [Opens.TRYING, Opens.NONE])
        monkeypatch.setattr(Container, "start", start)
        opening.append(asyncio.ensure_future(worker.open_container(2)))
        await eventually(lambda: heard[3:] == [Opens.SOME])
        reporting.cancel()
        for task in opening:
            task.cancel()
        await asyncio.wait([reporting, *opening])


@pytest.mark.parametrize("what", ["epochs", "store"])
async def test_an_outage_is_reported_as_nothing_due(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(limits, "CONTAINERS_NOT_OPEN_POLL_S", 0.01)
    monkeypatch.setattr(limits, "POD_OPENS_NONE_S", 0.05)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MIN_S", 0.01)
    monkeypatch.setattr(limits, "CONTAINER_REOPEN_MAX_S", 0.02)
    silent_s, heard, looks = 0, list[Opens](), 0

    def store_silent_s() -> int:
        nonlocal looks
        looks += 1
        return silent_s

    async def hangs(container: Container, nonce: bytes) -> None:
        await asyncio.Event().wait()

    worker = cluster.worker("one")
    async with running(worker):
        if what == "epochs":
            cluster.unavailable = 10**6
            await worker.open_container(0)
            opening = asyncio.ensure_future(asyncio.sleep(0))
        else:
            silent_s = 5
            monkeypatch.setattr(Container, "start", hangs)
            opening = asyncio.ensure_future(worker.open_container(0))
            await eventually(lambda: worker.owned() == (0,))
        reporting = asyncio.ensure_future(
            report_not_open(worker, lambda _: None, store_silent_s=store_silent_s, opens=heard.append)
        )
        await eventually(lambda: looks > 20)
        assert heard == [Opens.NOTHING_DUE]
        for task in (reporting, opening):
            task.cancel()
        await asyncio.wait([reporting, opening])


def test_the_bounds_of_a_rollout_fit_each_other() -> None:
    """A pod that opens none is found out before a rollout goes on, and one that gets its share late is waited for."""
    assert limits.POD_UNPROVED_S > limits.PLACER_BALANCE_DELAY_S + limits.HANDOVER_TIMEOUT_S + limits.POD_OPENS_NONE_S
    assert limits.POD_STEADY_S > limits.POD_OPENS_NONE_S + 3 * 2.0, "the readiness probe: 3 times after 2 s"
    assert limits.POD_OPENS_NONE_S > limits.CONTAINER_NOT_OPEN_REPORT_S, "the reason is known by then"
