"""When objects are reconciled: the queue, the loop, a watch that has stopped; in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from harness.localobjects import LocalObjects
from sim import SimWorld
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace_operator.cluster.state import fields_for_dependents
from tailrace_operator.kube.manifests import has_finalizer
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.keys import Key, cluster_of, owner_of
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status
from tailrace_operator.reconcile.watch_check import WatchCheck
from tailrace_operator.reconcile.work_queue import WorkQueue

from .conftest import Fixed


class Counting:
    """A reconciler that counts, and fails as often as `failures` says."""

    kind: Kind = STREAMS
    period_s = 30.0

    def __init__(self) -> None:
        self.looks: list[tuple[str, int]] = []
        self.went: list[str] = []
        self.failures = 0
        self.outcome = Outcome((Condition(READY, Status.TRUE, "Fine", "Yes."),))
        self.at_once = 0
        self.most = 0

    async def reconcile(self, manifest: Manifest) -> Outcome:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.1)
        self.at_once -= 1
        self.looks.append((manifest["metadata"]["name"], manifest["metadata"]["generation"]))
        if self.failures:
            self.failures -= 1
            raise UnavailableError("not now")
        return self.outcome

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        return (Condition("Kept", Status.FALSE, "Away", f"Not known: {message}."),)

    async def gone(self, namespace: str, name: str) -> None:
        self.went.append(name)


def simulated(scenario: Callable[[], Awaitable[None]]) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario()

        world.run(main())


async def running(work: Awaitable[Any], scenario: Awaitable[None]) -> None:
    task = asyncio.ensure_future(work)
    try:
        await scenario
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_a_key_is_worked_on_once_at_a_time_and_again_when_it_was_added_meanwhile() -> None:
    async def scenario() -> None:
        begun: list[str] = []
        at_once = 0

        async def work(key: str) -> float | None:
            nonlocal at_once
            at_once += 1
            assert at_once == 1
            begun.append(key)
            await asyncio.sleep(1)
            at_once -= 1
            return None

        queue: WorkQueue[str] = WorkQueue(work)

        async def steps() -> None:
            for _ in range(3):
                queue.add("a")
            await asyncio.sleep(0.5)
            queue.add("a")
            queue.add("a")
            await asyncio.sleep(5)
            assert begun == ["a", "a"]
            assert len(queue) == 0

        await running(queue.run(), steps())

    simulated(scenario)


def test_the_earliest_time_counts_and_the_workers_have_a_bound() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        begun: list[tuple[str, float]] = []
        busy, most = 0, 0

        async def work(key: str) -> float | None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            begun.append((key, loop.time() - start_s))
            await asyncio.sleep(0.5)
            busy -= 1
            return 7.0 if key == "again" and len(begun) < 20 else None

        queue: WorkQueue[str] = WorkQueue(work, workers=3)
        start_s = loop.time()

        async def steps() -> None:
            queue.add("late", 9.0)
            queue.add("late", 2.0)
            queue.add("late", 5.0)
            queue.add("never", 3.0)
            queue.discard("never")
            for number in range(10):
                queue.add(f"many-{number}")
            queue.add("again", 1.9)
            await asyncio.sleep(12)

        await running(queue.run(), steps())
        times = dict(begun)
        assert 2.0 <= times["late"] < 2.6
        assert [key for key, _ in begun].count("late") == 1
        assert "never" not in times
        assert [key for key, _ in begun].count("again") == 2
        assert most == 3

    simulated(scenario)


def loop_over(objects: LocalObjects, reconciler: Counting) -> ReconcileLoop:
    reconcile_loop = ReconcileLoop(objects, None, Fixed(), Fixed())
    reconcile_loop.add(reconciler)
    return reconcile_loop


def test_what_is_there_is_looked_at_each_period_and_what_changes_at_once() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Counting()
        made = objects.make(STREAMS, "one", {})
        reconcile_loop = loop_over(objects, reconciler)

        async def steps() -> None:
            await asyncio.sleep(5)
            assert reconciler.looks == [("one", 1)]
            made["metadata"]["generation"] = 2
            reconcile_loop.on_event(STREAMS, "MODIFIED", made)
            await asyncio.sleep(5)
            assert reconciler.looks == [("one", 1), ("one", 2)]
            await asyncio.sleep(60)
            assert reconciler.looks[2:] == [("one", 2)] * 2, "an older state of a list is not gone back to"

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())
        assert reconciler.most == 1

    simulated(scenario)


def test_own_status_is_no_reason_to_look_again() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Counting()
        objects.make(STREAMS, "one", {})
        reconcile_loop = loop_over(objects, reconciler)

        async def steps() -> None:
            await asyncio.sleep(5)
            before = len(reconciler.looks)
            found = await objects.get(STREAMS, "here", "one")
            reconcile_loop.on_event(STREAMS, "MODIFIED", found)
            await asyncio.sleep(5)
            reconcile_loop.on_event(STREAMS, "MODIFIED", {**found, "status": {**found["status"], "tailBytes": 9}})
            await asyncio.sleep(5)
            assert len(reconciler.looks) == before
            reconcile_loop.on_event(STREAMS, "MODIFIED", {**found, "status": {}})
            await asyncio.sleep(5)
            assert len(reconciler.looks) == before + 1, "wiped conditions are written again"

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_failures_are_retried_with_growing_pauses_and_reported() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Counting()
        reconciler.period_s = 10_000.0
        reconciler.failures = 6
        objects.make(STREAMS, "one", {})
        reconcile_loop = loop_over(objects, reconciler)

        async def steps() -> None:
            await asyncio.sleep(2)
            assert "status" not in await objects.get(STREAMS, "here", "one"), "one failure is no news"
            await asyncio.sleep(12)
            ready, kept = (await objects.get(STREAMS, "here", "one"))["status"]["conditions"]
            assert (ready["status"], ready["reason"], ready["message"]) == ("Unknown", "Unavailable", "not now")
            assert (kept["status"], kept["reason"], kept["message"]) == ("False", "Away", "Not known: not now.")
            assert "observedGeneration" not in (await objects.get(STREAMS, "here", "one"))["status"]
            assert 3 <= reconcile_loop.failed <= 5
            await asyncio.sleep(120)
            ready, _ = (await objects.get(STREAMS, "here", "one"))["status"]["conditions"]
            assert ready["status"] == "True"
            assert reconcile_loop.failed == 6
            assert reconcile_loop.reconcile_s >= 0.1 * len(reconciler.looks) > 0.6, "those that failed count too"
            assert objects.reasons("one") == ["Away", "Unavailable", "Fine"]

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_a_deletion_is_handled_once_from_watch_or_list() -> None:
    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Counting()
        one, _ = objects.make(STREAMS, "one", {}), objects.make(STREAMS, "two", {})
        reconcile_loop = loop_over(objects, reconciler)

        async def steps() -> None:
            await asyncio.sleep(20)
            objects.remove(STREAMS, "one")
            reconcile_loop.on_event(STREAMS, "DELETED", one)
            objects.remove(STREAMS, "two")  # without a watch event
            await asyncio.sleep(60)
            assert reconciler.went == ["one", "two"]
            assert len(reconcile_loop) == 0

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_an_api_outage_is_no_liveness_problem_and_work_continues_after_it() -> None:
    async def scenario() -> None:
        class Away(LocalObjects):
            async def list(self, *arguments: Any) -> tuple[Manifest, ...]:
                if not self.reachable:
                    raise UnavailableError("away")
                return await super().list(*arguments)

        objects, reconciler = Away(), Counting()
        objects.make(STREAMS, "one", {})
        reconcile_loop = loop_over(objects, reconciler)
        objects.reachable = False

        async def steps() -> None:
            await asyncio.sleep(600)
            assert reconcile_loop.liveness_problem() is None
            assert reconciler.looks == []
            objects.reachable = True
            await asyncio.sleep(40)
            assert reconciler.looks

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_a_kind_that_is_not_listed_is_a_liveness_problem() -> None:
    async def scenario() -> None:
        class Stuck(LocalObjects):
            async def list(self, *_: Any) -> tuple[Manifest, ...]:
                await asyncio.sleep(1e6)
                raise AssertionError

        reconcile_loop = loop_over(Stuck(), Counting())

        async def steps() -> None:
            await asyncio.sleep(60)
            assert reconcile_loop.liveness_problem() is None
            await asyncio.sleep(3 * 30 + limits.OPERATOR_RECONCILE_DEADLINE_S)
            assert "streams have not been listed for" in str(reconcile_loop.liveness_problem())

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_a_watch_that_has_stopped_is_detected() -> None:
    check, one, other = WatchCheck(), Key("streams", "here", "one"), Key("streams", "here", "other")
    check.on_list("streams", {one: "5"}, 0)
    assert check.missed() is None, "it may be on its way"
    check.on_list("streams", {one: "5"}, 20)
    assert check.missed() == one
    check.on_event(one, "5")
    assert check.missed() is None
    check.on_list("streams", {one: "6", other: "7"}, 40)
    check.on_event(one, "6")
    check.on_event(other, "8")  # newer than the list
    check.on_list("streams", {one: "6", other: "8"}, 60)
    assert check.missed() is None
    check.on_event(other, None)
    check.on_list("streams", {one: "6"}, 80)
    assert check.missed() is None


def test_an_event_may_be_later_than_two_lists_of_a_short_period() -> None:
    check, one = WatchCheck(), Key("streams", "here", "one")
    late_s = limits.OPERATOR_WATCH_LATE_S
    for now_s in range(int(late_s)):
        check.on_list("streams", {one: "5"}, now_s)
        assert check.missed() is None, "it may be on its way"
    check.on_list("streams", {one: "5"}, late_s)
    assert check.missed() == one
    check.on_list("streams", {one: "5"}, late_s + 1)
    assert check.missed() == one, "a list that is not compared excuses nothing"


def test_children_name_their_owner() -> None:
    owner = {"apiVersion": "tailrace.io/v1alpha1", "kind": "StreamCluster", "name": "main"}
    child = {"metadata": {"namespace": "here", "name": "x", "ownerReferences": [owner]}}
    assert owner_of(child, STREAM_CLUSTERS) == Key("streamclusters", "here", "main")
    owner["apiVersion"] = "other.io/v1"
    assert owner_of(child, STREAM_CLUSTERS) is None
    assert owner_of({"metadata": {"namespace": "here"}}, STREAM_CLUSTERS) is None


class Hanging(Counting):
    """One whose objects wait for a controller that does not answer."""

    async def reconcile(self, manifest: Manifest) -> Outcome:
        await asyncio.sleep(30.0)
        return await super().reconcile(manifest)


class CountingClusters(Counting):
    kind = STREAM_CLUSTERS


def test_objects_of_one_kind_do_not_keep_those_of_another_waiting() -> None:
    async def scenario() -> None:
        objects, streams, clusters = LocalObjects(), Hanging(), CountingClusters()
        for number in range(100):
            objects.make(STREAMS, f"s{number}", {})
        reconcile_loop = loop_over(objects, streams)
        reconcile_loop.add(clusters)

        async def steps() -> None:
            await asyncio.sleep(20)
            objects.make(STREAM_CLUSTERS, "main", {})
            reconcile_loop.on_event(STREAM_CLUSTERS, "ADDED", await objects.get(STREAM_CLUSTERS, "here", "main"))
            await asyncio.sleep(2)
            assert [name for name, _ in clusters.looks] == ["main"]

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_too_many_objects_of_one_kind_take_no_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPERATOR_OBJECTS_MAX", 3)

    async def scenario() -> None:
        objects, streams, clusters = LocalObjects(), Counting(), CountingClusters()
        for number in range(5):
            objects.make(STREAMS, f"s{number}", {})
        objects.make(STREAM_CLUSTERS, "main", {})
        reconcile_loop = loop_over(objects, streams)
        reconcile_loop.add(clusters)

        async def steps() -> None:
            await asyncio.sleep(20)
            assert len({name for name, _ in streams.looks}) == 3
            assert {name for name, _ in clusters.looks} == {"main"}
            assert len(reconcile_loop) == 4

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


async def say_ready(objects: LocalObjects, reconcile_loop: ReconcileLoop, status: str, ready_stores: int = 0) -> None:
    """Set condition Ready of the StreamCluster, with a watch event."""
    cluster = await objects.get(STREAM_CLUSTERS, "here", "main")
    fields = {"conditions": [{"type": READY, "status": status}], "readyStores": ready_stores}
    reconcile_loop.on_event(STREAM_CLUSTERS, "MODIFIED", await objects.merge_status(STREAM_CLUSTERS, cluster, fields))


@contextlib.contextmanager
def dependent(objects: LocalObjects, streams: Counting) -> Iterator[tuple[ReconcileLoop, list[Key]]]:
    """A loop over Streams that depend on StreamClusters, and which of these have changed."""
    changed: list[Key] = []
    reconcile_loop = ReconcileLoop(objects, None, Fixed(), Fixed())
    clusters = CountingClusters()
    clusters.outcome = Outcome(())
    reconcile_loop.add(clusters)
    reconcile_loop.add(streams, depends_on=cluster_of)
    reconcile_loop.add_dependency(STREAM_CLUSTERS, fields_for_dependents, changed.append)
    yield reconcile_loop, changed


def test_streams_are_looked_at_when_their_cluster_begins_or_ceases_to_serve() -> None:
    async def scenario() -> None:
        objects, streams = LocalObjects(), Counting()
        streams.period_s = 10_000.0
        cluster = objects.make(STREAM_CLUSTERS, "main", {})
        objects.make(STREAMS, "ours", {"cluster": "main"})
        objects.make(STREAMS, "others", {"cluster": "other"})
        objects.make(STREAMS, "elsewhere", {"cluster": "main"}, namespace="there")
        main = Key("streamclusters", "here", "main")

        with dependent(objects, streams) as (reconcile_loop, changed):

            async def steps() -> None:
                await asyncio.sleep(5_100)
                for status, looks in (("False", 1), ("False", 0), ("True", 1), ("Unknown", 1)):
                    streams.looks.clear()
                    changed.clear()
                    await say_ready(objects, reconcile_loop, status, looks)
                    await asyncio.sleep(2)
                    assert streams.looks == [("ours", 1)] * looks
                    assert changed == [main] * looks
                streams.looks.clear()
                reconcile_loop.on_event(STREAM_CLUSTERS, "DELETED", cluster)
                reconcile_loop.on_event(STREAM_CLUSTERS, "DELETED", cluster)
                await asyncio.sleep(2)
                assert streams.looks == [("ours", 1)]
                objects.remove(STREAM_CLUSTERS, "main")
                again = objects.make(STREAM_CLUSTERS, "main", {})
                reconcile_loop.on_event(STREAM_CLUSTERS, "ADDED", again)
                await asyncio.sleep(2)
                assert streams.looks == [("ours", 1)] * 2

            await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_a_stream_that_failed_for_long_is_looked_at_as_soon_as_its_cluster_serves() -> None:
    async def scenario() -> None:
        objects, streams = LocalObjects(), Counting()
        streams.period_s = 10_000.0
        streams.failures = 1_000
        objects.make(STREAM_CLUSTERS, "main", {})
        objects.make(STREAMS, "ours", {"cluster": "main"})

        with dependent(objects, streams) as (reconcile_loop, _):

            async def steps() -> None:
                await asyncio.sleep(600)
                streams.looks.clear()
                streams.failures = 1  # the first connection after it
                await say_ready(objects, reconcile_loop, "True")
                await asyncio.sleep(3)
                assert len(streams.looks) == 2, "the pauses start again"

            await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


def test_many_streams_of_a_cluster_are_looked_at_one_after_the_other() -> None:
    """An object that changes meanwhile does not wait for all of them."""

    async def scenario() -> None:
        objects, streams = LocalObjects(), Counting()
        streams.period_s = 10_000.0
        objects.make(STREAM_CLUSTERS, "main", {})
        made = [objects.make(STREAMS, f"s{number}", {"cluster": "main"}) for number in range(500)]

        with dependent(objects, streams) as (reconcile_loop, _):

            async def steps() -> None:
                await asyncio.sleep(5_100)
                streams.looks.clear()
                await say_ready(objects, reconcile_loop, "True")
                await asyncio.sleep(2)
                assert 80 < len(streams.looks) < 120
                made[-1]["metadata"]["generation"] = 2
                reconcile_loop.on_event(STREAMS, "MODIFIED", made[-1])
                await asyncio.sleep(0.3)
                assert ("s499", 2) in streams.looks
                await asyncio.sleep(500 * limits.OPERATOR_DEPENDENT_GAP_S)
                assert len({name for name, _ in streams.looks}) == 500
                assert len(streams.looks) <= 501

            await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)


class WithFinalizer(Counting):
    """A reconciler whose first step is the finalizer, as those of Streams and ReaderGroups."""

    async def reconcile(self, manifest: Manifest) -> Outcome:
        outcome = await super().reconcile(manifest)
        return outcome if has_finalizer(manifest) else Outcome(finalizer=True, retry_after_s=0, carried_out=False)


def test_a_finalizer_step_does_not_repeat_while_its_watch_event_is_late() -> None:
    """No event ever comes here: what was written is remembered."""

    async def scenario() -> None:
        objects, reconciler = LocalObjects(), WithFinalizer()
        reconciler.period_s = 10_000.0
        objects.make(STREAMS, "one", {})
        reconcile_loop = loop_over(objects, reconciler)
        versions: list[str] = []

        async def steps() -> None:
            await asyncio.sleep(30)
            versions.append((await objects.get(STREAMS, "here", "one"))["metadata"]["resourceVersion"])
            await asyncio.sleep(30)
            found = await objects.get(STREAMS, "here", "one")
            assert has_finalizer(found)
            assert found["status"]["conditions"][0]["reason"] == "Fine"
            assert len(reconciler.looks) == 2, "the finalizer, and then the rest"
            assert found["metadata"]["resourceVersion"] == versions[0]

        await running(reconcile_loop.run(reconcile_loop.kinds), steps())

    simulated(scenario)
