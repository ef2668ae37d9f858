"""Published clients and the command line over Tier 2 on a real MinIO server: main paths, then read from there."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.minio import MinioProcess
from harness.server import Server

OPTIONS = ("--cache", "64MiB", "--containers", "2")
CHILD_DEADLINE_S = 600
LINES = 20_000
PYTHON_CHECKS = ("events", "transactions", "byte_streams")
JAVA_CHECKS = ("events", "two-readers", "transaction", "truncation")


@pytest.fixture
async def server(minio: MinioProcess, tmp_path: Path) -> AsyncIterator[Server]:
    """A server with Tier 2 in a bucket of its own."""
    options = (*OPTIONS, "--tier2", f"s3://{minio.new_bucket()}", "--s3-endpoint", minio.endpoint)
    async with Server(tmp_path / "server", options=options, environment=minio.credentials) as made:
        await made.start()
        yield made
        await made.stop()


async def run(*words: str, environment: Mapping[str, str], folder: Path) -> str:
    """The output of a child that succeeds in time."""
    child = await asyncio.create_subprocess_exec(
        *words,
        env={**os.environ, **environment},
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(CHILD_DEADLINE_S):
            output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = output.decode(errors="replace")
    assert child.returncode == 0, text[-4000:]
    return text


async def total(server: Server, name: str) -> Any:
    """A figure of all containers."""
    return sum(item.get(name, item["details"].get(name, 0)) for item in await server.ask("/v1/containers"))


@pytest.mark.timeout(CHILD_DEADLINE_S + 60)
@pytest.mark.parametrize("script", PYTHON_CHECKS)
async def test_python_client(
    script: str, server: Server, python_client: str, python_scripts: Path, tmp_path: Path
) -> None:
    environment = {"TAILRACE_COMPAT_CONTROLLER": server.controller, "RUST_BACKTRACE": "0", "TMPDIR": str(tmp_path)}
    output = await run(python_client, str(python_scripts / f"{script}.py"), environment=environment, folder=tmp_path)
    assert "ok     check_" in output
    await server.flush_until_tiered()
    assert await total(server, "tier2_bytes_written") > 0


@pytest.mark.timeout(CHILD_DEADLINE_S + 60)
async def test_java_client(server: Server, java_class_path: str, tmp_path: Path) -> None:
    options = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_class_path)
    for scenario in JAVA_CHECKS:
        words = ("java", *options, "io.tailrace.compat.Main", "scenario", server.controller, scenario)
        assert f"ok {scenario}" in await run(*words, environment={}, folder=tmp_path)
        await server.flush()
    assert await total(server, "tier2_bytes_written") > 0


async def test_command_line(server: Server, tmp_path: Path) -> None:
    """What was written is read back by a server that has nothing in its cache."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f'{{"key": "k{number % 7}", "number": {number}}}\n' for number in range(LINES)))

    async def tailrace(*words: str) -> str:
        environment = {"TAILRACE_CONTROLLER": server.controller, "TAILRACE_ADMIN": server.admin}
        return await run(sys.executable, "-m", "tailrace.cli", *words, environment=environment, folder=tmp_path)

    await tailrace("scope", "create", "shop")
    await tailrace("stream", "create", "shop/orders", "--segments", "3")
    assert (await tailrace("write", "shop/orders", str(lines), "--key", "key")).startswith(f"{LINES:,} events, ")
    await server.flush()
    await server.kill()
    await server.start()
    fetches = await total(server, "tier2_fetches")
    read = (await tailrace("read", "shop/orders")).splitlines()
    assert sorted(read) == sorted(lines.read_text().splitlines())
    assert await total(server, "tier2_fetches") > fetches
    segments = [f"shop/orders/{number}.#epoch.0" for number in range(3)]
    chunks = [item for name in segments for item in json.loads(await tailrace("inspect", "chunks", name, "--json"))]
    assert chunks
    assert all(chunk["exists"] for chunk in chunks)
