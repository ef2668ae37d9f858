"""``tailrace bench spark``: the same form as every benchmark (docs/performance.md#spark)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND_DEADLINE_S = 380.0
CASES = ("batch-direct", "batch-store", "stream", "sink", "parquet")


def test_every_case_reads_or_writes_all_events(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tailrace.cli", "bench", "spark", "--folder", str(tmp_path), "--json")
    ended = subprocess.run(
        [*command, "--size", "1MB", "--cores", "1", "--repeats", "1"],
        capture_output=True,
        text=True,
        timeout=COMMAND_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    content = json.loads(ended.stdout)
    assert set(content) == {"benchmark", "machine", "rows"}
    assert content["benchmark"] == "spark"
    rows = content["rows"]
    assert all(set(row) == {"system", "case", "metric", "value", "unit"} for row in rows)
    payload = [
        (row["system"], row["case"], row["unit"]) for row in rows if row["metric"] == "payload" and row["value"] > 0
    ]
    assert payload == [*(("tailrace", case, "MB/s") for case in CASES), ("client", "batch-store", "MB/s")]
    assert {row["value"] for row in rows if row["metric"] == "cores given"} == {1}
    assert [row["unit"] for row in rows if row["case"] == "startup"] == ["s"]
    sent_mb = {(row["system"], row["case"]): row["value"] for row in rows if row["metric"] == "server sent"}
    assert sent_mb["tailrace", "batch-direct"] == 0, "what is in Tier 2 is not read from the segment store"
    assert sent_mb["tailrace", "batch-store"] >= 1
    assert sent_mb["client", "batch-store"] >= 1
    assert list(tmp_path.iterdir()) == []
