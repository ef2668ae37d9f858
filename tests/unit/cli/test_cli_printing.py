"""Standard output whose reader is slow does not hold the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import socket
import sys
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cli import printing

DEADLINE_S = 120.0
DATA = b"".join(b"%07d\n" % number for number in range(100_000))


@pytest.fixture(params=["pipe", "pipe that cannot be opened again", "socket", "terminal"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The reading and the writing end of standard output."""
    if request.param == "socket":
        found = [end.detach() for end in socket.socketpair()]
    elif request.param == "terminal":
        found = list(os.openpty())
        tty.setraw(found[1])
    else:
        found = list(os.pipe())
        if request.param != "pipe":
            monkeypatch.setattr(printing, "_opened_again", lambda _: None)
    yield found
    for descriptor in found:
        os.close(descriptor)


def read_some(descriptor: int, length: int) -> bytes:
    found = b""
    while len(found) < length:
        found += os.read(descriptor, length - len(found))
    return found


async def begun(ends: list[int]) -> asyncio.Task[None]:
    """A task that prints more than there is room for, once it waits for the reader."""

    async def work() -> None:
        with (
            open(ends[1], "w", closefd=False) as stdout,  # noqa: ASYNC230
            contextlib.redirect_stdout(stdout),
            printing.printer() as output,
        ):
            await output.write(DATA)

    task = asyncio.create_task(work())
    poll = select.poll()
    poll.register(ends[1], select.POLLOUT)
    async with asyncio.timeout(DEADLINE_S):
        while poll.poll(0):  # noqa: ASYNC110  # it has no reader
            await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_the_loop_goes_on_until_the_reader_takes_all(ends: list[int]) -> None:
    task = await begun(ends)
    async with asyncio.timeout(DEADLINE_S):
        found = await asyncio.to_thread(read_some, ends[0], len(DATA))
        await task
    assert found == DATA
    assert os.get_blocking(ends[1]), "other processes share the descriptor"


async def test_a_cancellation_ends_the_wait(ends: list[int]) -> None:
    task = await begun(ends)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_reader_that_is_gone_is_an_error(ends: list[int]) -> None:
    task = await begun(ends)
    os.close(ends[0])
    ends[0] = os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(OSError, match=r"Broken pipe|Input/output error"):
        await task


@pytest.mark.parametrize("name", ["/dev/null", "file"])
async def test_a_file_and_a_device_are_written_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / name
    with file.open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        stdout.write("before\n")
        with printing.printer() as output:
            await output.write(b"one\n")
            await output.write(b"two\n")
    assert file.read_text() == ("" if name == "/dev/null" else "before\none\ntwo\n")


async def test_an_object_in_the_place_of_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer))
    with printing.printer() as output:
        await output.write(b"one\n")
    assert buffer.getvalue() == b"one\n"


def test_the_programs_end_of_a_terminal_is_not_opened_again() -> None:
    """That would make another terminal, whose output comes nowhere."""
    with_program, with_user = os.openpty()
    try:
        assert printing._opened_again(with_program) is None
    finally:
        os.close(with_program)
        os.close(with_user)
