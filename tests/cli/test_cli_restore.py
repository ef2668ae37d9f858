"""``tailrace restore``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.server import Server
from harness.workload import create_stream
from tailrace.client import Client, StreamName

STREAM = StreamName("restore", "events")


@pytest.fixture
async def server(tmp_path: Path) -> Server:
    """A server with something in it that was stopped in order."""
    options = ("--cache", "64MiB", "--containers", "2", "--tier2", f"file://{tmp_path}/tier2")
    async with Server(tmp_path / "server", options=options) as server:
        await server.start()
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 1)
            async with client.writer(STREAM) as writer:
                await writer.write_event(b"event", "key")
        await server.stop()
        return server


async def test_a_lost_folder(cli, server: Server, tmp_path: Path) -> None:
    """Printed for people, as JSON for programs; refused when the folder is not empty, or nothing is there."""
    arguments = ("restore", "--data", str(server.data), "--tier2", f"file://{tmp_path}/tier2")
    assert "is not empty" in cli.fails(*arguments)
    alone = json.loads(cli.ok("inspect", "verify", "--tier2", f"file://{tmp_path}/tier2", "--json"))
    assert (alone["problem_count"], alone["from_snapshots"]) == (0, 2)
    shutil.rmtree(server.data)
    dry = cli.run(*arguments, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "dry run: nothing was written" in dry.stdout
    assert not server.data.exists()
    ended = cli.run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert "as of the snapshot of" in ended.stdout
    assert STREAM.segment(0) in ended.stdout
    assert "data acknowledged after operation" in ended.stderr
    files = sorted(server.data.rglob("*"))
    assert "healthy" in cli.ok("inspect", "verify", "--data", str(server.data))  # before a server uses it
    assert sorted(server.data.rglob("*")) == files
    shutil.rmtree(server.data)
    report = json.loads(cli.run(*arguments, "--json").stdout)
    assert report["whole"]
    names = {segment["name"]: segment for item in report["containers"] for segment in item["segments"]}
    assert names[STREAM.segment(0)]["length"] > len(b"event")
    shutil.rmtree(server.data)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no cluster.json" in cli.fails("restore", "--data", str(server.data), "--tier2", f"file://{empty}")
    assert not server.data.exists()
    assert cli.run("restore", "--data", str(server.data)).returncode == 2
