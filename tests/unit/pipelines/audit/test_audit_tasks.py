"""What tasks of an audit do with their rows, without Spark: batches in, batches out, over a folder."""

from __future__ import annotations

import asyncio
import json
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.cluster.cluster_identity import ClusterIdentity, bind_tier2
from tailrace.common import limits
from tailrace.common.errors import StartError, UnavailableError
from tailrace.common.real_ports import SystemClock
from tailrace.pipelines.audit.inventory import ListObjects, ReadSnapshots
from tailrace.pipelines.audit.job import identity_of
from tailrace.pipelines.audit.objects import VerifyObjects
from tailrace.pipelines.audit.rows import SCHEMA, Row, Status, What
from tailrace.pipelines.direct.store_location import StoreLocation
from tailrace.storage.obstores import S3Credentials
from tailrace.storage.port import ObjectStore

from ..conftest import CLUSTER, Owned
from .conftest import A, B, fill

CONTAINERS = 3
IDENTITY = ClusterIdentity(str(CLUSTER), CONTAINERS)
SEGMENTS = 200
WORK = pa.schema(
    [
        ("object", pa.string()),
        ("container", pa.int32()),
        ("length_bytes", pa.int64()),
        ("time_ms", pa.int64()),
        ("snapshot", pa.string()),
        ("snapshot_epoch", pa.int64()),
        ("snapshot_ms", pa.int64()),
        ("pending", pa.bool_()),
        (
            "references",
            pa.list_(
                pa.struct(
                    [
                        ("segment", pa.string()),
                        ("segment_id", pa.int64()),
                        ("kind", pa.string()),
                        ("position", pa.int64()),
                        ("offset", pa.int64()),
                        ("length_bytes", pa.int64()),
                    ]
                )
            ),
        ),
    ]
)


@dataclass
class Gauge:
    """How many reads are under way at a time, and how often a read of a key fails before it succeeds."""

    failures: dict[str, int] = field(default_factory=dict)
    now: int = 0
    most: int = 0


class Gauged:
    """A store that shows how many reads are under way, and refuses some."""

    def __init__(self, store: ObjectStore, gauge: Gauge) -> None:
        self._store = store
        self._gauge = gauge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> bytes:
        self._refuse(key)
        return await self._store.get(key)

    def _refuse(self, key: str) -> None:
        if self._gauge.failures.get(key, 0):
            self._gauge.failures[key] -= 1
            raise UnavailableError(f"get {key}: slow down")

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        gauge = self._gauge
        gauge.now += 1
        gauge.most = max(gauge.most, gauge.now)
        try:
            self._refuse(key)
            return await self._store.get_range(key, offset, length)
        finally:
            gauge.now -= 1


@dataclass(frozen=True, slots=True)
class GaugedLocation(StoreLocation):
    """Opens a store that is watched."""

    gauge: Gauge = field(default_factory=Gauge)

    def open(self) -> ObjectStore:
        return Gauged(StoreLocation.open(self), self.gauge)


async def _copy(folder: Path) -> None:
    owned = Owned()
    container = await fill(owned)
    for number in range(SEGMENTS):
        await container.create_segment(f"scope/many/{number}.#epoch.0")
    await owned.snapshot()
    async for info in owned.store.list(""):
        path = folder / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(await owned.store.get(info.key))
    await owned.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The objects of a container with more than `SEGMENTS` segments, in a folder."""
    path = tmp_path_factory.mktemp("tier2")
    asyncio.run(_copy(path))
    return path


@pytest.fixture
def location(folder: Path) -> GaugedLocation:
    return GaugedLocation(folder.as_uri())


def rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    found = []
    for batch in batches:
        assert batch.schema == SCHEMA
        found += [Row(**row) for row in batch.to_pylist()]
    return found


def containers(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"container": pa.array([number], pa.int32())}) for number in numbers]


def planned(location: StoreLocation, folder: Path) -> pa.RecordBatch:
    """The work of all objects, with the references of the snapshots, as the driver's join makes it."""
    inventory = rows(ReadSnapshots(location, IDENTITY)(containers(0)))
    (newest,) = [row for row in inventory if row.what == What.CONTAINER]
    work: dict[str, dict[str, Any]] = {}
    for row in rows(ListObjects(location)(containers(0))):
        work[row.object or ""] = {
            "object": row.object,
            "container": row.container,
            "length_bytes": row.length_bytes,
            "time_ms": row.time_ms,
            "snapshot": newest.object,
            "snapshot_epoch": newest.epoch,
            "snapshot_ms": newest.time_ms,
            "pending": row.object in {each.object for each in inventory if each.what == What.PENDING},
            "references": None,
        }
    for row in inventory:
        if row.what == What.REFERENCE:
            one = {name: getattr(row, name) for name in ("segment", "segment_id", "position", "offset", "length_bytes")}
            item = work[row.object or ""]
            item["references"] = [*(item["references"] or []), {**one, "kind": row.status}]
    return pa.RecordBatch.from_pylist(list(work.values()), schema=WORK)


def verify(location: StoreLocation) -> VerifyObjects:
    return VerifyObjects(location, IDENTITY, SystemClock().now_ms())


