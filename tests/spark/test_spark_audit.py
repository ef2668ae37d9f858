"""`tailrace pipeline audit` on a real Spark: the Tier 2 of a real server, whole and with each kind of damage.

See docs/spark-audit.md.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset
import pytest

from harness.minio import MinioProcess
from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import ServerProcess
from tailrace.client import BlockingClient, ScalingPolicy, StreamConfig
from tailrace.cluster.data_folder import open_data_folder
from tailrace.cluster.segment_mapping import container_of
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, StartError
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec
from tailrace.storage import chunks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.pipelines.audit.summary import Summary

EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}
CONTAINERS = 4
COMPACTED = "audit/compacted/0.#epoch.0"
SMALL_CHUNKS = 2 * limits.COMPACT_RUN_MIN - 2  # however many are joined first, fewer than COMPACT_RUN_MIN remain
SMALL_CHUNK_BYTES = 5000  # COMPACT_RUN_MIN of them are more than a block
COMMAND_DEADLINE_S = 300.0
COMPACTION_LOOKS_MAX = 1200
KIB = 1024


def write(client: BlockingClient, stream: str, count: int) -> None:
    rng = random.Random(stream)
    with client.writer(stream) as writer:
        for number in range(count):
            writer.write_event(rng.randbytes(rng.randrange(8 * KIB)), routing_key=f"k{number % 37}")
        writer.flush()


def serve(data: Path, *options: str) -> None:
    """Streams that are scaled, truncated, merged into by a transaction, and deleted, on a real server that stops."""
    chosen = ("--containers", str(CONTAINERS), *options)
    process = ServerProcess(data, ports=EPHEMERAL, ready_within_s=READY_WITHIN_S, options=chosen)
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            with BlockingClient(endpoints.controller) as client:
                client.streams.create_scope("audit")
                for name in ("scaled", "truncated", "deleted"):
                    client.streams.create_stream(f"audit/{name}", StreamConfig(ScalingPolicy.fixed(2)))
                    write(client, f"audit/{name}", 400)
                client.streams.scale_to("audit/scaled", 3)
                write(client, "audit/scaled", 400)
                cut = client.streams.tail("audit/truncated")
                write(client, "audit/truncated", 100)
                client.streams.truncate_stream("audit/truncated", cut)
                client.streams.seal_stream("audit/deleted")
                client.streams.delete_stream("audit/deleted")
        finally:
            runner.run(process.stop())


async def compact(data: Path) -> None:
    """Write a segment of small chunks as a store does, and wait until they are joined."""
    entropy = SystemEntropy()
    url = f"file://{data / 'tier2'}"
    folder = open_data_folder(data, containers=CONTAINERS, tier2="", entropy=entropy)
    spec = StoreSpec(
        str(data), url, None, folder.manifest.cluster_id, CONTAINERS, tuple(range(CONTAINERS)), limits.CACHE_MIN_BYTES
    )
    service = StoreService(spec, SystemClock(), entropy)
    try:
        await service.start()
        container = service.worker.container_for(COMPACTED)
        await container.create_segment(COMPACTED)
        for number in range(SMALL_CHUNKS):
            await container.append(COMPACTED, [bytes([number]) * SMALL_CHUNK_BYTES])
            await container.flush_to_storage()
        looks = 0
        while len(container.state.by_name[COMPACTED].chunks) >= limits.COMPACT_RUN_MIN:
            looks += 1
            assert looks < COMPACTION_LOOKS_MAX, "small chunks are still there"
            await asyncio.sleep(0.05)
    finally:
        await service.close()
        folder.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Tier 2 of a server that has stopped: nothing is wrong with it."""
    data = tmp_path_factory.mktemp("audit") / "data"
    data.mkdir()
    serve(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "COMPACT_TICK_S", 0.05)
        asyncio.run(compact(data))
    return data / "tier2"


@pytest.fixture
def tier2(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "tier2"))


def run(spark: SparkSession, tier2: Path, output: Path) -> Summary:
    from tailrace.pipelines.audit.job import audit
    from tailrace.pipelines.direct.store_location import StoreLocation

    return audit(spark, StoreLocation(f"file://{tier2}"), output.as_uri(), SystemClock().now_ms())


