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

from .conftest import Fixed


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


def looks_after_a_deletion(*, again: bool, wait_s: float) -> tuple[int, int]:
    """Delete an object during a list; return how many are known after `wait_s`, and how many looks came since."""

    async def scenario() -> tuple[int, int]:
        objects, reconciler = SlowLists(), Looks()
        one = objects.make(STREAMS, "one", {})
        loop = ReconcileLoop(objects, None, Fixed(), Fixed())
        loop.add(reconciler)
        working = asyncio.ensure_future(loop.run(loop.kinds))
        await asyncio.sleep(31)  # the second list is under way
        objects.remove(STREAMS, "one")
        loop.on_event(STREAMS, "DELETED", one)
        if again:
            loop.on_event(STREAMS, "ADDED", objects.make(STREAMS, "one", {"other": 1}))
        before = len(reconciler.looks)
        await asyncio.sleep(wait_s)
        working.cancel()
        await asyncio.wait([working])
        return len(loop), len(reconciler.looks) - before

    with SimWorld(1) as world:
        return world.run(scenario())


def test_a_deleted_object_is_not_reconciled_because_of_an_older_list() -> None:
    # The second list has ended then, and the third one has not begun.
    assert looks_after_a_deletion(again=False, wait_s=25) == (0, 0)


def test_an_object_of_the_same_name_that_was_made_meanwhile_is_known() -> None:
    known, looks = looks_after_a_deletion(again=True, wait_s=60)
    assert known == 1
    assert looks > 0
