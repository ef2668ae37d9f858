"""Restore destroyed data folders from Tier 2 with ``tailrace restore``; servers start with them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.history import History
from harness.kills import both_outcomes
from harness.minio import MinioProcess
from harness.server import Server
from harness.workload import Workload, create_stream, read_from_head
from tailrace.client import Client, StreamName, TableConfig, TableKeyParts

STREAM, LATER = StreamName("restore", "events"), StreamName("restore", "later")
TABLE = "table"
ENTRIES = 200
LOAD_S = 2.0
SMALL = ("--cache", "128MiB", "--containers", "2")
BYTES_PER_SECOND = 3_000_000


async def restore(server: Server, tier2: tuple[str, ...]) -> dict[str, Any]:
    """The report of a restore into the server's folder, which is lost."""
    shutil.rmtree(server.data)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.cli", "restore", "--data", str(server.data), "--json", *tier2),
        env={**os.environ, **server.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    report: dict[str, Any] = json.loads(out)
    assert report["whole"]
    return report


async def fill_table(client: Client) -> None:
    await client.context.controller.create_table(STREAM.scope, TABLE, TableConfig(1, 16))
    async with client.table(STREAM.scope, TABLE) as table:
        for number in range(ENTRIES):
            await table.put(TableKeyParts(number.to_bytes(16, "big"), b""), b"value %d" % number)


async def check(client: Client, history: History) -> None:
    """Everything that was acknowledged, in order and once; every entry of the table."""
    violations = history.check(await read_from_head(client, STREAM))
    assert not violations, violations[:20]
    async with client.table(STREAM.scope, TABLE) as table:
        found = {int.from_bytes(entry.key.primary, "big"): entry.value async for entry in table.entries()}
    assert found == {number: b"value %d" % number for number in range(ENTRIES)}


async def load(server: Server, seed: int) -> History:
    """Writers, transactions and a table; returns once every outcome is known."""
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        await fill_table(client)
        # Keys are written on with later: no writer may go away with events under way.
        history = History()
        workload = Workload(client, STREAM, history, seed, bytes_per_second=BYTES_PER_SECOND, abandon_probability=0.0)
        async with workload.running():
            await asyncio.sleep(LOAD_S)
            await both_outcomes(workload)
        await workload.settle()
        assert not workload.errors, workload.errors
        return history


async def goes_on(server: Server, history: History, seed: int) -> None:
    """A restored server serves what was there, and takes more."""
    async with Client(server.controller) as client:
        await check(client, history)
        workload = Workload(client, STREAM, history, seed + 1, transactors=0, bytes_per_second=BYTES_PER_SECOND)
        async with workload.running():
            await asyncio.sleep(LOAD_S / 2)
        await workload.settle()
        assert not workload.unexpected, workload.unexpected[:20]
        await check(client, history)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_file_logs_that_are_lost(tmp_path: Path, test_seed: int, how: str) -> None:
    """What was there when the server stopped, or at its last flush, is there again."""
    tier2 = ("--tier2", f"file://{tmp_path}/tier2")
    async with Server(tmp_path / "server", options=(*SMALL, *tier2)) as server:
        await server.start()
        history = await load(server, test_seed)
        if how == "stopped":
            await server.stop()
        else:
            await server.flush()
            async with Client(server.controller) as client:
                await create_stream(client, LATER, 1)  # perhaps lost: it is in no snapshot
            await server.kill()
        report = await restore(server, tier2)
        assert {item["source"] for item in report["containers"]} == {"snapshot"}
        assert len(report["warnings"]) >= 2
        await server.start()
        await goes_on(server, history, test_seed)
        await server.stop()
        assert (await server.verify())["segment_bytes"] > 0
        await restore(server, tier2)
        await server.start()
        async with Client(server.controller) as client:
            await check(client, history)


@pytest.mark.timeout(1800)
async def test_object_logs_in_a_folder_lose_nothing(tmp_path: Path, test_seed: int) -> None:
    tier2 = ("--tier2", f"file://{tmp_path}/tier2")
    async with Server(tmp_path / "server", options=(*SMALL, "--log", "object", *tier2)) as server:
        await killed_under_load_and_lost(server, tier2, test_seed)


@pytest.mark.timeout(1800)
async def test_object_logs_in_a_bucket_lose_nothing(minio: MinioProcess, tmp_path: Path, test_seed: int) -> None:
    tier2 = ("--tier2", f"s3://{minio.new_bucket()}/a/prefix", "--s3-endpoint", minio.endpoint)
    options = (*SMALL, "--log", "object", *tier2)
    async with Server(tmp_path / "server", options=options, environment=minio.credentials) as server:
        await killed_under_load_and_lost(server, tier2, test_seed)


async def killed_under_load_and_lost(server: Server, tier2: tuple[str, ...], seed: int) -> None:
    """Everything acknowledged is there, although process and folder are lost at the same moment."""
    await server.start()
    async with Client(server.controller) as client:
        await create_stream(client, STREAM, 2)
        await fill_table(client)
        workload = Workload(client, STREAM, History(), seed, bytes_per_second=BYTES_PER_SECOND)
        async with workload.running():
            await asyncio.sleep(LOAD_S)
            await both_outcomes(workload)
            await server.kill()
            report = await restore(server, tier2)
            assert {item["source"] for item in report["containers"]} == {"log"}
            assert report["warnings"] == []
            await server.start()
            await asyncio.sleep(LOAD_S / 2)
        await workload.settle()
        await check(client, workload.history)
        assert not workload.unexpected, workload.unexpected[:20]
    await server.stop()
    assert (await server.verify())["log_objects"] > 0
