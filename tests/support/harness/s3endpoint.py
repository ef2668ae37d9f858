"""An endpoint that speaks as much of S3 over HTTP as a test answers itself, for the real client of object stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore


class S3Endpoint:
    """Answers one request a connection by `answer`."""

    def __init__(self) -> None:
        self._connections: set[asyncio.StreamWriter] = set()

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """Return status and body of the answer; `fields` have lower-case names and values."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ObjectStore]:
        """Serve while the context lasts, and open the bucket ``bucket`` below the prefix ``p``."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield open_object_store("s3://bucket/p", s3_endpoint=f"http://127.0.0.1:{port}")
            for writer in list(self._connections):  # of requests that were given up
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            await self._reply(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has given up
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._connections.discard(writer)

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        _, *rest = head.lower().splitlines()
        fields = {name: value.strip() for name, _, value in (each.partition(":") for each in rest)}
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        verb, path = head.split(" ")[:2]
        status, answer = self.answer(verb, path, fields, body)
        length = f"content-length: {len(answer)}\r\n"
        more = 'etag: "x"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nconnection: close\r\n\r\n'
        writer.write(f"HTTP/1.1 {status}\r\n{length}{more}".encode() + (b"" if verb == "HEAD" else answer))
        await writer.drain()
