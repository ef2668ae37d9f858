"""Direct reads of a store that asks to slow down: pauses that all reads of a task share, and a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sim import SimWorld
from tailrace.cluster.cluster_identity import CLUSTER_KEY, ClusterIdentity
from tailrace.common import limits
from tailrace.common.errors import IllegalStateError, NotFoundError, SlowDownError, UnavailableError
from tailrace.kernel import pack_events
from tailrace.pipelines.direct import BlockingEvents
from tailrace.pipelines.direct.paced_reads import PacedReads
from tailrace.pipelines.source import batch
from tailrace.storage.port import ObjectInfo

from .conftest import CLUSTER, CONTAINERS, Owned

A = "scope/a/0.#epoch.0"


class Throttled:
    """A store that takes so many requests a second, and refuses all others; each takes 50 ms."""

    def __init__(self, per_s: float, burst: int = 1) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._counted_s = float(burst), 0.0
        self.refused: list[float] = []
        self.begun: list[float] = []
        self.running = self.most = 0

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        now_s = asyncio.get_running_loop().time()
        self.begun.append(now_s)
        self._tokens = min(self._burst, self._tokens + (now_s - self._counted_s) * self._per_s)
        self._counted_s = now_s
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.05)
            if self._tokens < 1:
                self.refused.append(now_s)
                raise SlowDownError("503 SlowDown")
            self._tokens -= 1
            yield
        finally:
            self.running -= 1

    async def get(self, key: str) -> bytes:
        async with self._request():
            return key.encode()

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        async with self._request():
            return key.encode()[offset : offset + length]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        yield ObjectInfo(f"{prefix}/1", 1)  # before the refusal of the next page
        async with self._request():
            yield ObjectInfo(f"{prefix}/2", 1)

    async def close(self) -> None:
        """Nothing to close."""


def in_virtual_time(scenario: Callable[[PacedReads, Throttled], Awaitable[None]], store: Throttled) -> None:
    with SimWorld(1) as world:

        async def main() -> None:
            await scenario(PacedReads(store, world.entropy("task")), store)  # type: ignore[arg-type]

        world.run(main())


@pytest.mark.parametrize(("per_s", "burst"), [(2.0, 1), (50.0, 10)])
def test_all_reads_get_through_a_store_that_takes_few_at_a_time(per_s: float, burst: int) -> None:
    """Of 200 that begin at once."""

    async def scenario(reads: PacedReads, store: Throttled) -> None:
        found = await asyncio.gather(*(reads.get(f"k{number}") for number in range(200)))
        assert found == [b"k%d" % number for number in range(200)]
        assert store.most <= limits.DIRECT_READS_MAX
        assert len(store.refused) < 3 * 200, "compared with reads that are repeated at once, few are refused"
        assert asyncio.get_running_loop().time() - store.begun[0] < 10 * 200 / per_s

    in_virtual_time(scenario, Throttled(per_s, burst))


def test_no_read_begins_during_the_pause_of_another() -> None:
    async def scenario(reads: PacedReads, store: Throttled) -> None:
        first = asyncio.ensure_future(reads.get("first"))
        await asyncio.sleep(0.1)
        assert len(store.refused) == 1
        others = [asyncio.ensure_future(reads.get_range("other", 0, 5)) for _ in range(20)]
        await asyncio.sleep(limits.DIRECT_PAUSE_MIN_S / 2 - 0.1)
        assert len(store.begun) == 1
        store._burst, store._per_s = 100, 1000.0
        assert await first == b"first"
        assert await asyncio.gather(*others) == [b"other"] * 20
        assert asyncio.get_running_loop().time() - store.begun[0] < 10

    in_virtual_time(scenario, Throttled(0.0, 0))


def test_reads_fail_when_none_succeeds_for_so_many_pauses() -> None:
    """The pauses double up to a bound, and all end within the time that the page promises."""

    async def scenario(reads: PacedReads, store: Throttled) -> None:
        with pytest.raises(SlowDownError, match="503"):
            await reads.get("k")
        assert len(store.refused) == limits.DIRECT_REFUSALS_MAX
        gaps = [after - before for before, after in zip(store.begun, store.begun[1:], strict=False)]
        longest = [min(limits.DIRECT_PAUSE_MIN_S * 2**each, limits.DIRECT_PAUSE_MAX_S) for each in range(len(gaps))]
        assert all(each / 2 <= gap <= each + 0.1 for gap, each in zip(gaps, longest, strict=True))
        assert asyncio.get_running_loop().time() - store.begun[0] < 80

    in_virtual_time(scenario, Throttled(0.0, 0))


def test_a_list_is_repeated_as_a_whole() -> None:
    async def scenario(reads: PacedReads, store: Throttled) -> None:
        listing = asyncio.ensure_future(_listed(reads))
        await asyncio.sleep(0.1)
        assert len(store.refused) == 1
        store._burst, store._per_s = 100, 1000.0
        assert await listing == ["s0/1", "s0/2"]

    in_virtual_time(scenario, Throttled(0.0, 0))


async def _listed(reads: PacedReads) -> list[str]:
    return [info.key async for info in reads.list("s0")]


def test_reads_that_are_given_up_leave_their_place_to_others() -> None:
    async def scenario(reads: PacedReads, store: Throttled) -> None:
        given_up = [asyncio.ensure_future(reads.get("k")) for _ in range(30)]
        await asyncio.sleep(0.3)
        for each in given_up:
            each.cancel()
        results = await asyncio.gather(*given_up, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in results)
        store._burst, store._per_s = 100, 1000.0
        assert await reads.get("k") == b"k"

    in_virtual_time(scenario, Throttled(0.0, 0))


@pytest.mark.parametrize("error", [NotFoundError("no"), UnavailableError("500")])
async def test_other_errors_pass(error: Exception) -> None:
    class Failing(Throttled):
        async def get(self, key: str) -> bytes:
            self.begun.append(0.0)
            raise error

    store = Failing(1.0)
    with pytest.raises(type(error)):
        await PacedReads(store, _Entropy()).get("k")  # type: ignore[arg-type]
    assert len(store.begun) == 1


async def test_it_writes_nothing() -> None:
    reads = PacedReads(Throttled(1.0), _Entropy())  # type: ignore[arg-type]
    with pytest.raises(IllegalStateError):
        await reads.put("k", [b"x"])
    with pytest.raises(IllegalStateError):
        await reads.delete(["k"])


class _Entropy:
    def uniform(self) -> float:
        return 0.0

    def token(self, length_bytes: int) -> bytes:
        return bytes(length_bytes)


class Refusing:
    """A store whose first two reads are refused; like a location, it opens itself."""

    url = "memory://"

    def __init__(self, store: Any) -> None:
        self._store = store
        self.refusals = 2

    def open(self) -> Any:
        return self

    async def identity(self, store: Any) -> ClusterIdentity:
        await store.get(CLUSTER_KEY)
        return ClusterIdentity(str(CLUSTER), CONTAINERS)

    def _refuse(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise SlowDownError("503 SlowDown")

    async def get(self, key: str) -> bytes:
        self._refuse()
        return b"" if key == CLUSTER_KEY else bytes(await self._store.get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._refuse()
        return bytes(await self._store.get_range(key, offset, length))

    def list(self, prefix: str) -> Any:
        return self._store.list(prefix)

    async def close(self) -> None:
        """The test closes it."""


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIRECT_PAUSE_MIN_S", 0.001)


async def test_a_task_of_an_executor_reads_on(owned: Owned, short_pauses: None) -> None:
    container = await owned.open()
    await container.create_segment(A)
    await container.append(A, [pack_events([b"one", b"two"])])
    await container.flush_to_storage()
    await owned.snapshot()
    found = await owned.references(A)
    location = Refusing(owned.store)
    identity = ClusterIdentity(str(CLUSTER), CONTAINERS)
    events = BlockingEvents(location, identity, found, 0, found.length)  # type: ignore[arg-type]
    batches = await asyncio.to_thread(list, events)
    assert [event for each in batches for event in each.events()] == [b"one", b"two"]
    assert location.refusals < 0


async def test_a_driver_reads_on(owned: Owned, short_pauses: None) -> None:
    await owned.open()
    await owned.snapshot()
    location = Refusing(owned.store)
    async with batch._tier2(location) as tier2:  # type: ignore[arg-type]
        assert tier2 is not None
        assert await tier2.references([A]) == {}
    assert location.refusals < 0