def rows_of(output: Path, what: str) -> list[dict[str, object]]:
    found = pyarrow.dataset.dataset(output / "report", format="parquet", partitioning="hive").to_table()
    return [row for row in found.to_pylist() if row["what"] == what]


def a_chunk(spark: SparkSession, tier2: Path, output: Path, segment: str) -> dict[str, int | str]:
    """A chunk of more than one block of a segment whose name begins so."""
    run(spark, tier2, output)
    rows = [row for row in rows_of(output, "chunk") if str(row["segment"]).startswith(segment)]
    chunk = max(rows, key=lambda row: int(str(row["length_bytes"])))
    assert int(str(chunk["length_bytes"])) > chunks.BLOCK_BYTES
    return {name: value for name, value in chunk.items() if isinstance(value, (int, str))}


def test_a_whole_cluster_has_no_finding_and_every_byte_is_verified(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    from tailrace.pipelines.audit.page import page

    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    summary = run(spark, whole, tmp_path)
    assert summary.listed == []
    assert summary.healthy()
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    assert summary.total("verified_bytes") == summary.total("referenced_bytes") > 1000 * KIB
    assert sum(summary.objects.values()) == sum(path.is_file() for path in whole.rglob("*"))
    segments = {str(row["segment"]): row for row in rows_of(tmp_path, "segment")}
    for row in rows_of(tmp_path, "segment"):
        assert container_of(str(row["segment"]), CONTAINERS) == row["container"]
    scaled = [name for name in segments if name.startswith("audit/scaled/")]
    assert len(scaled) == 5
    truncated = [row for name, row in segments.items() if name.startswith("audit/truncated/")]
    assert truncated
    assert all(int(str(row["offset"])) > 0 for row in truncated)
    assert not [name for name in segments if name.startswith("audit/deleted/")]
    assert segments[COMPACTED]["length_bytes"] == SMALL_CHUNKS * SMALL_CHUNK_BYTES
    assert int(str(segments[COMPACTED]["refs"])) < limits.COMPACT_RUN_MIN
    # Every byte of a segment is in the chunks that were verified: contiguous from its start to its end.
    for name, row in segments.items():
        start, length = int(str(row["offset"])), int(str(row["length_bytes"]))
        position = start
        own = [each for each in rows_of(tmp_path, "chunk") if each["segment"] == name]
        for each in sorted(own, key=lambda each: int(str(each["offset"]))):
            assert int(str(each["offset"])) <= position
            assert each["verified_bytes"] == each["length_bytes"]
            position = max(position, int(str(each["offset"])) + int(str(each["length_bytes"])))
        assert position >= start + length
    text = page(summary, "the <store>", "now")
    assert "nothing is wrong" in text
    assert "the &lt;store&gt;" in text
    assert "data:image/png;base64," in text
    assert "100 %" in text


def test_a_flipped_byte_is_found_by_object_and_offset(spark: SparkSession, tier2: Path, tmp_path: Path) -> None:
    chunk = a_chunk(spark, tier2, tmp_path / "before", "audit/scaled/")
    position, offset = int(chunk["position"]), int(chunk["offset"])
    path = tier2 / str(chunk["object"])
    data = bytearray(path.read_bytes())
    data[position + chunks.BLOCK_STRIDE + 7] ^= 8
    path.write_bytes(data)
    summary = run(spark, tier2, tmp_path / "after")
    (found,) = summary.listed
    assert (found.status, found.segment, found.object) == ("damaged", chunk["segment"], chunk["object"])
    assert (found.offset, found.position) == (offset + chunks.BLOCK_BYTES, position + chunks.BLOCK_STRIDE)
    assert found.container == container_of(str(chunk["segment"]), CONTAINERS)
    assert not summary.healthy()
    lost = summary.total("referenced_bytes") - summary.total("verified_bytes")
    assert lost == min(chunks.BLOCK_BYTES, int(chunk["length_bytes"]) - chunks.BLOCK_BYTES)


def test_a_missing_object_is_found(spark: SparkSession, tier2: Path, tmp_path: Path) -> None:
    chunk = a_chunk(spark, tier2, tmp_path / "before", "audit/truncated/")
    others = Counter(
        str(row["segment"]) for row in rows_of(tmp_path / "before", "chunk") if row["object"] == chunk["object"]
    )
    (tier2 / str(chunk["object"])).unlink()
    summary = run(spark, tier2, tmp_path / "after")
    assert {(each.status, each.object) for each in summary.listed} == {("missing", chunk["object"])}
    assert Counter(str(each.segment) for each in summary.listed) == others
    assert (chunk["segment"], chunk["offset"]) in {(each.segment, each.offset) for each in summary.listed}
    assert summary.findings == {"missing": others.total()}


def test_an_object_that_is_cut_off_is_found(spark: SparkSession, tier2: Path, tmp_path: Path) -> None:
    chunk = a_chunk(spark, tier2, tmp_path / "before", COMPACTED)
    path = tier2 / str(chunk["object"])
    os.truncate(path, int(chunk["position"]) + chunks.BLOCK_STRIDE + 100)
    summary = run(spark, tier2, tmp_path / "after")
    assert {(each.status, each.object) for each in summary.listed} == {("damaged", chunk["object"])}
    (found,) = [each for each in summary.listed if each.segment]
    assert (found.segment, found.offset) == (COMPACTED, int(chunk["offset"]) + chunks.BLOCK_BYTES)
    assert "bytes of the segment are missing" in found.reason


def test_an_extra_object_is_found_and_one_that_may_be_new_is_not(
    spark: SparkSession, tier2: Path, tmp_path: Path
) -> None:
    chunk = a_chunk(spark, tier2, tmp_path / "before", "audit/scaled/")
    epochs = {int(str(row["container"])): int(str(row["epoch"])) for row in rows_of(tmp_path / "before", "container")}
    epoch = epochs[int(chunk["container"])]
    assert epoch > 1
    name = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{12}$")
    old, new, aged = (
        name.sub(f"-{number:08x}-{'abcdef' * 2}", str(chunk["object"])) for number in (epoch - 1, epoch + 1, epoch)
    )
    for key in (old, new, aged):
        shutil.copy(tier2 / str(chunk["object"]), tier2 / key)
    (tier2 / "notes.txt").write_text("not of the cluster")
    os.utime(tier2 / aged, (1_000_000_000, 1_000_000_000))  # long before the snapshot
    summary = run(spark, tier2, tmp_path / "after")
    assert {(each.status, each.object) for each in summary.listed} == {
        ("orphan", old), ("orphan", aged), ("orphan", "notes.txt"),
    }  # fmt: skip
    assert summary.objects["unsettled"] == 1
    assert not summary.healthy()
    assert summary.healthy(ignore_orphans=True)


def test_a_damaged_snapshot_and_a_lost_one_are_found(spark: SparkSession, tier2: Path, tmp_path: Path) -> None:
    damaged, lost = tier2 / "s0", tier2 / "s1"
    newest = max(damaged.iterdir())
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    shutil.rmtree(lost)
    for path in [*(tier2 / "c0").rglob("*"), *(tier2 / "c1").rglob("*")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    summary = run(spark, tier2, tmp_path / "out")
    assert {(each.container, each.status) for each in summary.listed} == {
        (0, "damaged"), (0, "unaccounted"), (1, "unaccounted"),
    }  # fmt: skip
    (snapshot,) = [each for each in summary.listed if each.status == "damaged"]
    assert (snapshot.object, snapshot.reason) == (f"s0/{newest.name}", "snapshot CRC32C does not match")


def test_a_cluster_in_an_s3_store_is_audited(
    spark: SparkSession, minio_server: MinioProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tailrace.pipelines.audit.job import audit
    from tailrace.pipelines.audit.page import page
    from tailrace.pipelines.direct.store_location import StoreLocation

    bucket, data = minio_server.new_bucket(), tmp_path / "data"
    data.mkdir()
    for name, value in minio_server.credentials.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{bucket}/some/prefix"
    serve(data, "--tier2", url, "--s3-endpoint", minio_server.endpoint)
    location = StoreLocation.from_options(
        {
            "tier2": url,
            "tier2Endpoint": minio_server.endpoint,
            "tier2Region": "us-east-1",
            "tier2AccessKeyId": minio_server.credentials["AWS_ACCESS_KEY_ID"],
            "tier2SecretAccessKey": minio_server.credentials["AWS_SECRET_ACCESS_KEY"],
        }
    )
    assert location is not None
    now_ms = SystemClock().now_ms()
    before = audit(spark, location, (tmp_path / "before").as_uri(), now_ms)
    assert before.listed == []
    assert before.total("verified_bytes") == before.total("referenced_bytes") > 1000 * KIB
    key = max(str(row["object"]) for row in rows_of(tmp_path / "before", "chunk"))
    shutil.rmtree(minio_server.files_of(bucket) / "some/prefix" / key)
    after = audit(spark, location, (tmp_path / "after").as_uri(), now_ms)
    assert {(each.status, each.object) for each in after.listed} == {("missing", key)}
    found = pyarrow.dataset.dataset(tmp_path / "after/report", format="parquet", partitioning="hive").to_table()
    shown = [str(found.to_pylist()), page(after, url, "now"), json.dumps(after.as_json())]
    assert not any(minio_server.secret_key in text for text in shown)


def test_a_store_of_no_cluster_and_an_existing_report_are_refused(
    spark: SparkSession, tier2: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StartError, match="belongs to no cluster"):
        run(spark, tmp_path / "empty", tmp_path / "out")
    run(spark, tier2, tmp_path / "out")
    with pytest.raises(BadRequestError, match="report exists"):
        run(spark, tier2, tmp_path / "out")
    with pytest.raises(BadRequestError, match="lies in Tier 2"):
        run(spark, tier2, tier2 / "audit")
    assert not (tier2 / "audit").exists()


def test_a_task_gets_few_objects_at_a_time_and_the_setting_stays(spark: SparkSession) -> None:
    """A row has all references to an object: batches of 10,000 rows could be large."""
    from tailrace.pipelines.audit.job import ROWS_SETTING, setting

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    before = spark.conf.get(ROWS_SETTING)
    frame = spark.range(1000, numPartitions=1).mapInArrow(sizes, "rows long")
    with setting(spark, ROWS_SETTING, str(limits.AUDIT_BATCH_OBJECTS)):
        found = [row["rows"] for row in frame.collect()]
    assert sum(found) == 1000
    assert max(found) == limits.AUDIT_BATCH_OBJECTS
    assert spark.conf.get(ROWS_SETTING) == before


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "pipeline", "audit", "--master", "local[2]", *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )


def test_the_command_ends_with_1_for_findings_and_writes_a_page(
    spark: SparkSession, tier2: Path, tmp_path: Path
) -> None:
    chunk = a_chunk(spark, tier2, tmp_path / "before", "audit/scaled/")
    key = str(chunk["object"])
    (tier2 / key).unlink()
    failed = command(str(tier2), str(tmp_path / "out"))
    assert failed.returncode == 1, failed.stderr
    assert re.search(
        rf"^missing: container {chunk['container']}, segment \S+ at \d+, object {key}: ", failed.stdout, re.MULTILINE
    )
    assert key in (tmp_path / "out/page.html").read_text()
    refused = command(str(tmp_path), str(tmp_path / "none"))
    assert refused.returncode == 1
    assert len(refused.stderr.strip().splitlines()) == 1
    assert "belongs to no cluster" in refused.stderr


def test_the_command_finds_nothing_wrong_with_a_running_server(tmp_path: Path) -> None:
    """It has written objects that no snapshot names yet."""
    data, began = tmp_path / "data", datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    data.mkdir()
    process = ServerProcess(data, ports=EPHEMERAL, ready_within_s=READY_WITHIN_S, options=("--containers", "2"))
    with asyncio.Runner() as runner:
        endpoints = runner.run(process.start())
        try:
            with BlockingClient(endpoints.controller) as client:
                client.streams.create_scope("audit")
                client.streams.create_stream("audit/live", StreamConfig(ScalingPolicy.fixed(2)))
                write(client, "audit/live", 2000)
                done = command(str(data / "tier2"), str(tmp_path / "out"), "--json", "--no-page", "--dated")
        finally:
            runner.run(process.stop())
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    assert (shown["healthy"], shown["finding_count"], len(shown["containers"])) == (True, 0, 2)
    (report,) = (tmp_path / "out").iterdir()
    assert shown["report"] == str(report)
    named = datetime.datetime.strptime(f"{report.name}+0000", "%Y-%m-%dT%H%M%SZ%z")
    assert began <= named <= datetime.datetime.now(datetime.UTC)
    assert [found.name for found in report.iterdir()] == ["report"]
