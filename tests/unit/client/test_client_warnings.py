"""Where the client's warnings go in applications (docs/client.md#logs)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys

import pytest

from tailrace.client.async_client import Client
from tailrace.common import limits
from tailrace.common.logs import LibraryLog

DEADLINE_S = 120.0
CALLER = "tailrace.client.control.caller"
PROGRAM = """
import asyncio
import sys

from tailrace.client import Client
from tailrace.common import limits

limits.CLIENT_WAIT_NOTICE_S = 0.0


async def main():
    async with Client(sys.argv[1]) as client:
        call = asyncio.create_task(client.streams.list_scopes())
        await asyncio.to_thread(sys.stdin.readline)
        call.cancel()
        await asyncio.wait([call])
        print("result")


asyncio.run(main())
"""


def address_without_server() -> str:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{used.getsockname()[1]}"


async def test_an_application_without_settings_has_its_own_results_alone_on_standard_output() -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        address_without_server(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    assert program.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        warning = await program.stderr.readline()
        out, _ = await program.communicate(b"\n")
    assert warning.startswith(b"controller call waits: call=listScopes")
    assert out == b"result\n"


async def test_an_application_that_uses_logging_gets_records_of_the_module(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "CLIENT_WAIT_NOTICE_S", 0.0)
    async with Client(address_without_server()) as client:
        call = asyncio.create_task(client.streams.list_scopes())
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [each for each in caplog.records if each.name == CALLER]):  # noqa: ASYNC110 - a log
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
    (record,) = found
    assert (record.levelno, record.filename) == (logging.WARNING, "caller.py")
    assert record.getMessage().startswith("controller call waits: call=listScopes, deadline_s=")


def test_an_unexpected_error_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("a bug")
    except ValueError as error:
        LibraryLog("tailrace.client.some").warning("not_done", reader="r1", exc_info=error)
    (record,) = caplog.records
    assert record.getMessage() == "not done: reader=r1"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a bug"


def test_the_level_of_the_client_can_be_set(caplog: pytest.LogCaptureFixture) -> None:
    log = LibraryLog("tailrace.client.some")
    log.info("joined", reader="r1")
    assert not caplog.records
    with caplog.at_level(logging.INFO, "tailrace.client"):
        log.info("joined", reader="r1")
    with caplog.at_level(logging.ERROR, "tailrace"):
        log.warning("left", reader="r1")
    assert [record.getMessage() for record in caplog.records] == ["joined: reader=r1"]
