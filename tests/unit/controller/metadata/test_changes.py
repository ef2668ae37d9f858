"""Changes that are decided by what a controller remembers, beside another one that writes the same records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tailrace.common.errors import BadRequestError, ConnectionLostError, WriteConflictError
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.controller.metadata.changes import Change, Snapshot, UnsteadyReadError
from tailrace.controller.metadata.metadata_store import MemoryMetadataStore
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.ports import Stored
from tailrace.controller.metadata.recent_records import ENTRY_BYTES, RecentRecords
from tailrace.controller.metadata.records import OpenShard, StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey, StreamStore

KEY = StreamKey("scope", "stream")
SHARD = KEY.open_shard(0)
ROOT = StreamRecord(0, StreamState.ACTIVE, StreamConfig(ScalingPolicy.fixed(1)), 1000, 1)


class Entropy:
    """Pauses of no length."""

    def uniform(self) -> float:
        return 0.0

    def token(self, count: int) -> bytes:
        return bytes(count)


class Metadata(MemoryMetadataStore):
    """Counts reads, and may lose a call."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Sequence[bytes]] = []
        self.lose_before = self.lose_after = False

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        self.reads.append(list(keys))
        return await super().get(table, keys)

    async def put(self, table: str, entries: Any) -> list[int]:
        if self.lose_before:
            raise ConnectionLostError("call lost")
        versions = await super().put(table, entries)
        if self.lose_after:
            raise ConnectionLostError("answer lost")
        return versions


@pytest.fixture
async def metadata() -> Metadata:
    made = Metadata()
    await made.create_table(KEY.table)
    return made


@pytest.fixture
def store(metadata: Metadata) -> StreamStore:
    return StreamStore(metadata, Entropy())  # type: ignore[arg-type]


@pytest.fixture
def other(metadata: Metadata) -> StreamStore:
    """That of another controller."""
    return StreamStore(metadata, Entropy())  # type: ignore[arg-type]


def counting(found: StreamRecord | None, _: Snapshot) -> Change[int]:
    """One more segment number in the root."""
    root = found or ROOT
    after = msgspec.structs.replace(root, next_segment_number=root.next_segment_number + 1)
    return Change(after.next_segment_number, {KEY.root: after})


async def test_a_change_reads_nothing_that_this_controller_wrote_last(store: StreamStore, metadata: Metadata) -> None:
    assert await store.change(KEY, (), counting, by_memory=True) == 2
    metadata.reads.clear()
    assert [await store.change(KEY, (), counting, by_memory=True) for _ in range(3)] == [3, 4, 5]
    latest = await store.latest(KEY)
    assert latest is not None
    assert latest.next_segment_number == 5
    assert metadata.reads == []


async def test_what_another_controller_wrote_is_found_with_the_write(
    store: StreamStore, other: StreamStore, metadata: Metadata
) -> None:
    def by(name: str) -> Callable[[StreamRecord | None, Snapshot], Change[int]]:
        """The same count with a mark of its own, as the random ids of real records are."""

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[int]:
            return counting(msgspec.structs.replace(found or ROOT, owner=name), snapshot)

        return decide

    found = [await each.change(KEY, (), by(name), by_memory=True) for each, name in [(store, "a"), (other, "b")] * 3]
    assert found == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("raises", [False, True], ids=["no write", "error"])
async def test_a_refusal_is_never_decided_by_memory(store: StreamStore, other: StreamStore, raises: bool) -> None:
    await store.change(KEY, (), counting, by_memory=True)
    await other.change(KEY, (), counting)

    def refuse(found: StreamRecord | None, _: Snapshot) -> Change[int]:
        assert found is not None
        if raises:
            raise BadRequestError(f"{found.next_segment_number}")
        return Change(found.next_segment_number)

    if raises:
        with pytest.raises(BadRequestError, match="3"):
            await store.change(KEY, (), refuse, by_memory=True)
    else:
        assert await store.change(KEY, (), refuse, by_memory=True) == 3


async def test_what_was_looked_at_and_is_not_written_is_read(
    store: StreamStore, other: StreamStore, metadata: Metadata
) -> None:
    """The remembered root may be the present one, and the remembered shard an old one."""

    def shard(transactions: tuple[bytes, ...]) -> Callable[[StreamRecord | None, Snapshot], Change[None]]:
        return lambda root, _: Change(None, {KEY.root: root or ROOT, SHARD: OpenShard(transactions)})

    def see(found: StreamRecord | None, snapshot: Snapshot) -> Change[OpenShard | None]:
        return Change(snapshot.get(OpenShard, SHARD), counting(found, snapshot).puts)

    await store.change(KEY, [SHARD], shard(()))
    await other.change(KEY, [SHARD], shard((b"1",)))
    await store.load(KEY)
    assert await store.change(KEY, [SHARD], see, by_memory=True) == OpenShard((b"1",))


async def test_a_record_that_the_decision_asks_for_is_read(store: StreamStore, metadata: Metadata) -> None:
    def ask(found: StreamRecord | None, snapshot: Snapshot) -> Change[OpenShard | None]:
        shard = snapshot.get(OpenShard, SHARD)
        return Change(shard, {KEY.root: found or ROOT, SHARD: OpenShard((b"2",))})

    assert await store.change(KEY, (), ask) is None
    assert metadata.reads == [[KEY.root], [SHARD]]
    assert await store.change(KEY, (), ask, by_memory=True) == OpenShard((b"2",))
    assert len(metadata.reads) == 2


@pytest.mark.parametrize("had_effect", [False, True])
async def test_a_write_of_unknown_outcome_is_not_remembered(
    store: StreamStore, metadata: Metadata, had_effect: bool
) -> None:
    await store.change(KEY, (), counting, by_memory=True)
    metadata.lose_before, metadata.lose_after = not had_effect, had_effect
    with pytest.raises(ConnectionLostError):
        await store.change(KEY, (), counting, by_memory=True)
    metadata.lose_before = metadata.lose_after = False
    latest = await store.latest(KEY)
    assert latest is not None
    assert latest.next_segment_number == 2 + had_effect


async def test_records_that_never_belong_together_end_the_change(store: StreamStore, metadata: Metadata) -> None:
    def unsteady(found: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        raise UnsteadyReadError

    with pytest.raises(WriteConflictError, match="again and again"):
        await store.change(KEY, (), unsteady, by_memory=True)


def test_recent_records_keep_the_latest_version_within_their_bound() -> None:
    recent = RecentRecords(3 * (ENTRY_BYTES + 11))
    for key in (b"a", b"b", b"c"):
        recent.note("t", key, Stored(key, bytes(10), 5))
    recent.note("t", b"a", Stored(b"a", b"older", 4))
    found = recent.get("t", [b"a", b"b"])
    assert found is not None
    assert found[b"a"].version == 5
    recent.note("t", b"d", Stored(b"d", bytes(10), 1))
    assert recent.get("t", [b"c"]) is None, "it was not used for longest"
    assert recent.used_bytes <= 3 * (ENTRY_BYTES + 11)
    recent.note("t", b"a", None)
    assert recent.get("t", [b"a"]) is None
    recent.note("t", b"large", Stored(b"large", bytes(10_000), 9))
    assert recent.get("t", [b"large"]) is None
    recent.forget("t", b"b")
    recent.forget("t", b"d")
    assert recent.used_bytes == 0
