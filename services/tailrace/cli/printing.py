"""Print bytes on standard output without holding the event loop while its reader is slow."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tailrace.cli.descriptors import may_block, writable

Print: TypeAlias = Callable[[memoryview], int]
"""Write some of the bytes without waiting, and return their number. Raises BlockingIOError: none was possible."""

PIECE_BYTES: Final = select.PIPE_BUF
"""What a pipe that is ready takes without blocking, unless another process writes to it at that moment."""

_PTMX: Final = os.makedev(5, 2)

LOOK_AGAIN_S: Final = 0.1
"""Linux may wake writers to a pseudo terminal before there is room, and not again when there is."""


class Printer:
    """Standard output. A file gets bytes at once; a pipe, a socket or a terminal as fast as its reader takes them."""

    def __init__(self, descriptor: int | None, write_some: Print) -> None:
        """`descriptor` is what to wait for; None: a write never blocks for long."""
        self._descriptor = descriptor
        self._write_some = write_some

    async def write(self, data: bytes) -> None:
        """Write all bytes. Raises OSError; after that, and after a cancellation, some of them may be written."""
        rest = memoryview(data)
        while rest:
            while self._descriptor is not None and not _is_writable(self._descriptor):
                await writable(self._descriptor, LOOK_AGAIN_S)
            try:
                rest = rest[self._write_some(rest) :]
            except BlockingIOError:  # another process was first
                await asyncio.sleep(0)


@contextlib.contextmanager
def printer() -> Iterator[Printer]:
    """Open standard output for writing in this way."""
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # it was replaced by an object in memory
        yield Printer(None, _write_to_object)
        return
    if not may_block(descriptor):
        yield Printer(None, lambda data: os.write(descriptor, data))
    elif stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            yield Printer(descriptor, lambda data: opened.send(data, socket.MSG_DONTWAIT))
    elif (again := _opened_again(descriptor)) is not None:
        try:
            yield Printer(again, lambda data: os.write(again, data))
        finally:
            os.close(again)
    else:
        yield Printer(descriptor, lambda data: os.write(descriptor, data[:PIECE_BYTES]))


def _write_to_object(data: memoryview) -> int:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return len(data)


def _opened_again(descriptor: int) -> int | None:
    """Open a pipe or terminal again, in non-blocking mode: other processes share the first descriptor.

    None when that is refused, as for another user's pipe, or makes another one, as for the end of a terminal's program.
    """
    if os.fstat(descriptor).st_rdev == _PTMX:
        return None
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
