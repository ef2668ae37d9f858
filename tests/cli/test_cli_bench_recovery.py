"""``tailrace bench recovery``: the same form as every benchmark, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path


def test_every_shape_of_log_is_recovered(cli, tmp_path: Path) -> None:
    ended = cli.run("bench", "recovery", "--log", "4MB", "--repeats", "2", "--folder", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stderr
    content = json.loads(ended.stdout)
    assert ended.stdout.count("\n") == 1
    assert set(content) == {"benchmark", "machine", "rows"}
    assert content["benchmark"] == "recovery"
    rows = content["rows"]
    assert len({row["case"] for row in rows}) == 5
    assert {row["metric"] for row in rows} == {"recovered", "operations", "log", "recovery", "CPU"}
    assert all(row["value"] > 0 for row in rows)
    logs = [row["value"] for row in rows if row["metric"] == "log"]
    assert all(2.5 < size < 5 for size in logs), logs
    assert ended.stderr.splitlines() == [f"measuring {case}" for case in dict.fromkeys(row["case"] for row in rows)]
    assert [path.name for path in tmp_path.iterdir()] == []
