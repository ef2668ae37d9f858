"""A process dies at its n-th request to the object store, for every n: the next owner finds the same.

See docs/design.md#tier-1.
"""

from __future__ import annotations

import asyncio

import pytest

from sim.process import SimProcess
from sim.world import SimWorld
from tailrace.log.object import ObjectLog

REQUESTS_MAX = 400
Found = list[tuple[int, int, bytes]]


async def _contents(log: ObjectLog) -> Found:
    return [(frame.sequence, frame.epoch, bytes(frame.payload)) async for frame in log.recover()]


class Scene:
    """A log with a history: two owners, a gap of the pipeline, truncations; then one more owner, which dies."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.acknowledged: dict[int, tuple[int, bytes]] = {}
        self.truncated = 0

    async def prepare(self) -> None:
        """What was there before."""
        process = self.world.process("first")
        await process.spawn(self.own(process, 2, 70, (40, 66)))
        process = self.world.process("second")
        await process.spawn(self.own(process, 3, 10, (72,), abandoned=8))

    async def own(
        self, process: SimProcess, epoch: int, appends: int, truncations: tuple[int, ...], abandoned: int = 0
    ) -> None:
        """Open, append all at once, truncate; append some more, of which any may be stored."""
        log = ObjectLog(self.world.store.attach(process), 1)
        await log.open(epoch, bytes([epoch]) * 16)
        payloads = [f"{epoch} {number}".encode() * 50 for number in range(appends)]
        futures = [log.append([payload]) for payload in payloads]
        for future, payload in zip(futures, payloads, strict=True):
            self.acknowledged[await future] = (epoch, payload)
        for sequence in truncations:
            self.truncated = sequence
            await log.truncate(sequence)
            await asyncio.sleep(1)
        for number in range(abandoned):
            log.append([b"abandoned %d" % number]).add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0.005 if abandoned else 0)
        await log.close()

    def check(self, log: ObjectLog, found: Found) -> None:
        """Everything acknowledged is there, except what may be truncated."""
        assert log.log_start <= self.truncated
        assert [sequence for sequence, _, _ in found] == list(range(log.log_start, log.next_sequence))
        entries = {sequence: (epoch, payload) for sequence, epoch, payload in found}
        for sequence, entry in self.acknowledged.items():
            if sequence >= log.log_start:
                assert entries.get(sequence) == entry, sequence


async def _dies_at(world: SimWorld, request: int) -> bool:
    """Whether the third owner came to its n-th request, and what the two after it find."""
    scene = Scene(world)
    await scene.prepare()
    process = world.process("dies")
    dead = world.crash_at_store_request(process, request)
    work = process.spawn(scene.own(process, 5, 70, (74, 100, 120)))
    await asyncio.wait({work, dead}, return_when=asyncio.FIRST_COMPLETED)
    if not dead.done() and process.alive:
        work.result()
    elif not dead.done():
        await dead
    await asyncio.sleep(10)  # what is under way arrives
    views: list[tuple[int, Found]] = []
    for epoch in (6, 8):
        last = world.process("last")
        log = ObjectLog(world.store.attach(last), 1)
        await last.spawn(log.open(epoch, bytes([epoch]) * 16))
        views.append((log.log_start, await last.spawn(_contents(log))))
        scene.check(log, views[-1][1])
        await asyncio.sleep(10)
        await log.close()
    assert views[0] == views[1], "recovery of a recovered log changes nothing"
    return dead.done()


@pytest.mark.timeout(3000)  # for a machine with other work
def test_death_at_every_request(test_profile: str, test_seed: int) -> None:
    step = 1 if test_profile == "full" else 5
    died = []
    for request in range(test_seed % step, REQUESTS_MAX, step):
        with SimWorld(test_seed + request) as world:
            died.append(world.run(_dies_at(world, request)))
    assert died[0]
    assert not died[-1], "the sweep ends before the owner does"
