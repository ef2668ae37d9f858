"""How many workers of a kind one cluster may take, in simulated time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from harness.localobjects import Idle, LocalObjects
from sim import SimWorld
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.keys import cluster_of
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.reconcile.outcome import Condition, Outcome
from tailrace_operator.reconcile.work_queue import WorkQueue

from .conftest import Fixed

SLOW_S = 30.0
MANY = 40


class Slow:
    """A reconciler of Streams to which only the controllers of cluster ``well`` answer soon."""

    kind: Kind = STREAMS
    period_s = 3600.0

    def __init__(self) -> None:
        self.looked_s: dict[str, list[float]] = {}
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def reconcile(self, manifest: Manifest) -> Outcome:
        """See Reconciler.reconcile."""
        name, cluster = manifest["metadata"]["name"], manifest["spec"]["cluster"]
        self.looked_s.setdefault(name, []).append(asyncio.get_running_loop().time())
        self.busy[cluster] += 1
        self.most[cluster] = max(self.most[cluster], self.busy[cluster])
        await asyncio.sleep(0.1 if cluster == "well" else SLOW_S)
        self.busy[cluster] -= 1
        return Outcome()

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        """See Reconciler.away."""
        return ()

    async def gone(self, namespace: str, name: str) -> None:
        """See Reconciler.gone."""


def simulated(scenario: Coroutine[Any, Any, None]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario

        world.run(main())


async def stopped(*works: asyncio.Future[Any]) -> None:
    for work in works:
        work.cancel()
    await asyncio.wait(works)


def loop_of(objects: LocalObjects, reconciler: Slow) -> ReconcileLoop:
    """The loop as the operator makes it: Streams depend on their StreamClusters."""
    loop = ReconcileLoop(objects, None, Fixed(), Fixed())
    loop.add(Idle(STREAM_CLUSTERS, 3600.0))
    loop.add(reconciler, depends_on=cluster_of)
    loop.add_dependency(STREAM_CLUSTERS, lambda _: None, lambda _: None)
    return loop


def test_a_cluster_that_does_not_answer_does_not_delay_edits_in_others() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Slow()
        for cluster in ("away", "well"):
            objects.make(STREAM_CLUSTERS, cluster, {})
        for number in range(MANY):
            objects.make(STREAMS, f"s{number}", {"cluster": "away"})
        loop = loop_of(objects, reconciler)
        work = asyncio.ensure_future(loop.run(loop.kinds))
        for number in range(20):
            await asyncio.sleep(7)
            made_s = asyncio.get_running_loop().time()
            loop.on_event(STREAMS, "ADDED", objects.make(STREAMS, f"new-{number}", {"cluster": "well"}))
            await asyncio.sleep(1)
            assert [when_s - made_s < 1 for when_s in reconciler.looked_s.get(f"new-{number}", [])] == [True]
        await asyncio.sleep(MANY * SLOW_S)
        await stopped(work)
        assert {len(reconciler.looked_s[f"s{number}"]) for number in range(MANY)} == {1}
        assert reconciler.most["away"] == limits.OPERATOR_CLUSTER_WORKERS

    simulated(scenario())


def test_the_only_cluster_takes_all_workers() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Slow()
        objects.make(STREAM_CLUSTERS, "only", {})
        for number in range(MANY):
            objects.make(STREAMS, f"s{number}", {"cluster": "only"})
        loop = loop_of(objects, reconciler)
        work = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(MANY * SLOW_S)
        await stopped(work)
        assert reconciler.most["only"] == limits.OPERATOR_WORKERS

    simulated(scenario())


def test_keys_of_a_full_group_wait_in_their_order_and_once() -> None:
    async def scenario() -> None:
        begun: list[str] = []
        busy: Counter[str] = Counter()

        async def work(key: str) -> float | None:
            group = key[0]
            begun.append(key)
            busy[group] += 1
            assert busy["a"] <= 2
            assert busy.total() <= 3
            await asyncio.sleep(1)
            busy[group] -= 1
            return None

        queue: WorkQueue[str] = WorkQueue(work, 3, lambda key: key[0] if key[0] == "a" else None, 2)
        running = asyncio.ensure_future(queue.run())
        for number in range(6):
            queue.add(f"a{number}")
        await asyncio.sleep(0.5)
        assert begun == ["a0", "a1"]
        for key in ("a4", "a0", "b0", "b1"):
            queue.add(key)
        queue.discard("a2")
        assert len(queue) == 7, "a0 and a1 are worked on"
        await asyncio.sleep(10)
        await stopped(running)
        assert begun == ["a0", "a1", "b0", "a3", "a4", "b1", "a5", "a0"]
        assert len(queue) == 0

    simulated(scenario())


def test_a_key_that_is_removed_when_it_may_begin_leaves_its_turn_to_the_next_one() -> None:
    async def scenario() -> None:
        begun: list[str] = []

        async def work(key: str) -> float | None:
            begun.append(key)
            await asyncio.sleep(1)
            if key == "a0":  # just before the worker takes the next key
                asyncio.get_running_loop().call_soon(queue.discard, "a1")
            return None

        queue: WorkQueue[str] = WorkQueue(work, 2, lambda key: "a", 1)
        running = asyncio.ensure_future(queue.run())
        for key in ("a0", "a1", "a2"):
            queue.add(key)
        await asyncio.sleep(10)
        await stopped(running)
        assert begun == ["a0", "a2"]

    simulated(scenario())


@pytest.mark.parametrize("later", [None, "b"])
def test_keys_that_are_held_are_worked_on_when_their_group_is_another_one_by_then(later: str | None) -> None:
    """As when a StreamCluster has been removed, so that one is left and nothing is shared."""

    async def scenario() -> None:
        group: str | None = "a"
        worked: set[int] = set()

        async def work(key: int) -> None:
            await asyncio.sleep(1)
            worked.add(key)

        queue = WorkQueue(work, 4, lambda key: group, 2)
        running = asyncio.ensure_future(queue.run())
        for key in range(40):
            queue.add(key)
        await asyncio.sleep(2.5)
        assert len(worked) == 4
        group = later
        await asyncio.sleep(100)
        await stopped(running)
        assert worked == set(range(40))
        assert len(queue) == 0

    simulated(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_every_key_is_worked_on_whatever_is_added_and_removed(seed: int) -> None:
    async def scenario() -> None:
        dice = random.Random(seed)
        keys = [(group, number) for group in "abn" for number in range(5)]
        busy: Counter[str] = Counter()
        worked: set[tuple[str, int]] = set()

        async def work(key: tuple[str, int]) -> float | None:
            busy[key[0]] += 1
            assert max(busy["a"], busy["b"]) <= 2
            await asyncio.sleep(dice.choice((0, 1, 5)))
            busy[key[0]] -= 1
            worked.add(key)
            return dice.choice((None, 0, 3))

        queue = WorkQueue(work, 4, lambda key: None if key[0] == "n" else key[0], 2)
        running = asyncio.ensure_future(queue.run())
        for _ in range(300):
            key = dice.choice(keys)
            if dice.random() < 0.3:
                queue.discard(key)
            else:
                queue.add(key, dice.choice((0, 1, 7)))
            await asyncio.sleep(dice.choice((0, 0, 0.5)))
        worked.clear()
        for key in keys:
            queue.add(key)
        await asyncio.sleep(1000)
        await stopped(running)
        assert worked == set(keys)

    simulated(scenario())


@pytest.mark.parametrize("many", [40, 200])
def test_two_clusters_that_do_not_answer_do_not_delay_a_third_one(many: int) -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Slow()
        for cluster in ("away", "away-too", "well"):
            objects.make(STREAM_CLUSTERS, cluster, {})
        for number in range(many):
            for cluster in ("away", "away-too"):
                objects.make(STREAMS, f"{cluster}-{number}", {"cluster": cluster})
        loop = loop_of(objects, reconciler)
        work = asyncio.ensure_future(loop.run(loop.kinds))
        for number in range(20):
            await asyncio.sleep(7)
            made_s = asyncio.get_running_loop().time()
            for name in (f"new-{number}", f"new-too-{number}"):
                loop.on_event(STREAMS, "ADDED", objects.make(STREAMS, name, {"cluster": "well"}))
            await asyncio.sleep(1)
            for name in (f"new-{number}", f"new-too-{number}"):
                assert [when_s - made_s < 1 for when_s in reconciler.looked_s.get(name, [])] == [True]
        assert reconciler.busy["away"] + reconciler.busy["away-too"] == limits.OPERATOR_WORKERS - 1, "one is kept free"
        await asyncio.sleep(2 * (many + 10) * SLOW_S / (limits.OPERATOR_WORKERS - 1))
        await stopped(work)
        assert len(reconciler.looked_s) == 2 * many + 2 * 20

    simulated(scenario())


def test_as_many_slow_groups_as_workers_get_one_worker_each() -> None:
    async def scenario() -> None:
        most: Counter[str] = Counter()
        busy: Counter[str] = Counter()

        async def work(key: str) -> float | None:
            busy[key[0]] += 1
            most[key[0]] = max(most[key[0]], busy[key[0]])
            await asyncio.sleep(10)
            busy[key[0]] -= 1
            return 0

        queue: WorkQueue[str] = WorkQueue(work, 4, lambda key: key[0], 2)
        running = asyncio.ensure_future(queue.run())
        for group in "abcd":
            for number in range(20):
                queue.add(f"{group}{number}")
        await asyncio.sleep(100)
        most.clear()
        await asyncio.sleep(100)
        assert most == {"a": 1, "b": 1, "c": 1, "d": 1}
        await stopped(running)

    simulated(scenario())
