"""``tailrace bench recovery``: the same form as every benchmark, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path


def test_every_shape_of_log_is_recovered(cli, tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    options = ("--log", "4MB", "--repeats", "2", "--folder", str(tmp_path), "--tier2", f"file://{objects}")
    ended = cli.run("bench", "recovery", *options, "--json")
    assert ended.returncode == 0, ended.stderr
    content = json.loads(ended.stdout)
    assert ended.stdout.count("\n") == 1
    assert set(content) == {"benchmark", "machine", "rows"}
    assert content["benchmark"] == "recovery"
    rows = content["rows"]
    assert len({row["case"] for row in rows}) == 5
    figures = {"recovered", "operations", "log", "recovery", "CPU", "memory beside the cache"}
    assert {row["metric"] for row in rows if row["system"] == "tailrace"} == figures
    assert {row["metric"] for row in rows if row["system"] == "tailrace object log"} == {*figures, "requests"}
    assert all(row["value"] > 0 for row in rows if row["metric"] != "memory beside the cache")
    logs = [row["value"] for row in rows if row["metric"] == "log"]
    assert all(2.5 < size < 5 for size in logs), logs
    cases = dict.fromkeys(row["case"] for row in rows)
    measured = [f"measuring {case}{which}" for case in cases for which in ("", ", object log")]
    assert ended.stderr.splitlines() == measured
    assert list(tmp_path.iterdir()) == [objects]
    assert [path for path in objects.rglob("*") if path.is_file()] == []
