"""``tailrace standalone``: the signals that end it, and those that do not."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from harness.server import STOP_DEADLINE_S, Server


async def ended_by(server: Server, number: signal.Signals) -> int:
    """Send the signal to all processes of the server, as a terminal does when it goes; the exit code."""
    process, server.process = server.process, None
    assert process is not None
    os.killpg(process.pid, number)
    async with asyncio.timeout(STOP_DEADLINE_S):
        return await process.wait()


@pytest.mark.usefixtures("sighup_by_default")
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_terminal_that_goes_ends_it_in_order(tmp_path: Path, workers: int) -> None:
    async with Server(tmp_path / "server", prefix=["setsid"], workers=workers) as server:
        await server.start()
        assert await ended_by(server, signal.SIGHUP) == 0
        assert len(server.log_events("stopping")) == 1
        assert not server.log_events("worker_killed")


@pytest.mark.usefixtures("sighup_by_default")
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_server_that_can_no_longer_write_to_its_terminal_ends_in_order(tmp_path: Path, workers: int) -> None:
    """Standard error is the terminal, of which only the server knows; the kernel sends SIGHUP as it goes."""
    master, terminal = os.openpty()
    async with Server(tmp_path / "server", prefix=["setsid", "--ctty"], workers=workers, terminal=terminal) as server:
        try:
            await server.spawn()
            os.close(terminal)
            await server.wait_ready()
            process = server.process
            assert process is not None
        finally:
            os.close(master)
        async with asyncio.timeout(STOP_DEADLINE_S):
            assert await process.wait() == 0
        server.process = None


async def test_nohup_keeps_it(tmp_path: Path) -> None:
    async with Server(tmp_path / "server", prefix=["setsid", "nohup"], workers=2) as server:
        await server.start()
        os.killpg(server.pid, signal.SIGHUP)
        assert len(await server.ask("/v1/containers")) == 4, "both workers answer"
        await server.stop()
        assert [worker["starts"] for worker in server.log_events("worker_serves")] == [1, 1]
        assert not server.log_events("worker_ended")
