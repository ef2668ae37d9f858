"""The sums that the driver of `tailrace pipeline audit` makes of a report (docs/spark-audit.md#report)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest

from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.common import limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDENTITY = ClusterIdentity("636c7573-7465-722d-6964-2d6f662d3136", 3)


def test_sums_of_a_report(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.pipelines.audit.job import summarize
    from tailrace.pipelines.audit.rows import Row, Status, What, to_batch

    def chunk(container: int, length: int, verified: int, status: Status) -> Row:
        return Row(What.CHUNK, container, "s/a/0", 5, "c", 0, 0, length, verified, status=status)

    def finding(container: int | None, status: Status, offset: int | None) -> Row:
        segment = None if offset is None else "s/a/0"
        return Row(What.FINDING, container, segment, object=f"c{container}", offset=offset, status=status, reason="why")

    rows = [
        Row(What.SEGMENT, 0, "s/a/0", 5, offset=10, length_bytes=90, refs=2),
        Row(What.SEGMENT, 0, "s/b/0", 6, offset=0, length_bytes=0, refs=0),
        chunk(0, 100, 100, Status.VERIFIED),
        chunk(0, 50, 20, Status.GONE),
        chunk(0, 30, 0, Status.UNSETTLED),
        chunk(1, 40, 10, Status.DAMAGED),
        chunk(1, 7, 0, Status.MISSING),
        Row(What.OBJECT, 0, object="c", length_bytes=200, status=Status.VERIFIED),
        Row(What.OBJECT, 1, object="d", length_bytes=300, status=Status.VERIFIED),
        Row(What.OBJECT, 1, object="e", status=Status.MISSING),  # the list does not have it
        finding(None, Status.ORPHAN, None),
        finding(1, Status.MISSING, 9),
        finding(1, Status.DAMAGED, 3),
    ]
    for number, row in enumerate(rows):
        folder = tmp_path / "report" / f"what={row.what}"
        folder.mkdir(parents=True, exist_ok=True)
        batch = to_batch([row])
        table = pa.Table.from_batches([batch]).drop_columns(["what"])
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet")
    monkeypatch.setattr(limits, "AUDIT_SHOWN_MAX", 2)
    summary = summarize(spark, tmp_path.as_uri(), IDENTITY)
    first, second, third = summary.containers
    assert (first.segments, first.segment_bytes, first.chunks) == (2, 90, 3)
    assert (first.referenced_bytes, first.verified_bytes, first.gone_bytes) == (180, 120, 60)
    assert (first.share_verified, second.share_verified, third.share_verified) == (1.0, 10 / 47, 1.0)
    assert (second.findings, third.findings) == ({"missing": 1, "damaged": 1}, {})
    assert (summary.objects, summary.object_bytes) == ({"verified": 2}, {"verified": 500})
    assert summary.findings == {"orphan": 1, "missing": 1, "damaged": 1}
    assert [(each.status, each.offset) for each in summary.listed] == [("damaged", 3), ("missing", 9)]
