"""A server killed with SIGKILL at many moments loses nothing it acknowledged, and shows nothing twice or by halves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from harness.javaclients import JavaClients
from harness.kills import (
    Kill,
    between_flush_and_commit,
    kill_again_and_again,
    one_worker,
    plan,
    while_recovering,
    while_serving,
)
from harness.server import Server

FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"
SCENARIOS = 5 if FULL else 1
KILLS_PER_SCENARIO = 10 if FULL else 6
SCENARIO_DEADLINE_S = 1800
OPTIONS = ("--cache", "128MiB")
LOGS_OF_ONE_PROCESS = ("file", "object") if FULL else ("file",)
LOGS_OF_WORKERS = ("object", "file") if FULL else ("object",)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
@pytest.mark.parametrize("log", LOGS_OF_ONE_PROCESS)
@pytest.mark.parametrize("scenario", range(SCENARIOS))
async def test_one_process(tmp_path: Path, scenario: int, log: str, test_seed: int) -> None:
    seed = test_seed + scenario
    print(f"seed {seed}")
    async with Server(tmp_path, options=(*OPTIONS, "--log", log)) as server:
        await kill_again_and_again(server, plan(random.Random(seed), KILLS_PER_SCENARIO), seed)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
@pytest.mark.parametrize("log", LOGS_OF_WORKERS)
async def test_worker_processes(tmp_path: Path, log: str, test_seed: int) -> None:
    kills: list[Kill] = [while_recovering, while_serving, one_worker]
    if FULL:
        kills = [*kills, while_recovering, *kills, between_flush_and_commit]
    async with Server(tmp_path, options=(*OPTIONS, "--log", log), workers=2) as server:
        await kill_again_and_again(server, kills, test_seed)


@pytest.mark.timeout(SCENARIO_DEADLINE_S)
async def test_clients_in_java(tmp_path: Path, java_class_path: str, test_seed: int) -> None:
    kills: list[Kill] = [while_serving, between_flush_and_commit]
    if FULL:
        kills = [*kills, while_recovering, *kills, while_serving]
    java = JavaClients(java_class_path, tmp_path)
    async with Server(tmp_path, options=OPTIONS) as server:
        await kill_again_and_again(server, kills, test_seed, (java,))


async def test_workers_without_a_parent_end(tmp_path: Path) -> None:
    """Whenever the parent is killed, its workers end by themselves and make way for a server that starts at once."""
    async with Server(tmp_path, options=("--cache", "128MiB", "--containers", "2"), workers=2) as server:
        await server.start()
        for moment_s in (0.0, 0.9, 1.2, 1.5, 1.8):
            await server.kill()
            await server.spawn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(moment_s):
                    await server.wait_ready()
        await server.kill()
        await server.start()
        assert (await server.ask("/v1/health"))["ready"]
    assert "Traceback" not in server.log
