"""What a controller knows of the bytes that streams hold: rounds, their failures, and no call that waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from structlog.testing import capture_logs

from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace.controller.managers.held_bytes import HeldBytes
from tailrace.controller.metadata.stream_store import StreamKey

A, B, OTHER = StreamKey("s", "a"), StreamKey("s", "b"), StreamKey("s", "other")


class Containers:
    """Answers in pages of one stream."""

    def __init__(self, *containers: dict[str, int]) -> None:
        self.containers = list(containers)
        self.silent: set[int] = set()
        self.rounds = 0
        self.at_once = self.most_at_once = 0

    @property
    def container_count(self) -> int:
        return len(self.containers)

    async def page(self, container_id: int, after: str) -> tuple[Sequence[tuple[str, int]], str | None]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if container_id in self.silent:
            raise UnavailableError(f"container {container_id} does not answer")
        self.rounds += container_id == 0 and not after
        left = sorted(item for item in self.containers[container_id].items() if item[0] > after)
        return left[:1], left[0][0] if len(left) > 1 else None


@pytest.fixture
async def held() -> AsyncIterator[HeldBytes]:
    made = HeldBytes(Containers({"s/a": 1, "s/b": 2}, {"s/a": 10}, {}))
    yield made
    await made.close()


async def settle(held: HeldBytes) -> None:
    if held._asking is not None:
        await asyncio.wait([held._asking])


async def test_containers_are_added_up_and_the_first_answers_lack_it(held: HeldBytes) -> None:
    assert held.of(A) is None
    await settle(held)
    assert [held.of(key) for key in (A, B, OTHER)] == [11, 2, 0]


async def test_they_are_asked_at_most_once_a_minute(held: HeldBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    source = held._source
    assert isinstance(source, Containers)
    for _ in range(20):
        held.of(A)
        await settle(held)
    assert source.rounds == 1
    source.containers[0]["s/a"] = 5
    monkeypatch.setattr(limits, "HELD_BYTES_PERIOD_S", 0.0)
    assert held.of(A) == 11, "the last figure, while the next one is on its way"
    assert held.of(A) == 11
    await settle(held)
    assert source.rounds == 2
    assert held._found is not None
    assert held._found["s/a"] == 15


async def test_figures_stay_while_a_container_is_silent(held: HeldBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    source = held._source
    assert isinstance(source, Containers)
    monkeypatch.setattr(limits, "HELD_BYTES_PERIOD_S", 0.0)
    held.of(A)
    await settle(held)
    source.silent.add(1)
    source.containers[0]["s/a"] = 5
    with capture_logs() as logs:
        for _ in range(3):
            assert held.of(A) == 11
            await settle(held)
    assert [line["reason"] for line in logs] == ["container 1 does not answer"], "said once"
    source.silent.clear()
    held.of(A)
    await settle(held)
    assert held._found is not None
    assert held._found["s/a"] == 15


async def test_a_few_containers_are_asked_at_a_time() -> None:
    source = Containers(*({"s/a": 1} for _ in range(50)))
    held = HeldBytes(source)
    held.of(A)
    await settle(held)
    assert held.of(A) == 50
    assert source.most_at_once == limits.HELD_BYTES_CONTAINERS_CONCURRENT_MAX


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_BYTES_STREAMS_MAX", 2)
    held = HeldBytes(Containers({"s/a": 1, "s/b": 2, "s/c": 3}, {"s/b": 20}))
    held.of(A)
    await settle(held)
    assert [held.of(key) for key in (A, B, StreamKey("s", "c"), OTHER)] == [1, 22, None, None]


async def test_without_a_source_and_after_the_end() -> None:
    nothing = HeldBytes(None)
    assert nothing.of(A) is None
    await nothing.close()
    running = HeldBytes(Containers({"s/a": 1}))
    assert running.of(A) is None
    await running.close()
    assert running._asking is None
