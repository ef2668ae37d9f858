"""A list that began before an object was deleted, and ends after that, must not bring the object back."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.localobjects import LocalObjects
from sim import SimWorld
from tailrace.cluster.kubernetes import Kind, Manifest
from tailrace_operator.kube.objects import STREAMS
from tailrace_operator.reconcile.loop import ReconcileLoop
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status


class Fixed:
    def now_ms(self) -> int:
        return 1_767_323_045_000

    def token(self, length_bytes: int) -> bytes:
        return bytes(length_bytes)

    def uniform(self) -> float:
        return 0.5


class SlowLists(LocalObjects):
    """Lists are as of their first page, and have many pages."""

    async def list(self, kind: Kind, namespace: str | None, labels: Any = None) -> tuple[Manifest, ...]:
        found = await super().list(kind, namespace, labels)
        await asyncio.sleep(3)
        return found


class Looks:
    kind: Kind = STREAMS
    period_s = 30.0

    def __init__(self) -> None:
        self.looks: list[str] = []

    async def reconcile(self, manifest: Manifest) -> Outcome:
        self.looks.append(manifest["metadata"]["name"])
        return Outcome((Condition(READY, Status.TRUE, "Fine", "Yes."),))

    def away(self, manifest: Manifest, message: str) -> tuple[Condition, ...]:
        return ()

    async def gone(self, namespace: str, name: str) -> None: ...


def test_a_deleted_object_is_not_reconciled_because_of_an_older_list() -> None:
    async def scenario() -> None:
        objects, reconciler = SlowLists(), Looks()
        one = objects.make(STREAMS, "one", {})
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(31)  # the second list is under way
        objects.remove(STREAMS, "one")
        loop.on_event(STREAMS, "DELETED", one)
        before = len(reconciler.looks)
        await asyncio.sleep(25)  # the second list has ended, the third one has not begun
        working.cancel()
        await asyncio.wait([working])
        assert len(loop) == 0, "it is known again"
        assert len(reconciler.looks) == before, "an object that is gone was reconciled, as if it were there"

    with SimWorld(1) as world:
        world.run(scenario())


def test_an_object_of_the_same_name_that_was_made_meanwhile_is_known() -> None:
    async def scenario() -> None:
        objects, reconciler = SlowLists(), Looks()
        one = objects.make(STREAMS, "one", {})
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(31)
        objects.remove(STREAMS, "one")
        loop.on_event(STREAMS, "DELETED", one)
        loop.on_event(STREAMS, "ADDED", objects.make(STREAMS, "one", {"other": 1}))
        await asyncio.sleep(60)
        working.cancel()
        await asyncio.wait([working])
        assert len(loop) == 1

    with SimWorld(1) as world:
        world.run(scenario())
