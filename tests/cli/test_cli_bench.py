"""Every benchmark prints one object of the same form."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

SHORT = ("--seconds", "0.5", "--warm-up", "0.2")


def checked(name: str, output: str) -> list[dict[str, Any]]:
    content = json.loads(output)
    assert output.count("\n") == 1
    assert set(content) == {"benchmark", "machine", "rows"}
    assert content["benchmark"] == name
    assert set(content["machine"]) == {"cpu", "cores", "memory_bytes", "python", "kernel"}
    rows: list[dict[str, Any]] = content["rows"]
    assert rows
    for row in rows:
        assert set(row) == {"system", "case", "metric", "value", "unit"}
        assert isinstance(row["value"], int | float)
        assert row["value"] >= 0
    return rows


def test_ingest_against_a_running_server(cli, tmp_path: Path) -> None:
    picture = tmp_path / "ingest.png"
    arguments = ("bench", "ingest", "--controller", cli.endpoints.controller, *SHORT, "--plot", str(picture))
    rows = checked("ingest", cli.ok(*arguments, "--json"))
    assert {row["case"] for row in rows} == {
        "100 B, 1 segment, batches",
        "100 B, 4 segments, batches",
        "100 B, 1 segment, single calls",
        "10 KB, 1 segment",
        "100 B, one at a time",
    }
    events = {row["case"]: row["value"] for row in rows if row["metric"] == "events"}
    assert all(value > 0 for value in events.values())
    assert events["100 B, 1 segment, batches"] > events["100 B, one at a time"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "bench" not in cli.value("scope", "list"), "nothing is left behind"


@pytest.mark.timeout(240)
def test_ingest_over_an_object_log(cli, tmp_path: Path) -> None:
    folder, objects = tmp_path / "folder", tmp_path / "objects"
    folder.mkdir()
    options = ("--log", "object", "--tier2", f"file://{objects}")
    ended = cli.run("bench", "ingest", *SHORT, *options, "--folder", str(folder), "--json")
    assert ended.returncode == 0, ended.stderr
    rows = checked("ingest", ended.stdout)
    assert all(row["value"] > 0 for row in rows if row["metric"] == "events")
    assert names_in(folder) == []
    assert list(objects.glob("bench-*/log/*/claims/*")), "its logs were there"
    line = cli.fails("bench", "ingest", "--controller", cli.endpoints.controller, *SHORT, *options)
    assert line == "tailrace: --log, --tier2 and --s3-endpoint apply to the benchmark's own server; omit --controller"


@pytest.mark.timeout(240)
def test_read_with_a_server_of_its_own(cli, tmp_path: Path) -> None:
    ended = cli.run("bench", "read", *SHORT, "--rate", "2000", "--catch-up", "5MB", "--folder", str(tmp_path), "--json")
    assert ended.returncode == 0, ended.stderr
    assert "measuring" in ended.stderr
    rows = checked("read", ended.stdout)
    assert {row["case"] for row in rows} == {
        "100 B, tail, 2,000 events/s",
        "1 KB, catch-up from the cache",
        "1 KB, catch-up from Tier 2",
    }
    assert [path.name for path in tmp_path.iterdir()] == []
    assert "bench" not in cli.value("scope", "list"), "what the environment names is not measured"


def server_below(folder: Path) -> int:
    """Process number of the server whose data folder is in `folder`."""
    (data,) = folder.iterdir()
    pid: int = json.loads((data / "ready.json").read_text())["pid"]
    return pid


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("number", "at"), [(signal.SIGINT, b"tail"), (signal.SIGTERM, b"tail"), (signal.SIGINT, b"catch-up from the cache")]
)
async def test_a_benchmark_that_is_interrupted_leaves_nothing(
    cli, tmp_path: Path, number: signal.Signals, at: bytes
) -> None:
    command = ("bench", "read", *SHORT, "--rate", "1000", "--catch-up", "200MB", "--folder", str(tmp_path))
    async with cli.running(*command) as bench:
        assert bench.stderr is not None
        async with asyncio.timeout(120):
            while at not in await bench.stderr.readline():
                assert not bench.stderr.at_eof()
            server = server_below(tmp_path)
            bench.send_signal(number)
            assert await bench.wait() == 128 + number
            assert await bench.stderr.read() == b""
    assert not runs(server)
    assert names_in(tmp_path) == []


def test_table_against_a_running_server(cli, tmp_path: Path) -> None:
    picture = tmp_path / "table.png"
    arguments = ("bench", "table", "--controller", cli.endpoints.controller, *SHORT, "--keys", "300")
    rows = checked("table", cli.ok(*arguments, "--plot", str(picture), "--json"))
    operations = [(row["case"], row["unit"]) for row in rows if row["metric"] == "operations" and row["value"] > 0]
    assert operations == [(case, "operations/s") for case in ("put-1", "put-256", "get-1", "get-256")]
    assert {row["system"] for row in rows} == {"tailrace"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "bench" not in cli.value("scope", "list"), "nothing is left behind"


def test_transactions_against_a_running_server_and_a_peer(cli) -> None:
    server = cli.endpoints.controller
    arguments = ("bench", "transactions", "--controller", server, *SHORT, "--open", "5", "--peer", server)
    rows = checked("transactions", cli.ok(*arguments, "--json"))
    rates = [
        (row["system"], row["case"], row["unit"])
        for row in rows
        if row["metric"] == "transactions" and row["value"] > 0
    ]
    assert rates == [
        (system, case, "transactions/s")
        for case in ("sequential", "concurrent-16")
        for system in ("tailrace", "pravega-java")
    ]
    assert "bench" not in cli.value("scope", "list"), "nothing is left behind"


@pytest.mark.timeout(600)
def test_a_server_and_a_peer_through_the_java_client(cli) -> None:
    """A second Tailrace stands for the Pravega, which needs hundreds of MB of jars."""
    server = cli.endpoints.controller
    arguments = ("bench", "peer", "--controller", server, "--rounds", "2", "--cases", "one at a time", "--json")
    command = f"sh -c 'echo it serves at {server}; exec sleep 600'"
    for peer in (("--peer", server), ("--peer-command", command)):
        ended = cli.run(*arguments, *peer)
        assert ended.returncode == 0, ended.stderr
        rows = checked("peer", ended.stdout)
        assert {row["case"] for row in rows} == {"100 B, one at a time"}
        rates = {row["system"]: row["value"] for row in rows if row["metric"] == "events"}
        assert list(rates) == ["tailrace", "pravega-java", "tailrace / pravega-java"]
        ours, theirs, ratio = rates.values()
        assert ratio == pytest.approx(ours / theirs, rel=1e-3)
        assert ours > 0
    assert not [name for name in cli.value("scope", "list") if name.startswith("bench")], "nothing is left behind"
    line = cli.fails("bench", "peer", "--controller", server, "--peer", server, "--cases", "no such")
    assert line.startswith("tailrace: no case has 'no such' in its name; there are 100 B, 1 segment;")


@pytest.mark.timeout(600)
def test_tables_through_the_java_client(cli) -> None:
    server = cli.endpoints.controller
    arguments = ("bench", "table", "--controller", server, *SHORT, "--keys", "300", "--peer", server, "--json")
    ended = cli.run(*arguments)
    assert ended.returncode == 0, ended.stderr
    rows = checked("table", ended.stdout)
    operations = {(row["system"], row["case"]) for row in rows if row["metric"] == "operations" and row["value"] > 0}
    systems = ("tailrace", "tailrace, Java client", "pravega-java")
    assert operations == {(system, f"{verb}-{n}") for system in systems for verb in ("put", "get") for n in (1, 256)}
    assert not [name for name in cli.value("scope", "list") if name.startswith("bench")], "nothing is left behind"


def test_transactions_with_a_server_of_its_own(cli, tmp_path: Path) -> None:
    rows = checked("transactions", cli.ok("bench", "transactions", *SHORT, "--folder", str(tmp_path), "--json"))
    used = [(row["case"], row["unit"]) for row in rows if row["metric"] == "server CPU per transaction"]
    assert used == [("sequential", "ms"), ("concurrent-16", "ms")]
    assert {row["system"] for row in rows} == {"tailrace"}


def test_scales_against_a_running_server(cli) -> None:
    server = cli.endpoints.controller
    rows = checked("scale", cli.ok("bench", "scale", "--controller", server, "--scales", "3", "--open", "5", "--json"))
    longest = "longest wait beside a scale"
    assert [(row["system"], row["case"], row["metric"]) for row in rows if row["metric"].endswith("p99")] == [
        each
        for case in ("open-0", "open-5")
        for each in (
            ("tailrace", case, "p99"),
            ("writer", f"{case}, alone", "p99"),
            ("writer", case, f"{longest}, p99"),
        )
    ]
    assert all(row["value"] > 0 for row in rows)
    assert "bench" not in cli.value("scope", "list"), "nothing is left behind"


def test_many_streams(cli, tmp_path: Path) -> None:
    rows = checked("streams", cli.ok("bench", "streams", "--streams", "40", "--folder", str(tmp_path), "--json"))
    created = [row for row in rows if row["metric"] == "streams" and row["value"] > 0]
    assert [row["case"] for row in created] == ["create", "first event"]
    pages = {row["case"]: row["value"] for row in rows if row["metric"] == "pages of a list"}
    assert pages == {"list": 1, "list by tag": 1}
    assert {row["case"] for row in rows if row["metric"] == "server memory" and row["value"] > 0} == {
        *("create", "first event", "start"),
        *("retention, first round", "retention, nothing new"),
    }
    assert names_in(tmp_path) == []


def test_the_engine_alone(cli) -> None:
    rows = checked("ingest", cli.ok("bench", "ingest", "--in-process", *SHORT, "--json"))
    cases = {f"{length}-{segments}" for length in ("100B", "1KB", "10KB") for segments in ("1-segment", "10-segments")}
    assert {row["case"] for row in rows} == cases
    assert {row["metric"] for row in rows if row["value"] > 0} == {"payload", "events", "p50", "p99", "p99.9", "CPU"}
    refused = cli.run("bench", "ingest", "--in-process", "--log", "object")
    assert refused.returncode == 2
    assert "it measures no server" in refused.stderr


def test_cache_and_index(cli) -> None:
    rows = checked("cache", cli.ok("bench", "cache", "--entries", "200", "--repeats", "1", "--json"))
    assert {row["system"] for row in rows} == {"all", "tailrace", "dict-copy", "rocksdb"}
    rows = checked("index", cli.ok("bench", "index", "--count", "2000", "--json"))
    assert {row["unit"] for row in rows} == {"MB", "ms"}
    assert "sorted-10-compacted" in cli.ok("bench", "index", "--count", "1000")


def test_a_large_index(cli, tmp_path: Path) -> None:
    options = ("--keys", "3000", "--update-rate", "500", "--seconds", "1", "--folder", str(tmp_path))
    rows = checked("index", cli.ok("bench", "index", *options, "--json"))
    assert {row["case"] for row in rows} == {"3,000 keys, 500 updates/s"}
    values = {row["metric"]: row["value"] for row in rows}
    assert values["reads of a warm lookup, most"] <= 2, "a root and a leaf: nothing may have read the root before"
    assert values["reads of a cold lookup, most"] <= 2
    assert values["updates"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there(cli) -> None:
    line = cli.fails("bench", "ingest", "--controller", "tcp://127.0.0.1:1")
    assert line == "tailrace: the controller at tcp://127.0.0.1:1 cannot be reached: Connection refused"
