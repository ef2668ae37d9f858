"""The programs that load a cluster, here against a standalone server that is killed: what they tell is the truth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.sequences import differences, longest_pause_s
from harness.server import Server
from tailrace.client import Client, ScalingPolicy, StreamConfig, StreamName

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = REPOSITORY / "tests/e2e/kubernetes/programs"
HARNESS = REPOSITORY / "tests/support/harness"
SMALL = ("--cache", "128MiB", "--containers", "2")
STREAM = StreamName("load", "events")
KEYS, RATE, LENGTH = "6", "300", "200"
DEADLINE_S = 240.0
"""Of a wait for a condition: two Java programs may start beside other suites."""


@dataclass
class Program:
    """One of them, running."""

    process: asyncio.subprocess.Process
    output: Path

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Return its reports of a kind so far."""
        reports = [json.loads(line) for line in self.output.read_text().splitlines() if line.endswith("}")]
        return [line for line in reports if line["kind"] == kind]

    async def until(self, name: str, at_least: int) -> None:
        """Wait for its progress."""
        async with asyncio.timeout(DEADLINE_S):
            while not any(line[name] >= at_least for line in self.lines("progress")):  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.1)

    async def end(self, *, asked: bool = True) -> dict[str, Any]:
        """Its last line."""
        if asked:
            self.process.terminate()
        async with asyncio.timeout(DEADLINE_S):
            assert await self.process.wait() == 0
        (last,) = self.lines("end")
        return last


@contextlib.asynccontextmanager
async def program(name: str, *words: str, folder: Path) -> AsyncIterator[Program]:
    """Runs it while the block runs."""
    output = folder / f"{name}-{words[0]}".replace("/", "_").replace(":", "_")[:100]
    with output.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAMS / f"{name}.py"), *words),
            env={**os.environ, "PYTHONPATH": str(HARNESS)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
        )
    try:
        yield Program(process, output)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with an empty stream."""
    async with Server(tmp_path / "server", options=SMALL) as made:
        await made.start()
        async with Client(made.controller) as client:
            await client.streams.create_scope(STREAM.scope)
            await client.streams.create_stream(STREAM, StreamConfig(scaling=ScalingPolicy.fixed(4)))
        yield made


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["tailrace", "java"])
async def test_a_load_goes_on_over_a_kill(kind: str, server: Server, tmp_path: Path, java_class_path: str) -> None:
    name, place = str(STREAM), (server.controller, str(STREAM))
    if kind == "java":
        writing: tuple[str, ...] = ("load_java", "writer", java_class_path, *place, "w", KEYS, RATE, LENGTH)
        reading: tuple[str, ...] = ("load_java", "reader", java_class_path, *place, "group", "2")
    else:
        writing = ("load_writer", *place, "w", KEYS, RATE, LENGTH)
        reading = ("load_reader", *place, "group", "2")
    async with program(*writing, folder=tmp_path) as writer, program(*reading, folder=tmp_path) as reader:
        await reader.until("events", 500)
        await server.kill()
        await asyncio.sleep(1)
        await server.start()
        before = writer.lines("progress")[-1]["acknowledged"]
        await writer.until("acknowledged", before + 300)
        wrote = await writer.end()
        await reader.until("events", sum(wrote["keys"].values()))
        read = await reader.end()
    async with program("load_verify", *place, folder=tmp_path) as verifier:
        whole = await verifier.end(asked=False)
    assert not wrote["failed"], name
    assert wrote["acknowledged_of"] == wrote["keys"]
    assert longest_pause_s(wrote["pauses"], 0, wrote["at"]) > 1, "the server was away for more than a second"
    for found in (read, whole):
        assert not found["violations"], found["examples"]
        assert not differences(wrote["keys"], found["keys"])
