"""What the loop knows of an object while the API server is late, or ceases to answer."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.localobjects import NAMESPACE, LocalObjects
from sim import SimWorld
from tailrace.cluster.kubernetes import Kind, Manifest
from tailrace.common.errors import UnavailableError
from tailrace_operator.kube.manifests import Notice
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status

from .conftest import Fixed

COUNT = 50


class Looks:
    """A reconciler that keeps what it was given."""

    kind: Kind = STREAMS
    period_s = 30.0

    def __init__(self) -> None:
        self.seen: list[Manifest] = []
        self.went: list[str] = []

    async def reconcile(self, manifest: Manifest) -> Outcome:
        self.seen.append(manifest)
        return Outcome((Condition(READY, Status.TRUE, "Fine", "Yes."),))

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        return ()

    async def gone(self, namespace: str, name: str) -> None:
        self.went.append(name)


def test_a_version_that_was_heard_of_during_the_write_stays() -> None:
    """Events are created after the status is written; another client, as the placer, writes it meanwhile."""

    class SlowEvents(LocalObjects):
        async def create_event(self, kind: Kind, manifest: Manifest, notice: Notice, now: str) -> None:
            await asyncio.sleep(1.0)

    async def scenario() -> None:
        objects, reconciler = SlowEvents(), Looks()
        objects.make(STREAMS, "one", {})
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(0.5)  # the status is written, and its Event is being created
        written = objects._find(STREAMS, NAMESPACE, "one")
        assert written["status"]["conditions"]
        objects.put_status(STREAMS, "one", written["status"] | {"containers": [{"id": 0, "worker": "new"}]})
        loop.on_event(STREAMS, "MODIFIED", objects._find(STREAMS, NAMESPACE, "one"))
        await asyncio.sleep(2.0)
        (known,) = await loop.list_known(STREAMS, NAMESPACE)
        assert known["status"]["containers"] == [{"id": 0, "worker": "new"}]
        working.cancel()
        await asyncio.wait([working])

    with SimWorld(1) as world:
        world.run(scenario())


def test_an_api_server_that_ceases_to_answer_does_not_keep_the_lists_waiting() -> None:
    """Of thousands of objects that were deleted unheard each question would take its whole deadline."""

    class Failing(LocalObjects):
        away = False
        asked = 0

        async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
            if self.away:
                self.asked += 1
                await asyncio.sleep(4.0)
                raise UnavailableError("no answer from the Kubernetes API within 4 s")
            return await super().get(kind, namespace, name)

        async def list(self, kind: Kind, namespace: str | None, labels: Any = None) -> tuple[Manifest, ...]:
            self.lists = getattr(self, "lists", 0) + 1
            return await super().list(kind, namespace, labels)

    async def scenario() -> None:
        objects, reconciler = Failing(), Looks()
        for number in range(COUNT):
            objects.make(STREAMS, f"s{number}", {})
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(20)
        for number in range(COUNT):
            objects.remove(STREAMS, f"s{number}")
        objects.away = True
        await asyncio.sleep(100)
        assert objects.lists >= 4, "it is listed once a period"
        assert objects.asked == objects.lists - 1, "one question shows that there is no answer"
        assert len(loop) == COUNT
        objects.away = False
        await asyncio.sleep(40)
        assert len(loop) == 0
        assert len(reconciler.went) == COUNT
        working.cancel()
        await asyncio.wait([working])

    with SimWorld(1) as world:
        world.run(scenario())


def test_late_events_of_an_object_that_was_replaced_change_nothing() -> None:
    """A resource is deleted and made again: the watch hands over the events of each object in a task of its own."""

    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Looks()
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(1.0)
        first = objects.make(STREAMS, "one", {}, creationTimestamp="2026-01-02T03:04:05Z")
        loop.on_event(STREAMS, "ADDED", first)
        objects.remove(STREAMS, "one")
        second = objects.make(STREAMS, "one", {}, creationTimestamp="2026-01-02T03:04:06Z")
        loop.on_event(STREAMS, "ADDED", second)
        leaving = first | {"metadata": first["metadata"] | {"deletionTimestamp": "2026-01-02T03:04:06Z"}}
        for change in ("MODIFIED", "DELETED"):
            loop.on_event(STREAMS, change, leaving)
            await asyncio.sleep(1.0)
            (known,) = await loop.list_known(STREAMS, NAMESPACE)
            assert known["metadata"]["uid"] == second["metadata"]["uid"]
        assert reconciler.went == []
        loop.on_event(STREAMS, "MODIFIED", objects._find(STREAMS, NAMESPACE, "one"))
        loop.on_event(STREAMS, "DELETED", leaving)
        await asyncio.sleep(4 * Looks.period_s)
        assert loop.liveness_problem() is None, "no watch has missed a change"
        loop.on_event(STREAMS, "DELETED", second)
        assert len(loop) == 0
        working.cancel()
        await asyncio.wait([working])

    with SimWorld(1) as world:
        world.run(scenario())


def test_an_object_that_replaces_a_known_one_is_taken_over() -> None:
    """Also when the deletion of the one before is heard of later, or never."""

    async def scenario() -> None:
        objects, reconciler = LocalObjects(), Looks()
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(1.0)
        for number in (0, 0, 1):  # also within a second
            made = objects.make(STREAMS, "one", {}, creationTimestamp=f"2026-01-02T03:04:0{number}Z")
            loop.on_event(STREAMS, "ADDED", made)
            await asyncio.sleep(1.0)
            assert reconciler.seen[-1]["metadata"]["uid"] == made["metadata"]["uid"]
            objects.remove(STREAMS, "one")
        working.cancel()
        await asyncio.wait([working])

    with SimWorld(1) as world:
        world.run(scenario())
