"""A model of segments that one client owns, and a client that drives the container and the model side by side."""

from __future__ import annotations

import copy
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sim.checks.undamaged import undamaged
from sim.violations import Violation, require
from sim.workloads.leaving import LeftError, maybe_leave, settled
from tailrace.common.errors import (
    BadAttributeError,
    BadOffsetError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TailraceError,
    UnavailableError,
)
from tailrace.segmentstore.api import EVENT_COUNT, NULL_ATTRIBUTE, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container

Outcome = type[TailraceError] | None
ATTRIBUTES = [bytes([number]) * 16 for number in range(1, 15)]
VERBS = list(AttributeUpdateType)


@dataclass
class SegmentModel:
    """What a segment must be."""

    content: bytes = b""
    start: int = 0
    sealed: bool = False
    attributes: dict[bytes, int] = field(default_factory=dict)
    events: int = 0

    def visible(self) -> tuple[Any, ...]:
        """What can be seen of it from outside."""
        return (len(self.content), self.start, self.sealed, self.content[self.start :], self.attributes, self.events)


State = dict[str, SegmentModel]


def updated(attributes: dict[bytes, int], updates: list[AttributeUpdate]) -> dict[bytes, int] | None:
    """The attributes after the updates; None when a condition does not hold."""
    result = dict(attributes)
    for update in updates:
        current = attributes.get(update.attribute_id, NULL_ATTRIBUTE)
        value = update.value
        if update.kind == AttributeUpdateType.ACCUMULATE:
            value += 0 if current == NULL_ATTRIBUTE else current
        elif update.kind == AttributeUpdateType.REPLACE_IF_GREATER:
            if current != NULL_ATTRIBUTE and value <= current:
                return None
        elif update.kind == AttributeUpdateType.REPLACE_IF_EQUALS and current != update.comparison:
            return None
        if value == NULL_ATTRIBUTE:
            result.pop(update.attribute_id, None)
        else:
            result[update.attribute_id] = value
    return result


async def observe(container: Container, names: list[str]) -> dict[str, tuple[Any, ...]]:
    """What the container shows of the segments."""
    seen = {}
    for name in names:
        try:
            properties = await container.info(name)
        except NoSuchSegmentError:
            continue
        content = b""
        if properties.length > properties.start_offset:
            length = properties.length - properties.start_offset
            with undamaged(f"a read of {name}"):
                content = await container.read_exact(name, properties.start_offset, length)
        with undamaged(f"a list of the attributes of {name}"):
            attributes = dict(await container.iterate_attributes(name, bytes(16), b"\xff" * 16, 1000))
        few = await container.get_attributes(name, ATTRIBUTES[:5])
        require(
            {key: value for key, value in attributes.items() if key in ATTRIBUTES[:5]} == few,
            f"{name}: iteration and lookup of attributes differ",
        )
        events = properties.core_attributes.get(EVENT_COUNT, 0)
        seen[name] = (properties.length, properties.start_offset, properties.sealed, content, attributes, events)
    return seen


