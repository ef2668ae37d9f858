"""An owner that was replaced commits nothing any more, and so acknowledges nothing (docs/design.md#invariants, I7)."""

from __future__ import annotations

import asyncio
import random

from sim.violations import require
from tailrace.common.errors import TailraceError
from tailrace.segmentstore.container.container import Container


class Fencing:
    """All owners of a container, and how far each may come."""

    def __init__(self) -> None:
        self._before: list[Container] = []
        self._furthest: dict[Container, int] = {}

    def opened(self, owner: Container) -> None:
        """An owner has recovered: what those before it commit must be what it found."""
        last = owner.state.committed_sequence - 1  # before its RECOVERED record
        for earlier in self._before:
            self._furthest.setdefault(earlier, last)
        self._before.append(owner)
        self.look()

    def look(self) -> None:
        """Raises Violation."""
        for owner, last in self._furthest.items():
            committed = owner.state.committed_sequence
            require(
                committed <= last,
                f"epoch {owner.epoch} commits operation {committed}, its successor began after operation {last}",
            )


async def disturb(owner: Container, rng: random.Random) -> None:
    """What clients ask of an owner that they do not know to be replaced, until it answers."""
    while True:
        names = owner.segment_names()
        try:
            await _ask(owner, rng, rng.choice(names) if names else "scope/none/0.#epoch.0")
        except TailraceError:
            if owner.core.stop_cause is not None:
                return
        await asyncio.sleep(rng.random())


async def _ask(owner: Container, rng: random.Random, name: str) -> None:
    chance = rng.random()
    if chance < 0.5:
        await owner.append(name, [rng.randbytes(rng.randint(1, 1000))])
    elif chance < 0.6:
        await owner.truncate(name, (await owner.info(name)).length)
    elif chance < 0.7:
        await owner.seal(name)
    elif chance < 0.8:
        await owner.delete(name)
    elif chance < 0.9:
        await owner.create_segment(f"scope/late/{rng.randint(0, 5)}")
    else:
        await owner.flush_to_storage()
