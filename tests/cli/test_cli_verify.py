"""``tailrace inspect verify``: over the folder of a server that was killed under load, whole and damaged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harness.history import History
from harness.server import Server
from harness.workload import Workload, create_stream
from tailrace.client import Client, StreamName

STREAM = StreamName("verify", "events")
SEGMENT = STREAM.segment(0)
LOAD_S = 1.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server whose clients were writing when it was killed, twice."""
    async with Server(tmp_path, options=("--cache", "64MiB", "--containers", "2")) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 2)
            workload = Workload(client, STREAM, History(), seed=1)
            async with workload.running():
                await asyncio.sleep(LOAD_S)
                await server.flush()
                await asyncio.sleep(LOAD_S)
                await server.kill()
                await server.start()
                await asyncio.sleep(LOAD_S)
            await workload.settle()
        await server.kill()
        yield server


def verify(cli, server: Server, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    ended = cli.run("inspect", "verify", "--data", str(server.data), "--json", *options)
    assert ended.stderr == ""
    return ended.returncode, json.loads(ended.stdout)


def objects(server: Server) -> list[Path]:
    """Files of chunks, the largest first."""
    found = [path for path in server.tier2.glob("c*/*/*") if "#" not in path.name]
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (value,) = file.read(1)
        file.seek(offset)
        file.write(bytes([value ^ 1]))


async def test_a_killed_server(cli, server: Server) -> None:
    """Whole; then with one damage after the other, each named and gone again when it is undone."""
    code, report = verify(cli, server)
    assert (code, report["problem_count"]) == (0, 0)
    assert report["containers"] == 2
    assert report["segment_bytes"] == report["tier2_bytes"] + report["log_only_bytes"] > 0
    assert report["table_entries"] > 0
    assert "healthy" in cli.ok("inspect", "verify", "--data", str(server.data))
    check_damaged_chunk(cli, server)
    check_missing_object(cli, server)
    check_orphan(cli, server)
    check_damaged_log(cli, server)
    assert verify(cli, server)[0] == 0
    await check_in_use(cli, server)


def check_damaged_chunk(cli, server: Server) -> None:
    large = [path for path in objects(server) if path.stat().st_size > 5000]
    for path in large:
        flip(path, 5000)
        code, report = verify(cli, server)
        if code:
            break
        flip(path, 5000)  # an orphan of the kill, or an object that a compaction replaced: no segment needs it
    else:
        pytest.fail("no segment references a large object")
    assert code == 1
    place = f"object {path.relative_to(server.tier2)}"
    (problem,) = report["problems"]
    assert problem["place"] == place
    assert problem["segment"]
    assert 0 < problem["position"] <= 5000
    ended = cli.run("inspect", "verify", "--data", str(server.data))
    assert ended.returncode == 1
    assert f"problem: container {problem['container']}, segment {problem['segment']} at " in ended.stdout
    assert place in ended.stdout
    flip(path, 5000)


def check_missing_object(cli, server: Server) -> None:
    """An object that a segment references, while no snapshot is there to need it in another way."""
    aside = server.folder / "aside"
    aside.mkdir()
    snapshots = list(server.tier2.glob("s[0-9]*"))
    assert snapshots
    for folder in snapshots:
        shutil.move(folder, aside / folder.name)
    code, whole = verify(cli, server)
    assert (code, whole["snapshots"]) == (0, 0)
    for path in objects(server):
        shutil.move(path, aside / "object")
        code, report = verify(cli, server)
        shutil.move(aside / "object", path)
        if report["objects"] == whole["objects"] - 1:
            break
        assert code == 0, "an object that a compaction replaced, or an orphan"
    else:
        pytest.fail("no segment references an object")
    assert code == 1
    # A table with entries in the object has a problem in its index, too.
    places = {problem["place"] for problem in report["problems"] if not problem["reason"].startswith("table index: ")}
    assert places == {f"object {path.relative_to(server.tier2)}"}
    for folder in snapshots:
        shutil.move(aside / folder.name, folder)


def check_orphan(cli, server: Server) -> None:
    """Orphans are listed, and are no damage."""
    before = verify(cli, server)[1]["orphan_count"]
    extra = objects(server)[0].with_name("0000000000000000-0000000000000001-00000001-aaaaaaaaaaaa")
    extra.write_bytes(b"123")
    code, report = verify(cli, server)
    assert (code, report["orphan_count"]) == (0, before + 1)
    key = str(extra.relative_to(server.tier2))
    assert key in [orphan["key"] for orphan in report["orphans"]]
    assert f"orphan: object {key}, 3 bytes" in cli.ok("inspect", "verify", "--data", str(server.data))
    os.remove(extra)


def check_damaged_log(cli, server: Server) -> None:
    path = max((server.data / "log" / "0").glob("[0-9]*-*.log"), key=lambda path: path.name.split("-")[1])
    flip(path, 700)
    code, report = verify(cli, server)
    assert code == 1
    (problem,) = report["problems"]
    assert (problem["container"], problem["place"]) == (0, str(path))
    assert 0 <= problem["position"] <= 700
    assert report["unaccounted_objects"] >= 0
    flip(path, 700)


async def check_in_use(cli, server: Server) -> None:
    await server.start()
    line = cli.fails("inspect", "verify", "--data", str(server.data))
    assert line == f"tailrace: data folder {server.data} is in use by another process"


def test_what_is_no_folder(cli, tmp_path: Path) -> None:
    line = cli.fails("inspect", "verify", "--data", str(tmp_path))
    assert line == f"tailrace: {tmp_path} is not a data folder: it has no tailrace.json"
