"""A client of a segment with many attributes: updates, and reads and loads of the same ones meanwhile.

Each attribute has one updater at a time; a reader must get a value that it had between question and answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from sim.violations import Violation, require
from sim.workloads.leaving import LeftError, maybe_leave, settled
from tailrace.common.errors import BadAttributeError, NoSuchSegmentError, SegmentExistsError, UnavailableError
from tailrace.segmentstore.api import NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container

FEW = 12


@dataclass
class History:
    """Values of one attribute: those before ``known`` are the past, those from it on are possible now."""

    values: list[int] = field(default_factory=lambda: [NULL_ATTRIBUTE])
    known: int = 0

    def settle(self, value: int) -> bool:
        """The attribute was found to have that value now; False when it cannot."""
        possible = self.values[self.known :]
        if value not in possible:
            return False
        self.values, self.known = [*self.values[: self.known], value], self.known
        return True


class AttributeClient:
    """Owns a segment of many attributes; outlives all crashes."""

    def __init__(
        self, number: int, rng: random.Random, attributes: int, pace_s: float, *, appends: bool = True
    ) -> None:
        self.random = rng
        self.name = f"scope/attributes{number}/0.#epoch.0"
        self.keys = [bytes([number + 1]) + rng.randbytes(15) for _ in range(attributes)]
        self.pace_s = pace_s
        self.appends = appends
        self.again_chance = 0.004
        self.histories: dict[bytes, History] = {}
        self.phase = "gone"  # deleted or not created yet; "deleting": unknown
        self.life = 0  # of the segment, which is deleted and created again
        self.steps = 0
        self._written = 0
        self._about_to_change: bytes | None = None

    async def live(self, container: Container, operations: int) -> None:
        """Update, while others look."""
        await self._begin(container)
        looking = [asyncio.create_task(self._look(container)) for _ in range(6)]
        try:
            for _ in range(operations):
                await self._change(container)
                if self.pace_s and self.random.random() < 0.5:
                    await asyncio.sleep(self.random.random() * self.pace_s)
                for look in looking:
                    if look.done():
                        look.result()
        finally:
            for look in looking:
                look.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
        for look in looking:
            if look.done() and not look.cancelled():
                look.result()
        await self.reconcile(container)

    # -- the segment

    @property
    def exists(self) -> bool:
        """Whether the segment is surely there."""
        return self.phase == "there"

    async def _begin(self, container: Container) -> None:
        await settled(container)
        try:
            await container.info(self.name)
        except NoSuchSegmentError:
            require(self.phase != "there", f"{self.name} is gone")
            await self._create(container)
        else:
            if self.phase == "gone":
                self._forget()
            self.phase = "there"
        await self.reconcile(container)

    async def _create(self, container: Container) -> None:
        self.phase = "gone"
        with contextlib.suppress(SegmentExistsError):
            await container.create_segment(self.name)
        self._forget()
        self.phase = "there"

    def _forget(self) -> None:
        """No attribute is set in a new segment."""
        self.histories = {key: History() for key in self.keys}
        self.life += 1

    async def _again(self, container: Container) -> None:
        """Delete the segment and create it again under the same name."""
        self.phase = "deleting"
        await container.delete(self.name)
        await self._create(container)

    # -- changes

    async def _change(self, container: Container) -> None:
        self.steps += 1
        if self.random.random() < self.again_chance:
            await self._again(container)
            return
        few = self.keys[:FEW] if self.random.random() < 0.5 else self.keys
        keys = self.random.sample(few, min(len(few), self.random.choice([1, 1, 3, 10])))
        kinds = [AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_EQUALS, AttributeUpdateType.ACCUMULATE]
        if self.random.random() < 0.3:  # a writer's old connection writes while its new one asks what is there
            keys, kinds = keys[:1], kinds[:1]
            self._about_to_change = keys[0]
            await asyncio.sleep(self.random.random() * 0.05)
            self._about_to_change = None
        updates = []
        for key in sorted(keys):
            history = self.histories[key]
            current = history.values[-1]
            self._written += 1
            kind = self.random.choice(kinds)
            value = self._written
            if kind == AttributeUpdateType.ACCUMULATE:
                value = self.random.randint(1, 1000)
                history.values.append(value + (0 if current == NULL_ATTRIBUTE else current))
            else:
                history.values.append(value)
            updates.append(AttributeUpdate(key, kind, value, current))
        try:
            work = (
                container.append(self.name, [bytes(self.random.randint(0, 300))], updates)
                if self.appends and self.random.random() < 0.5
                else container.update_attributes(self.name, updates)
            )
            await maybe_leave(work, self.random, 0.03)
        except BadAttributeError as error:
            raise Violation(f"{self.name}: a condition that holds failed: {error}") from error
        except (UnavailableError, LeftError):
            await settled(container)
            await self.reconcile(container)
            return
        for update in updates:
            history = self.histories[update.attribute_id]
            history.known = len(history.values) - 1

    # -- looks

    async def _look(self, container: Container) -> None:
        """Ask for values all the time, and for those first that are about to change."""
        while True:
            keys = self.random.sample(self.keys[: FEW * 2], 2)
            if self._about_to_change is not None and self.random.random() < 0.5:
                keys[0] = self._about_to_change
            await self._ask(container, keys)
            await asyncio.sleep(self.random.random() ** 2 * 0.05)

    async def _ask(self, container: Container, keys: list[bytes]) -> None:
        """Ask for values in some way."""
        there, life = self.exists, self.life
        before = [self.histories[key].known for key in keys] if there else None
        try:
            if self.random.random() < 0.6:
                found = {keys[0]: await container.writer_state(self.name, keys[0])}
            else:
                values = await container.get_attributes(self.name, keys)
                found = {key: values.get(key, NULL_ATTRIBUTE) for key in keys}
        except NoSuchSegmentError:
            require(life != self.life or not (there and self.exists), f"{self.name} is gone")
            return
        except UnavailableError:
            return
        if life == self.life and before is not None and self.exists:
            self._judge(keys, before, found)

    def _judge(self, keys: list[bytes], before: list[int], found: dict[bytes, int]) -> None:
        for key, first in zip(keys, before, strict=True):
            if key in found:
                possible = self.histories[key].values[first:]
                require(found[key] in possible, f"{self.name}: {key.hex()} is {found[key]}, it can be {possible}")

    async def reconcile(self, container: Container) -> None:
        """Every attribute has a value that it can have, read one by one and by iteration."""
        if not self.exists:
            return
        listed = dict(await container.iterate_attributes(self.name, bytes(16), b"\xff" * 16, len(self.keys) + 1))
        few = self.random.sample(self.keys, min(20, len(self.keys)))
        found = await container.get_attributes(self.name, few)
        for key in few:
            require(found.get(key) == listed.get(key), f"{self.name}: iteration and lookup of {key.hex()} differ")
        for key, history in self.histories.items():
            value = listed.get(key, NULL_ATTRIBUTE)
            possible = history.values[history.known :]
            require(history.settle(value), f"{self.name}: {key.hex()} is {value}, it can be {possible}")