def test_a_task_reads_the_snapshots_of_its_containers_in_batches(
    location: GaugedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_BATCH_ROWS", 7)
    batches = list(ReadSnapshots(location, IDENTITY)(containers(0, 1)))
    assert max(batch.num_rows for batch in batches) == 7
    found = rows(iter(batches))
    assert {row.status for row in found if row.what == What.FINDING} == set()
    first, second = [row for row in found if row.what == What.CONTAINER]
    segments = [row.segment for row in found if row.what == What.SEGMENT]
    assert (first.container, first.refs, first.epoch) == (0, len(segments), 1)
    assert {A, B} < set(segments)
    assert len(segments) > SEGMENTS
    assert (second.container, second.refs, second.epoch, second.reason) == (1, 0, None, "no snapshot")


def test_a_task_lists_everything_once_and_the_files_of_uploads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_BATCH_ROWS", 5)
    upload = folder / "s0" / "0000000000000001-0000000000000001-aa#77000000001"
    upload.write_bytes(b"begun")
    try:
        batches = list(ListObjects(StoreLocation(folder.as_uri()))(containers(0)))
        expected = {
            str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns // 1_000_000)
            for path in folder.rglob("*")
            if path.is_file()
        }
    finally:
        upload.unlink()
    assert max(batch.num_rows for batch in batches) == 5
    found = rows(iter(batches))
    assert len(found) == len(expected)
    assert {row.object: row.length_bytes for row in found} == {key: size for key, (size, _) in expected.items()}
    for row in found:
        assert row.time_ms is not None
        assert abs(row.time_ms - expected[row.object or ""][1]) <= 1
        assert row.container == 0


def test_a_task_verifies_each_object_once_in_batches_and_some_at_a_time(
    location: GaugedLocation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_BATCH_OBJECTS", 3)
    work = planned(location, folder)
    assert work.num_rows > 12
    batches = list(verify(location)(iter([work.slice(0, 7), work.slice(7)])))
    assert len(batches) == 3 + -(-(work.num_rows - 7) // 3)
    found = rows(iter(batches))
    assert [row for row in found if row.what == What.FINDING] == []
    assert sorted(row.object or "" for row in found if row.what == What.OBJECT) == sorted(work["object"].to_pylist())
    references = sum(len(each or ()) for each in work["references"].to_pylist())
    verified = [row for row in found if row.what == What.CHUNK]
    assert len(verified) == references > 0
    assert {row.status for row in verified} == {Status.VERIFIED}
    assert all(row.verified_bytes == row.length_bytes for row in verified)
    assert 1 < location.gauge.most <= limits.AUDIT_OBJECTS_MAX


def test_a_read_that_fails_for_a_while_is_no_damage(
    location: GaugedLocation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_READ_PAUSES_S", (0.0, 0.0))
    work = planned(location, folder)
    location.gauge.failures.update(dict.fromkeys(work["object"].to_pylist(), 2))
    found = rows(verify(location)(iter([work])))
    assert [row for row in found if row.what == What.FINDING] == []
    assert not any(location.gauge.failures[row.object or ""] for row in found if row.what == What.CHUNK)
    snapshots = dict.fromkeys((key for key in location.gauge.failures if key.startswith("s0/")), 2)
    location.gauge.failures.update(snapshots)
    inventory = rows(ReadSnapshots(location, IDENTITY)(iter(containers(0))))
    assert [row for row in inventory if row.what == What.FINDING] == []
    assert not any(location.gauge.failures[key] for key in snapshots)


def test_a_store_that_refuses_every_read_ends_the_task(
    location: GaugedLocation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_READ_PAUSES_S", (0.0, 0.0))
    work = planned(location, folder)
    location.gauge.failures.update(dict.fromkeys(work["object"].to_pylist(), 10**9))
    with pytest.raises(UnavailableError, match="slow down"):
        list(verify(location)(iter([work])))
    assert location.gauge.now == 0


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = StoreLocation((tmp_path / "none").as_uri())
    for task in (ListObjects(gone), ReadSnapshots(gone, IDENTITY), verify(gone)):
        with pytest.raises(StartError, match="does not exist"):
            list(task(iter(containers(0))))


def test_an_empty_partition_has_no_rows(location: GaugedLocation) -> None:
    assert list(verify(location)(iter(()))) == []
    assert list(ReadSnapshots(location, IDENTITY)(iter(()))) == []
    assert list(ListObjects(location)(iter(()))) == []


def test_tasks_can_be_sent_and_their_texts_show_no_secret() -> None:
    location = StoreLocation("s3://bucket", credentials=S3Credentials("key", "a-secret", "a-token"))
    for task in (ListObjects(location), ReadSnapshots(location, IDENTITY), verify(location)):
        assert pickle.loads(pickle.dumps(task)) == task
        assert "a-secret" not in repr(task)
        assert "a-token" not in repr(task)
    assert uuid.UUID(IDENTITY.cluster_id) == CLUSTER


async def test_a_program_with_a_running_event_loop_can_ask_for_the_cluster(tmp_path: Path) -> None:
    """As a notebook has one."""
    location = StoreLocation(tmp_path.as_uri())
    with pytest.raises(StartError, match="belongs to no cluster"):
        identity_of(location)
    await bind_tier2(location.open(), "Tier 2", IDENTITY.cluster_id, CONTAINERS, bound=False)
    assert identity_of(location) == IDENTITY


@pytest.mark.parametrize("containers", [-1, 0, 10**15])
def test_a_number_of_containers_that_no_cluster_has_is_refused(tmp_path: Path, containers: int) -> None:
    """The driver keeps sums of each."""
    (tmp_path / "cluster.json").write_text(
        json.dumps({"format": 1, "cluster": IDENTITY.cluster_id, "containers": containers})
    )
    with pytest.raises(StartError, match=f"of a cluster of {containers} containers, not 1 to"):
        identity_of(StoreLocation(tmp_path.as_uri()))
