"""Each kind of a stream's work gets its turn while clients bring more and more of another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.common import limits
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

KEY = StreamKey("scope", "stream")
SEGMENT = "scope/stream/0.#epoch.0"
PASSES = 20
"""More than any other work may wait for."""
HOUR_MS = 3_600_000


class Busy:
    """Ends another transaction within each pass of a kind, so that the next pass of that kind is due when it ends."""

    def __init__(self, world: Any, api: Any, call: str, end: Any) -> None:
        self.passes = 0
        self.on_pass = lambda: None
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()
        self._api = api
        self._end = end
        self._real = getattr(world.segments, call)
        self._running = True
        setattr(world.segments, call, self._call)

    async def begin(self) -> None:
        """Begin the first pass, and wait until it runs."""
        begun = await self._api.begin()
        await self._end(begun.txnId)
        await self.has_begun.wait()

    def stop(self) -> None:
        """Bring no more work."""
        self._running = False

    async def _call(self, name: str, *arguments: Any) -> Any:
        if self._is_pass(name):
            self.passes += 1
            self.has_begun.set()
            self.on_pass()
            if self.passes == PASSES:
                self.has_ended.set()
            if self._running and self.passes < PASSES:
                begun = await self._api.begin()
                await self._end(begun.txnId)
        return await self._real(name, *arguments)

    def _is_pass(self, name: str) -> bool:
        return name.startswith("scope/stream/") and ("#transaction" in name or self._end == self._api.commit)


@pytest.fixture
async def committing(world: Any, api: Any) -> Busy:
    """Commits that never end."""
    await api.setup(1)
    return Busy(world, api, "merge_batch", api.commit)


@pytest.fixture
async def aborting(world: Any, api: Any) -> Busy:
    """Aborts that never end."""
    await api.setup(1)
    return Busy(world, api, "delete_segment", api.abort)


async def test_a_truncation_and_an_update_run_between_commit_passes(committing: Busy, world: Any, api: Any) -> None:
    world.segments.append(SEGMENT, b"0123456789")
    await committing.begin()
    cut = pb.StreamCut(streamInfo=api.info, cut={0: 5})
    assert (await api.call("truncateStream", cut)).status == pb.UpdateStreamStatus.SUCCESS
    updated = await api.call("updateStream", api.config(1, tags=pb.Tags(tag=["new"])))
    assert updated.status == pb.UpdateStreamStatus.SUCCESS
    assert committing.passes < PASSES
    assert world.segments.segments[SEGMENT].start_offset == 5


async def test_a_scale_runs_between_commit_passes(committing: Busy, api: Any) -> None:
    await committing.begin()
    scaled = await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    assert committing.passes < PASSES
    assert len(scaled) == 2


async def test_a_scale_runs_between_abort_passes(aborting: Busy, api: Any) -> None:
    await aborting.begin()
    await api.scaled([0], [(0.0, 0.5), (0.5, 1.0)])
    assert aborting.passes < PASSES


async def test_commits_and_aborts_take_turns(aborting: Busy, api: Any) -> None:
    begun = await api.begin()
    await aborting.begin()
    assert await api.commit(begun.txnId) == pb.TxnStatus.SUCCESS
    await api.until_state(begun.txnId, pb.TxnState.COMMITTED)
    assert aborting.passes < PASSES


async def test_a_seal_waits_for_the_commits_and_aborts_that_are_decided(aborting: Busy, world: Any, api: Any) -> None:
    begun = await api.begin()
    own = f"{SEGMENT}#transaction.{begun.txnId.highBits:016x}{begun.txnId.lowBits:016x}"
    world.segments.append(own, b"event")
    await aborting.begin()
    await api.commit(begun.txnId)
    aborting.stop()
    assert (await api.call("sealStream", api.info)).status == pb.UpdateStreamStatus.SUCCESS
    assert await api.state(begun.txnId) == pb.TxnState.COMMITTED
    assert world.segments.names("scope/stream/") == [SEGMENT]
    assert world.segments.segments[SEGMENT].pieces == [b"event"]


async def test_old_transactions_are_forgotten_between_commit_passes(
    committing: Busy, world: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMPLETED_TRANSACTIONS_PER_CHUNK", 2)
    kept: list[int] = []

    def hours_later() -> None:
        world.clock.ms += 8 * HOUR_MS
        records = world.metadata.dump_table(KEY.table)
        kept.append(sum(key.startswith(b"scope/stream/t/") for key in records))

    committing.on_pass = hours_later
    await committing.begin()
    await committing.has_ended.wait()
    assert max(kept) < PASSES / 2, kept


async def test_the_oldest_transactions_are_read_once_until_they_are_old(
    committing: Busy, world: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass costs no read of what is remembered."""
    monkeypatch.setattr(limits, "COMPLETED_TRANSACTIONS_PER_CHUNK", 2)
    store = api.controller.services.core.context.store
    looked: list[bytes] = []
    real = store.remembered

    def remembered(key: StreamKey, keys: list[bytes]) -> Any:
        looked.extend(item for item in keys if item == KEY.completed(0, 0))
        return real(key, keys)

    monkeypatch.setattr(store, "remembered", remembered)
    await committing.begin()
    await committing.has_ended.wait()
    assert len(looked) == 1
