"""Wait for pipes, sockets and terminals without holding the event loop."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable


def may_block(descriptor: int) -> bool:
    """Return whether a read or write may block: pipes, sockets and terminals."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def readable(descriptor: int) -> None:
    """Wait until a read does not block. The descriptor stays in blocking mode: other processes share it."""
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_reader, loop.remove_reader)


async def writable(descriptor: int, within_s: float) -> None:
    """Wait until a write does not block, or fails, or for that time."""
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_writer, loop.remove_writer, within_s)


async def _ready(
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
    within_s: float | None = None,
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, wake)
    try:
        await asyncio.wait([ready], timeout=within_s)
    finally:
        remove(descriptor)
