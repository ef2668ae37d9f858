"""One measurement serves all groups of a cluster, and a group that cannot be measured takes nothing from the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.localobjects import NAMESPACE, LocalObjects
from sim import SimWorld
from tailrace.client.control.caller import Caller
from tailrace.client.retry import Attempts, with_retries
from tailrace.common import limits
from tailrace.common.errors import UnavailableError, WrongHostError
from tailrace.common.real_ports import SystemEntropy
from tailrace.rpc import controller_pb2 as pb
from tailrace_operator.connections.controllers import ClusterName, Controllers
from tailrace_operator.readergroup import lag_tracker
from tailrace_operator.readergroup.history import NOTHING_UNREAD
from tailrace_operator.readergroup.lag_tracker import LagTracker, TrackedGroup
from tailrace_operator.readergroup.measure import Histories, Sample, SegmentLook

if TYPE_CHECKING:
    from tailrace.client.async_client import Client

MAIN = ClusterName(NAMESPACE, "main")
SAMPLE = Sample(0, 0, 0, NOTHING_UNREAD, {}, None)


class Answering(Controllers):
    """Controllers that answer all probes."""

    def __init__(self) -> None:
        super().__init__(LocalObjects(), uri=lambda _: "tcp://127.0.0.1:1")

    def _link(self, cluster: ClusterName) -> Any:
        link = super()._link(cluster)

        async def scope_exists(scope: str) -> bool:
            return True

        link.client.context.controller.scope_exists = scope_exists  # type: ignore[method-assign]
        return link


class Unavailable:
    """A controller that cannot answer now."""

    async def call(self, method: str, request: Any, reply: Any, deadline_s: float) -> Any:
        raise UnavailableError("container 3 is not open")

    async def close(self) -> None:
        """Nothing is open."""


class Tracker(LagTracker):
    """Groups whose state is read at once, but for those that a container or the controller keeps waiting."""

    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self.not_open: set[str] = set()
        self.silent: set[str] = set()
        self.not_described: set[str] = set()
        self.controller = Caller(Unavailable())
        self.read: Counter[str] = Counter()
        self.read_s: dict[str, float] = {}

    async def _positions(self, client: Client, group: Any) -> Any:
        name = group.group.name
        self.read[name] += 1
        self.read_s[name] = asyncio.get_running_loop().time()

        async def request(_: Attempts) -> None:
            if name in self.not_open:
                raise WrongHostError("container 3 is not open")

        await with_retries(request, SystemEntropy(), limits.CLIENT_REQUEST_DEADLINE_S)
        if name in self.not_described:
            await self.controller._call("getCurrentSegments", pb.StreamInfo(), pb.SegmentRanges)
        if name in self.silent:
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups have the same sample."""

    async def measure(*_: object, publishes: bool) -> Sample:
        return SAMPLE

    monkeypatch.setattr(lag_tracker, "measure", measure)


