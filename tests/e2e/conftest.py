"""A standalone server of our own, as a child process, for tests against the whole product."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import ServerProcess

EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Controller address of a server of this module."""
    server = ServerProcess(tmp_path_factory.mktemp("server"), ports=EPHEMERAL, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        endpoints = runner.run(server.start())
        try:
            yield endpoints.controller
        finally:
            runner.run(server.stop())
