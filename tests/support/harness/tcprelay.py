"""A TCP relay in front of a server, which can lose all packets for a while, as a network that is cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

PIECE_BYTES = 1 << 16


class Relay:
    """Passes bytes between clients and one server; while it is cut nothing passes, and no connection ends."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.endpoint = ""

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self._passes.clear()

    def heal(self) -> None:
        """Let bytes pass again; connections from before the cut end."""
        for writer in self._writers:
            writer.transport.abort()
        self._passes.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self._writers.add(writer)
        try:
            await self._passes.wait()
            back, there = await asyncio.open_connection(*self._target)
            self._writers.add(there)
            try:
                await asyncio.gather(self._pass(reader, there), self._pass(back, writer))
            finally:
                self._writers.discard(there)
                there.transport.abort()
        except OSError:
            return  # one of the two ended the connection
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._passes.wait()
            writer.write(piece)
            await writer.drain()
        writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to serve a connection."""
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A relay to the server at a URL; its own URL is ``endpoint``."""
    made = Relay(target)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 10.0)
