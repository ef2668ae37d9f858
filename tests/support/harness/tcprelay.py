"""A TCP relay in front of a server, which can lose all packets for a while, as a network that is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from harness.streamserver import stream_server

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
        """Serve one connection; it ends when one side or the context ends it."""
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


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A relay to the server at a URL; its own URL is ``endpoint``."""
    made = Relay(target)
    async with stream_server(made.serve) as server:
        made.endpoint = f"http://127.0.0.1:{server.address[1]}"
        yield made
