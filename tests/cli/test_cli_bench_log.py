"""``tailrace bench log``: the same form as every benchmark, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

SHORT = ("--seconds", "0.2", "--warm-up", "0.1")


def test_on_disk_and_in_a_store(cli, tmp_path: Path) -> None:
    disk, objects = tmp_path / "disk", tmp_path / "objects"
    disk.mkdir()
    output = cli.ok("bench", "log", "--folder", str(disk), "--tier2", f"file://{objects}", *SHORT, "--json")
    content = json.loads(output)
    assert output.count("\n") == 1
    assert set(content) == {"benchmark", "machine", "rows"}
    assert content["benchmark"] == "log"
    assert {row["system"] for row in content["rows"]} == {"tailrace file log", "tailrace object log"}
    assert len({row["case"] for row in content["rows"]}) == 4
    assert all(row["value"] > 0 for row in content["rows"] if row["metric"] in ("frames", "payload", "p50"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "nothing is left behind"


def test_an_unusable_store_is_reported_before_a_measurement(cli) -> None:
    line = cli.fails("bench", "log", "--tier2", "ftp://somewhere", *SHORT)
    assert line.startswith("tailrace: Tier 2 'ftp://somewhere"), line
