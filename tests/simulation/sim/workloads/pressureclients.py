"""Clients of a container with a small cache: readers that hold on to what they got, large events."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from sim.violations import Violation, require
from sim.workloads.leaving import LeftError, maybe_leave, settled
from sim.workloads.streams import parse, record
from tailrace.common.errors import (
    BadAttributeError,
    ContainerStoppedError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.segmentstore.api import (
    EVENT_COUNT,
    NULL_ATTRIBUTE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentKind,
)
from tailrace.segmentstore.container.container import Container


class HoldingReader:
    """Reads anywhere in some segments and holds on to what it got: until released it must not change.

    See docs/design.md#cache.
    """

    def __init__(self, names: list[str], rng: random.Random) -> None:
        self.random = rng
        self.names = names
        self.company_chance = 0.3
        self.steps = 0

    async def live(self, container: Container) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._read(container)
            except (NoSuchSegmentError, SegmentTruncatedError):
                await asyncio.sleep(0.01)
            except UnavailableError as error:
                stopped = isinstance(error, ContainerStoppedError) and container.core.phase == "running"
                require(not stopped, f"a read ends as if the container had stopped, and it runs: {error}")
                await asyncio.sleep(0.1)

    async def _read(self, container: Container) -> None:
        rng = self.random
        name = rng.choice(self.names)
        properties = await container.info(name)
        if properties.length == properties.start_offset:
            await asyncio.sleep(0.02)
            return
        offset = rng.randint(properties.start_offset, properties.length - 1)
        length = rng.randint(1, 100_000)
        if rng.random() < self.company_chance:
            # Another reader of the same place, which began before and may go away before its answer comes.
            other = asyncio.create_task(maybe_leave(container.read(name, offset, length, wait=False), rng, 0.7))
            other.add_done_callback(lambda done: done.cancelled() or done.exception())  # this reader gets the same
            await asyncio.sleep(0)
        result = await container.read(name, offset, length, wait=False)
        self.steps += 1
        got = b"".join(result.data)
        require(len(got) == result.length and result.offset == offset, f"{name}: a read answered something else")
        await asyncio.sleep(rng.random() ** 2 * 0.5)
        require(b"".join(result.data) == got, f"{name}: bytes from {offset} changed under a reader that holds them")


class LargeEvents:
    """An exactly-once writer of large events: transient segments, each merged with the writer's number.

    See docs/protocol/wire.md#appends.
    """

    def __init__(self, number: int, rng: random.Random, came_back: Callable[[], None]) -> None:
        self.random = rng
        self.came_back = came_back
        self.leave_chance = rng.choice([0.1, 0.5])
        self.name = f"scope/large{number}/0.#epoch.0"
        self.writer_id = rng.randbytes(16)
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.steps = 0

    async def live(self, container: Container, events: int) -> None:
        """Write events, the large ones in pieces."""
        with contextlib.suppress(SegmentExistsError):
            await container.create_segment(self.name)
        done = await self._setup(container)
        for _ in range(events):
            if done == len(self.sent):
                payload = self.random.randbytes(int(self.random.random() ** 2 * 60_000))
                self.sent.append(record(self.writer_id, done + 1, payload))
            try:
                await maybe_leave(self._write(container, done), self.random, self.leave_chance)
            except BadAttributeError as error:
                raise Violation(f"{self.name}: the condition of event {done + 1} failed: {error}") from error
            except LeftError:
                done = await self._setup(container)  # as a client that connects again: the answer waits for the rest
                self.came_back()
                continue
            except UnavailableError:
                await settled(container)
                done = await self._setup(container)
                continue
            done = self.acknowledged = done + 1
            self.steps += 1
            if self.random.random() < 0.2:  # a connection that is set up again asks what is there
                done = await self._setup(container)

    async def _setup(self, container: Container) -> int:
        stored = await container.writer_state(self.name, self.writer_id)
        done = 0 if stored == NULL_ATTRIBUTE else stored
        require(done >= self.acknowledged, f"{self.acknowledged} was acknowledged, the container knows {done}")
        require(done <= len(self.sent), f"the container knows event {done}, {len(self.sent)} were sent")
        self.acknowledged = done
        return done

    async def _write(self, container: Container, done: int) -> None:
        event = self.sent[done]
        number = AttributeUpdate(
            self.writer_id, AttributeUpdateType.REPLACE_IF_EQUALS, done + 1, done if done else NULL_ATTRIBUTE
        )
        count = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)
        if len(event) < 2000:
            await container.append(self.name, [event], [number, count])
            return
        transient = f"{self.name}#transient.{self.random.randbytes(16).hex()}"
        await container.create_segment(transient, kind=SegmentKind.TRANSIENT)
        for start in range(0, len(event), 20_000):
            await container.append(transient, [event[start : start + 20_000]], [count])
        await container.merge(self.name, transient, [number])

    async def check(self, container: Container) -> None:
        """Each event once, whole, in order; and the writer's number says how many there are."""
        length = (await container.info(self.name)).length
        content = await container.read_exact(self.name, 0, length) if length else b""
        events = [record(*event) for event in parse(content)]
        require(events == self.sent[: len(events)], f"{self.name}: events are not the ones sent, once and in order")
        require(len(events) >= self.acknowledged, f"{self.name}: {self.acknowledged} acknowledged, {len(events)} there")
        values = await container.get_attributes(self.name, [self.writer_id])
        require(values.get(self.writer_id, 0) == len(events), f"{self.name}: {values} for {len(events)} events")
        counted = (await container.info(self.name)).core_attributes[EVENT_COUNT]
        require(counted == len(events), f"{self.name}: {len(events)} events, counted {counted}")
