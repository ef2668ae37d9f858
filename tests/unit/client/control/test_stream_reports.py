"""Callers of about the same time share one call for the descriptions of their streams."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.client.control.owners import OwnerCalls, StreamDescription
from tailrace.client.control.stream_reports import StreamReports
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import NoSuchStreamError, UnavailableError
from tailrace.rpc import controller_pb2
from tailrace.rpc import operator_pb2 as pb

DEADLINE_S = 120.0


class Calls(OwnerCalls):
    """A controller whose streams are what the test says."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, int]]] = []
        self.tails: dict[str, int] = {}
        self.away: set[str] = set()
        self.slow = asyncio.Event()
        self.slow.set()
        """Unset: calls that ask for a stream that is away do not end."""
        self.failure: Exception | None = None
        self.pause_s = 0.0
        self.room: int | None = None
        """Reports that an answer has at most."""

    async def stream_reports(self, wanted: object) -> list[pb.StreamReports.Report]:
        await asyncio.sleep(self.pause_s)
        if self.failure is not None:
            raise self.failure
        assert isinstance(wanted, list)
        self.asked.append([(stream.stream, since) for stream, since in wanted])
        if any(stream.stream in self.away for stream, _ in wanted):
            await self.slow.wait()
        return [self._report(stream.stream, since) for stream, since in wanted][: self.room]

    def _report(self, name: str, since: int) -> pb.StreamReports.Report:
        if name in self.away:
            return pb.StreamReports.Report(error=f"container of {name} is moving")
        if name not in self.tails:
            missing = pb.StreamDescription(status=pb.StreamDescription.STREAM_NOT_FOUND)
            return pb.StreamReports.Report(version=1, description=missing)
        version = 100 + self.tails[name]
        if version == since:
            return pb.StreamReports.Report(version=version)
        policy = controller_pb2.ScalingPolicy(minNumSegments=1)
        config = controller_pb2.StreamConfig(
            streamInfo=controller_pb2.StreamInfo(scope="s", stream=name), scalingPolicy=policy
        )
        found = pb.StreamDescription(config=config, state="active", tailBytes=self.tails[name])
        return pb.StreamReports.Report(version=version, description=found)


def stream(name: str) -> StreamName:
    return StreamName("s", name)


async def test_callers_of_the_same_time_share_a_call() -> None:
    calls = Calls()
    calls.tails = {f"s{number}": number for number in range(50)}
    reports = StreamReports(lambda: calls)
    found = await asyncio.gather(*(reports.describe(stream(f"s{number % 50}")) for number in range(100)))
    assert [one.tail_bytes for one in found] == [number % 50 for number in range(100)]
    assert reports.calls == len(calls.asked) == 1
    assert (await reports.describe(stream("s7"))).tail_bytes == 7
    assert calls.asked[1] == [("s7", 107)], "the version that is known"
    calls.tails["s7"] = 8
    assert (await reports.describe(stream("s7"))).tail_bytes == 8


async def test_large_batches_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_REPORTS_MAX", 7)
    calls = Calls()
    calls.tails = {f"s{number}": number for number in range(20)}
    reports = StreamReports(lambda: calls)
    await asyncio.gather(*(reports.describe(stream(name)) for name in calls.tails))
    assert [len(batch) for batch in calls.asked] == [7, 7, 6]


async def test_what_an_answer_has_no_room_for_is_asked_again() -> None:
    calls = Calls()
    calls.tails, calls.away, calls.room = {f"s{number}": number for number in range(7)}, {"s3"}, 3
    reports = StreamReports(lambda: calls)
    found = await asyncio.gather(*(reports.describe(stream(name)) for name in calls.tails), return_exceptions=True)
    assert [getattr(one, "tail_bytes", None) for one in found] == [0, 1, 2, None, 4, 5, 6]
    assert isinstance(found[3], UnavailableError)
    assert [len(batch) for batch in calls.asked] == [7, 4, 1]


async def test_what_no_one_waits_for_any_more_is_not_asked_again() -> None:
    calls = Calls()
    calls.tails, calls.room, calls.pause_s = {f"s{number}": number for number in range(4)}, 1, 0.05
    reports = StreamReports(lambda: calls)
    waiting = [asyncio.ensure_future(reports.describe(stream(name))) for name in calls.tails]
    await waiting[0]
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    asked = [[name for name, _ in batch] for batch in calls.asked]
    assert asked == [["s0", "s1", "s2", "s3"], ["s1", "s2", "s3"], ["s3"]]


async def test_an_answer_without_reports_is_an_error() -> None:
    calls = Calls()
    calls.tails, calls.room = {"there": 1}, 0
    with pytest.raises(UnavailableError, match="0 reports of 1 streams"):
        await StreamReports(lambda: calls).describe(stream("there"))
    assert len(calls.asked) == 1


async def test_each_caller_gets_the_error_of_its_stream() -> None:
    calls = Calls()
    calls.tails, calls.away = {"there": 1}, {"away"}
    reports = StreamReports(lambda: calls)
    there, away, missing = await asyncio.gather(
        *(reports.describe(stream(name)) for name in ("there", "away", "missing")), return_exceptions=True
    )
    assert not isinstance(there, BaseException)
    assert isinstance(away, UnavailableError)
    assert "moving" in str(away)
    assert isinstance(missing, NoSuchStreamError)


async def test_a_stream_that_was_away_delays_no_other_of_the_next_time() -> None:
    calls = Calls()
    calls.tails, calls.away = {"there": 1, "away": 2}, {"away"}
    reports = StreamReports(lambda: calls)

    async def both() -> tuple[asyncio.Future[StreamDescription], asyncio.Future[StreamDescription]]:
        away, there = (asyncio.ensure_future(reports.describe(stream(name))) for name in ("away", "there"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await there).tail_bytes == 1
        return there, away

    _, away = await both()
    with pytest.raises(UnavailableError, match="moving"):
        await away
    calls.slow.clear()
    for _ in range(2):
        _, away = await both()
        assert not away.done(), "it is asked for by itself"
    calls.away.clear()
    calls.slow.set()
    assert (await away).tail_bytes == 2
    calls.asked.clear()
    await both()
    assert len(calls.asked) == 1, "it answers again"


async def test_a_failed_call_fails_its_callers_and_no_later_one() -> None:
    calls = Calls()
    calls.tails, calls.failure = {"one": 1}, UnavailableError("no controller")
    reports = StreamReports(lambda: calls)
    for answer in await asyncio.gather(*(reports.describe(stream("one")) for _ in range(3)), return_exceptions=True):
        assert isinstance(answer, UnavailableError)
    calls.failure = None
    assert (await reports.describe(stream("one"))).tail_bytes == 1


async def test_a_caller_that_goes_away_takes_no_other_with_it() -> None:
    calls = Calls()
    calls.tails, calls.pause_s = {"one": 1}, 0.05
    reports = StreamReports(lambda: calls)
    leaving, staying = (asyncio.create_task(reports.describe(stream("one"))) for _ in range(2))
    await asyncio.sleep(0.02)
    leaving.cancel()
    assert (await staying).tail_bytes == 1
    assert leaving.cancelled()


async def test_a_closed_connection_answers_who_waits() -> None:
    calls = Calls()
    calls.pause_s = 60.0
    reports = StreamReports(lambda: calls)
    early = asyncio.create_task(reports.describe(stream("one")))
    await asyncio.sleep(2 * limits.STREAM_REPORTS_GATHER_S)
    late = asyncio.create_task(reports.describe(stream("two")))
    await asyncio.sleep(0)
    await reports.close()
    for task in (early, late):
        with pytest.raises(UnavailableError, match="closed"):
            await task