def simulated(scenario: Callable[[Tracker], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            controllers = Answering()
            await scenario(Tracker(controllers))
            await controllers.close()

        world.run(main())


def tracked(name: str) -> TrackedGroup:
    return TrackedGroup(resource=f"{NAMESPACE}/{name}", scope="scope", name=name, is_rust=False, publishes=False)


async def samples(tracker: Tracker, names: list[str]) -> list[Any]:
    asked = (tracker.sample(MAIN, tracked(name)) for name in names)
    return await asyncio.gather(*asked, return_exceptions=True)


NAMES = [f"g{number}" for number in range(8)]


@pytest.mark.parametrize("trouble", ["not_open", "not_described", "silent"])
def test_a_group_that_stalls_leaves_its_neighbours_their_samples(trouble: str) -> None:
    """The deadline of eight groups together once ended seven that had been measured, in each round."""

    async def scenario(tracker: Tracker) -> None:
        getattr(tracker, trouble).add("g3")
        for _ in range(2):
            found = dict(zip(NAMES, await samples(tracker, NAMES), strict=True))
            sick = found.pop("g3")
            assert found == dict.fromkeys(found, SAMPLE)
            assert isinstance(sick, UnavailableError)
            assert "scope/g3" in str(sick)
            await asyncio.sleep(limits.OPERATOR_LAG_PERIOD_S)
        getattr(tracker, trouble).clear()
        assert await samples(tracker, NAMES) == [SAMPLE] * len(NAMES), "the group is measured again"

    simulated(scenario)


def test_stalled_groups_are_measured_beside_the_others() -> None:
    async def scenario(tracker: Tracker) -> None:
        loop = asyncio.get_running_loop()
        names = [f"g{number}" for number in range(40)]
        tracker.not_open = {name for number, name in enumerate(names) if number % 8 == 3}
        tracker.not_described = {name for number, name in enumerate(names) if number % 8 == 4}
        sick = tracker.not_open | tracker.not_described
        began_s = loop.time()
        found = dict(zip(names, await samples(tracker, names), strict=True))
        assert {name for name, one in found.items() if one is not SAMPLE} == sick
        assert loop.time() - began_s <= 2 * limits.OPERATOR_LAG_REQUEST_DEADLINE_S
        assert set(tracker.read.values()) == {1}, "those who waited for the measurement have its result"

    simulated(scenario)


def test_a_controller_that_answers_no_measurement_does_not_count_as_answering() -> None:
    async def scenario(tracker: Tracker) -> None:
        tracker.not_described = set(NAMES)
        assert all(isinstance(one, UnavailableError) for one in await samples(tracker, NAMES))
        assert tracker._controllers._link(MAIN).answered_s is None, "the next user probes it"

    simulated(scenario)


def test_a_group_that_is_measured_alone_keeps_no_other_waiting() -> None:
    async def scenario(tracker: Tracker) -> None:
        loop = asyncio.get_running_loop()
        tracker.not_open = {"g3"}
        await samples(tracker, NAMES)
        alone = asyncio.ensure_future(tracker.sample(MAIN, tracked("g3")))
        await asyncio.sleep(0.1)
        began_s = loop.time()
        assert await samples(tracker, ["g0", "new"]) == [SAMPLE, SAMPLE]
        assert loop.time() - began_s < 1.0
        assert not alone.done()
        with pytest.raises(UnavailableError, match="scope/g3"):
            await alone

    simulated(scenario)


async def test_a_segment_that_does_not_answer_is_asked_once_in_a_measurement() -> None:
    asked: list[str] = []

    async def segment_info(segment: str) -> None:
        asked.append(segment)
        raise UnavailableError("container 3 is not open")

    client: Any = SimpleNamespace(context=SimpleNamespace(segments=SimpleNamespace(segment_info=segment_info)))
    look = SegmentLook(Histories())
    for _ in range(3):
        with pytest.raises(UnavailableError, match="not open"):
            await look.info(client, "scope/stream/0.#epoch.0")
    assert len(asked) == 1


@pytest.mark.parametrize(("many", "stalled"), [(150, 50), (400, 250)])
def test_many_stalled_groups_leave_the_groups_behind_them_their_lag(many: int, stalled: int) -> None:
    """As many requests at a time as the operator has workers, with the deadline of a reconciliation each."""

    async def scenario(tracker: Tracker) -> None:
        loop, workers = asyncio.get_running_loop(), asyncio.Semaphore(limits.OPERATOR_WORKERS)
        names = [f"g{number}" for number in range(many)]
        looked: Counter[str] = Counter()
        oldest_s = 0.0

        async def look(name: str) -> None:
            nonlocal oldest_s
            while True:
                async with workers, asyncio.timeout(limits.OPERATOR_RECONCILE_DEADLINE_S):
                    with contextlib.suppress(UnavailableError):
                        await tracker.sample(MAIN, tracked(name))
                        oldest_s = max(oldest_s, loop.time() - tracker.read_s[name])
                        looked[name] += 1
                await asyncio.sleep(limits.OPERATOR_LAG_PERIOD_S)

        assert await samples(tracker, names) == [SAMPLE] * many
        tracker.not_described = set(names[:stalled])
        await asyncio.sleep(limits.OPERATOR_LAG_PERIOD_S)
        looks = [asyncio.ensure_future(look(name)) for name in names]
        await asyncio.sleep(360)
        tracker.read.clear()
        looked.clear()
        await asyncio.sleep(360)
        assert [one.exception() for one in looks if one.done()] == [], "none took longer than its deadline"
        for one in looks:
            one.cancel()
        await asyncio.wait(looks)
        assert looked.keys() == set(names[stalled:])
        assert oldest_s <= limits.OPERATOR_LAG_AGE_MAX_S
        once_s = limits.OPERATOR_LAG_PERIOD_S + limits.OPERATOR_LAG_REQUEST_DEADLINE_S
        assert min(tracker.read[name] for name in names[stalled:]) >= 360 // once_s

    simulated(scenario)


def test_a_lag_that_was_measured_long_ago_is_not_shown() -> None:
    async def scenario(tracker: Tracker) -> None:
        assert await samples(tracker, NAMES) == [SAMPLE] * len(NAMES)
        tracker.silent = {"g3"}
        await asyncio.sleep(limits.OPERATOR_LAG_AGE_MAX_S - 1)
        assert len(list(tracker.samples())) == len(NAMES)
        await asyncio.sleep(2)
        assert list(tracker.samples()) == []
        [found] = await samples(tracker, ["g3"])
        assert isinstance(found, UnavailableError)
        assert {resource for resource, _ in tracker.samples()} == {f"{NAMESPACE}/{name}" for name in NAMES} - {
            f"{NAMESPACE}/g3"
        }

    simulated(scenario)
