"""An endpoint that speaks as much of S3 over HTTP as a test answers itself, for the real client of object stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from harness.streamserver import stream_server
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore


class S3Endpoint:
    """Answers one request a connection by `answer`."""

    def answer(self, verb: str, path: str, fields: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
        """Return status and body of the answer; `fields` have lower-case names and values."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ObjectStore]:
        """Serve while the context lasts, and open the bucket ``bucket`` below the prefix ``p``."""
        async with stream_server(self._reply) as server:
            yield open_object_store("s3://bucket/p", s3_endpoint=f"http://127.0.0.1:{server.address[1]}")

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
