"""A reader group of the published Python client (Rust flavour), as the operator sees it (docs/design.md#resources)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tailrace.client.async_client import Client
from tailrace.client.group.rust import read_view
from tailrace_operator.readergroup.measure import Histories, Sample, SegmentLook, measure

SCRIPTS = Path(__file__).resolve().parent / "scripts"
EVENTS = 5
EVENT_BYTES = 18
STEP_DEADLINE_S = 150.0


async def look(client: Client, scope: str) -> Sample:
    """Measure the group."""
    positions = await read_view(client.context, scope, "group")
    assert positions.streams == (f"{scope}/stream",)
    return await measure(client, f"{scope}/group", positions, SegmentLook(Histories()), {}, publishes=False)


@pytest.mark.timeout(400)
async def test_a_group_of_the_python_client_is_watched(server: Any, python_client: str, test_profile: str) -> None:
    environment = server.environment(test_profile)
    process = await asyncio.create_subprocess_exec(
        *(python_client, str(SCRIPTS / "group_in_steps.py"), str(EVENTS)),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output = process.stdout
    assert process.stdin is not None
    assert output is not None

    async def answer() -> str:
        async with asyncio.timeout(STEP_DEADLINE_S):
            return (await output.readline()).decode().strip()

    try:
        async with Client(environment["TAILRACE_COMPAT_CONTROLLER"]) as client:
            scope = await answer()
            found = await look(client, scope)
            assert (found.online_readers, found.unassigned_segments) == (0, 1)
            assert found.lag_bytes == EVENTS * EVENT_BYTES
            process.stdin.write(b"join\n")
            assert await answer() == "joined"
            found = await look(client, scope)
            assert (found.online_readers, found.unassigned_segments) == (1, 0)
            process.stdin.write(b"leave\n")
            assert await answer() == "left"
            found = await look(client, scope)
            assert (found.online_readers, found.unassigned_segments, found.lag_bytes) == (0, 1, 0)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
