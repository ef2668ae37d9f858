"""The inventory, the list and the work of an audit over a real container, without Spark."""

from __future__ import annotations

import random

import pytest

from tailrace.common.real_ports import SystemClock
from tailrace.pipelines.audit.classify import Newest
from tailrace.pipelines.audit.inventory import SnapshotInventory, list_objects
from tailrace.pipelines.audit.objects import ObjectAudit
from tailrace.pipelines.audit.rows import Row, What
from tailrace.pipelines.audit.work import Reference, Work
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.verify.read_only_store import ReadOnlyStore
from tailrace.storage import chunks

from ..conftest import CLUSTER, CONTAINERS, Owned

A, B, SOURCE = "scope/a/0.#epoch.0", "scope/b/0.#epoch.0", "scope/source/0.#epoch.0"
KIB, MIB = 1024, 1024 * 1024


class Audited:
    """An inventory that was taken, and what was listed after it: what the driver plans with."""

    def __init__(self, owned: Owned) -> None:
        self.store = ReadOnlyStore(owned.store)
        self.audit = ObjectAudit(self.store, CLUSTER, CONTAINERS, SystemClock().now_ms())
        self.inventory: list[Row] = []
        self.listed: list[Row] = []

    async def take(self) -> None:
        """Read the snapshots, then the list."""
        self.inventory = [row async for row in SnapshotInventory(self.store, CLUSTER).rows(0)]
        self.listed = [row async for row in list_objects(self.store)]

    def of(self, what: What) -> list[Row]:
        return [row for row in self.inventory if row.what is what]

    def work(self) -> list[Work]:
        """Join references and list, as Spark does."""
        (container,) = self.of(What.CONTAINER)
        newest = None if container.epoch is None else Newest(container.epoch, container.time_ms or 0)
        named: dict[str, list[Reference]] = {}
        for row in self.of(What.REFERENCE):
            assert row.object
            assert row.segment
            assert row.status
            assert None not in (row.segment_id, row.position, row.offset, row.length_bytes)
            ref = ChunkRef(row.object, row.position or 0, row.offset or 0, row.length_bytes or 0)
            named.setdefault(row.object, []).append(Reference(row.segment, row.segment_id or 0, row.status, ref))
        pending = {row.object for row in self.of(What.PENDING)}
        listed = {row.object: row for row in self.listed}
        return [
            Work(
                key,
                0,
                listed[key].length_bytes if key in listed else None,
                (listed[key].time_ms or 0) if key in listed else 0,
                container.object or "",
                newest,
                key in pending,
                tuple(named.get(key, ())),
            )
            for key in sorted({key for key in (*named, *listed) if key})
        ]

    async def verify(self) -> list[Row]:
        """Verify everything that was taken."""
        return await self.audit.verify(self.work())


def findings(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.what is What.FINDING]


def statuses(rows: list[Row], what: What) -> set[str | None]:
    return {row.status for row in rows if row.what is what}


async def fill(owned: Owned, *, chunks_wanted: int = 5) -> Container:
    """Some chunks of one segment, a merged one, a truncated one, bytes in the snapshot's tail, and a deleted one."""
    rng = random.Random(chunks_wanted)
    container = await owned.open()
    for name in (A, B, SOURCE, "scope/gone/0.#epoch.0"):
        await container.create_segment(name)
    for _ in range(chunks_wanted):
        await container.append(A, [rng.randbytes(100 * KIB)])
        await container.append(B, [rng.randbytes(30 * KIB)])
        await container.flush_to_storage()
        await container.append("scope/gone/0.#epoch.0", [rng.randbytes(10 * KIB)])
        await container.flush_to_storage()
    await container.append(SOURCE, [rng.randbytes(70 * KIB)])
    await container.flush_to_storage()
    await container.merge(A, SOURCE)
    await container.truncate(B, 35 * KIB)
    await container.delete("scope/gone/0.#epoch.0")
    await container.append(A, [b"in the log alone"])
    await owned.snapshot()
    return container


@pytest.fixture
async def audited(owned: Owned) -> Audited:
    """A filled cluster, not yet audited."""
    await fill(owned)
    return Audited(owned)


async def replace(owned: Owned, key: str, data: bytes) -> None:
    await owned.store.delete([key])
    if data:
        await owned.store.put(key, [data])


def a_chunk(audited: Audited, segment: str = A) -> Row:
    """A reference to more than one block."""
    return next(
        row for row in audited.of(What.REFERENCE)
        if row.segment == segment and (row.length_bytes or 0) > chunks.BLOCK_BYTES
    )  # fmt: skip