class SoleClient:
    """Owns a few segments and does one operation after another; after a crash one operation is in doubt."""

    def __init__(self, number: int, rng: random.Random, append_max_bytes: int = 30_000) -> None:
        self.random = rng
        self.append_max_bytes = append_max_bytes
        self.names = [f"scope/sole{number}-{index}/0.#epoch.0" for index in range(3)]
        self.candidates: list[State] = [{}]
        self.merged: dict[tuple[str, str], int] = {}
        self.steps = 0

    async def reconcile(self, container: Container) -> None:
        """The container must show one of the states that are possible."""
        seen = await observe(container, self.names)
        for state in self.candidates:
            if {name: segment.visible() for name, segment in state.items()} == seen:
                self.candidates = [state]
                return
        raise Violation(f"{self.names[0]}: not a possible state: {self._difference(seen)}")

    def _difference(self, seen: dict[str, tuple[Any, ...]]) -> str:
        parts = []
        for state in self.candidates:
            for name in self.names:
                wanted = state[name].visible() if name in state else None
                found = seen.get(name)
                if wanted != found:
                    labels = ("length", "start", "sealed", "content", "attributes", "events")
                    if wanted is None or found is None:
                        parts.append(f"{name} wanted {wanted and wanted[:3]}, found {found and found[:3]}")
                    else:
                        what = [
                            f"{label} {a if label != 'content' else '...'} != {b if label != 'content' else '...'}"
                            for label, a, b in zip(labels, wanted, found, strict=True)
                            if a != b
                        ]
                        parts.append(f"{name}: {', '.join(what)}")
        return " | ".join(parts)

    async def live(self, container: Container, operations: int) -> None:
        """Do random operations until there were enough, or the container fails."""
        await self.reconcile(container)
        for _ in range(operations):
            await self._one(container)
            if self.random.random() < 0.05:
                await self.reconcile(container)
        await self.reconcile(container)

    async def _one(self, container: Container) -> None:
        before = self.candidates[0]
        after = copy.deepcopy(before)
        call, wanted = self._choose(container, after)
        if wanted is not None:
            after = before
        self.candidates = [before] if after is before else [before, after]
        self.steps += 1
        try:
            await maybe_leave(call(), self.random, 0.05)
        except (UnavailableError, LeftError):
            await settled(container)
            await self.reconcile(container)
            return
        except TailraceError as error:
            require(wanted is not None and isinstance(error, wanted), f"unexpected {type(error).__name__}: {error}")
            self.candidates = [before]
            return
        require(wanted is None, f"an operation succeeded that had to fail with {wanted}")
        self.candidates = [after]

    def _choose(self, container: Container, state: State) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        """Pick an operation, apply it to `state`, and say with which error it must fail."""
        name = self.random.choice(self.names)
        segment = state.get(name)
        if segment is None and self.random.random() < 0.9:
            state[name] = SegmentModel()
            return lambda: container.create_segment(name), None
        kind = self.random.random()
        if kind < 0.45:
            return self._append(container, state, name)
        if kind < 0.65:
            return self._update(container, state, name)
        if kind < 0.75:
            return self._truncate(container, state, name)
        if kind < 0.80:
            return self._seal(container, state, name)
        if kind < 0.85:
            return (lambda: container.delete(name)), (None if state.pop(name, None) else NoSuchSegmentError)
        if kind < 0.95:
            return self._merge(container, state, name)
        if kind < 0.97:
            return (lambda: maybe_leave(container.flush_to_storage(), self.random, 0.4)), None
        if segment is None:
            return (lambda: container.info(name)), NoSuchSegmentError
        return (lambda: container.create_segment(name)), SegmentExistsError

    def _updates(self, segment: SegmentModel | None) -> list[AttributeUpdate]:
        rng = self.random
        known = segment.attributes if segment is not None else {}
        updates = []
        for key in sorted(rng.sample(ATTRIBUTES, rng.randint(0, 4))):
            current = known.get(key, NULL_ATTRIBUTE)
            comparison = current if rng.random() < 0.9 else 12345
            kind = rng.choice(VERBS)
            value = rng.randint(-1000, 1000)
            if rng.random() < 0.15 and kind != AttributeUpdateType.ACCUMULATE:
                value = current
            updates.append(AttributeUpdate(key, kind, value, comparison))
        return updates

    def _append(self, container: Container, state: State, name: str) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        rng = self.random
        segment = state.get(name)
        updates = self._updates(segment)
        data = rng.randbytes(int(rng.random() ** 4 * self.append_max_bytes))
        parts = [data[: len(data) // 3], data[len(data) // 3 :]]
        expected = -1
        if segment is not None and rng.random() < 0.2:
            expected = len(segment.content) + (rng.random() < 0.2)
        every = [*updates, AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 2)]
        wanted: Outcome = None
        if segment is None:
            wanted = NoSuchSegmentError
        elif segment.sealed:
            wanted = SegmentSealedError
        elif expected >= 0 and expected != len(segment.content):
            wanted = BadOffsetError
        elif (attributes := updated(segment.attributes, updates)) is None:
            wanted = BadAttributeError
        else:
            offset = len(segment.content)
            segment.content += data
            segment.attributes = attributes
            segment.events += 2

            async def call() -> None:
                answer = await container.append(name, parts, every, expected_offset=expected)
                require(answer == (offset, offset + len(data)), f"{name}: append answered {answer}, not {offset}")

            return call, None
        return (lambda: container.append(name, parts, every, expected_offset=expected)), wanted

    def _update(self, container: Container, state: State, name: str) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        segment = state.get(name)
        updates = self._updates(segment) or [AttributeUpdate(ATTRIBUTES[0], AttributeUpdateType.REPLACE, 7)]
        wanted: Outcome = None
        if segment is None:
            wanted = NoSuchSegmentError
        elif segment.sealed:
            wanted = SegmentSealedError
        elif (attributes := updated(segment.attributes, updates)) is None:
            wanted = BadAttributeError
        else:
            segment.attributes = attributes
        return (lambda: container.update_attributes(name, updates)), wanted

    def _truncate(self, container: Container, state: State, name: str) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        segment = state.get(name)
        if segment is None:
            return (lambda: container.truncate(name, 0)), NoSuchSegmentError
        offset = self.random.randint(0, len(segment.content) + 10)
        if not segment.start <= offset <= len(segment.content):
            return (lambda: container.truncate(name, offset)), SegmentTruncatedError
        segment.start = offset
        return (lambda: container.truncate(name, offset)), None

    def _seal(self, container: Container, state: State, name: str) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        segment = state.get(name)
        wanted: Outcome = NoSuchSegmentError if segment is None else SegmentSealedError if segment.sealed else None
        if segment is not None:
            segment.sealed = True
        return (lambda: container.seal(name)), wanted

    def _merge(self, container: Container, state: State, name: str) -> tuple[Callable[[], Awaitable[Any]], Outcome]:
        source_name = self.names[(self.names.index(name) + 1) % len(self.names)]
        segment, source = state.get(name), state.get(source_name)
        updates = self._updates(segment) if self.random.random() < 0.5 else []

        async def call() -> None:
            answer = await container.merge(name, source_name, updates)
            if offset >= 0:
                require(answer.target_offset == offset, f"{name}: merged at {answer.target_offset}, not {offset}")

        offset = -1
        if segment is None:
            return call, NoSuchSegmentError
        if source is None:
            # Either merged into this very segment before, or not there: both are right, nothing changes.
            async def again() -> None:
                try:
                    await container.merge(name, source_name)
                except NoSuchSegmentError:
                    return

            return again, None
        if segment.sealed:
            return call, SegmentSealedError
        if source.start:
            return call, SegmentTruncatedError
        attributes = updated(segment.attributes, updates)
        if attributes is None:
            return call, BadAttributeError
        offset = len(segment.content)
        segment.content += source.content
        segment.attributes = attributes
        segment.events += source.events
        del state[source_name]
        return call, None
