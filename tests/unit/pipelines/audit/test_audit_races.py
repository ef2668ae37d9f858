"""Audits of a container that appends, truncates, merges, deletes and changes its owner meanwhile find nothing wrong.

See docs/spark-audit.md#while-the-cluster-works.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.common import limits
from tailrace.common.task_groups import run_all
from tailrace.pipelines.audit.rows import Row, Status, What
from tailrace.segmentstore.container.container import Container

from ..conftest import Owned
from .conftest import KIB, Audited, findings

IS_LONG = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
SEEDS = range(3) if IS_LONG else [int(os.environ["TAILRACE_TEST_SEED"]) % 3]
"""All three in the long form, in the short one the one that the run's seed chooses."""
ROUNDS = 12
STEPS_BETWEEN = 60
SWEPT_S = 60.0
FAST = (
    "DELETE_DELAY_S",
    "FLUSH_TICK_S",
    "COMPACT_TICK_S",
    "RECLAIM_FIRST_AFTER_S",
    "RECLAIM_TICK_S",
    "SWEEP_FIRST_AFTER_S",
    "SWEEP_INTERVAL_S",
    "SWEEP_PAUSE_S",
)


class Work:
    """Changes a container step by step."""

    def __init__(self, owned: Owned, container: Container, seed: int) -> None:
        self.container = container
        self.enough, self.stopping = asyncio.Event(), asyncio.Event()
        self._owned = owned
        self._rng = random.Random(seed)
        self._segments: dict[str, tuple[int, int]] = {}
        self._created = 0

    async def run(self) -> None:
        """Work until `stopping` is set; set `enough` after some steps."""
        for number in itertools.count():
            await self.step()
            if number == STEPS_BETWEEN:
                self.enough.set()
            if self.stopping.is_set():
                return

    async def step(self) -> None:
        """Do one thing."""
        rng, container = self._rng, self.container
        if len(self._segments) < 6:
            await self._create()
        name = rng.choice(list(self._segments))
        start, end = self._segments[name]
        choice = rng.random()
        if choice < 0.6:
            length = rng.randrange(1, 90 * KIB if choice < 0.1 else 3 * KIB)
            await container.append(name, [rng.randbytes(length)])
            self._segments[name] = start, end + length
        elif choice < 0.8:
            await container.flush_to_storage()
        elif choice < 0.87:
            start = rng.randrange(start, end + 1)
            await container.truncate(name, start)
            self._segments[name] = start, end
        elif choice < 0.9:
            await container.delete(name)
            del self._segments[name]
        elif choice < 0.93:
            source = await self._create()
            length = rng.randrange(1, 20 * KIB)
            await container.append(source, [rng.randbytes(length)])
            await container.flush_to_storage()
            await container.merge(name, source)
            del self._segments[source]
            self._segments[name] = start, end + length
        else:
            await self._owned.snapshot()
        await asyncio.sleep(0)

    async def _create(self) -> str:
        name = f"scope/live/{self._created}.#epoch.0"
        self._created += 1
        await self.container.create_segment(name)
        self._segments[name] = 0, 0
        return name


async def until_swept(owned: Owned, before: Container) -> None:
    """Wait until the new owner has deleted what uploads of the former one left: that is an orphan, and found as one."""
    await before.close(at_once=True)
    async with asyncio.timeout(SWEPT_S):
        while True:
            await owned.snapshot()
            audited = Audited(owned)
            await audited.take()
            if not findings(await audited.verify()):
                return
            await asyncio.sleep(0.01)


@pytest.fixture(params=["memory", "folder"])
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owned]:
    """An empty cluster; over a folder, where uploads that go on can be seen."""
    owned = Owned(tmp_path.as_uri() if request.param == "folder" else "memory://")
    yield owned
    await owned.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_round_of_audits_finds_anything(live: Owned, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    owned = live
    for name in FAST:
        monkeypatch.setattr(limits, name, 0.001)
    work = Work(owned, await owned.open(), seed)
    await work.step()
    await owned.snapshot()
    chunks: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    for number in range(ROUNDS):
        if number % 4 == 3:
            before, work.container = work.container, await owned.open()
            await until_swept(owned, before)
        work.enough.clear()
        work.stopping.clear()
        audited = Audited(owned)

        async def audit(audited: Audited = audited) -> list[Row]:
            await audited.take()
            await work.enough.wait()
            try:
                return await audited.verify()
            finally:
                work.stopping.set()

        rows, _ = await run_all(audit(), work.run())
        assert findings(audited.inventory) == []
        assert findings(rows) == [], f"round {number}"
        chunks.update(row.status or "" for row in rows if row.what is What.CHUNK)
        objects.update(row.status or "" for row in rows if row.what is What.OBJECT)
    assert chunks[Status.VERIFIED] > 0
    assert objects[Status.GONE] > 0, "nothing was deleted between the inventory and the reads"
    assert objects[Status.UNSETTLED] > 0, "nothing was written between the inventory and the list"
