"""Write and read byte streams: streams of one segment without event headers (docs/protocol/wire.md#events)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from tailrace.client.retry import without_traceback
from tailrace.client.writer.append_blocks import Run
from tailrace.client.writer.segment_writer import SegmentWriter
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, DeadlineError, NoSuchStreamError, TailraceError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName


async def byte_segment(context: ClientContext, stream: StreamName) -> str:
    """Return the only segment of a stream. Raises NotFoundError; BadRequestError when there are several."""
    segments = await context.controller.head_segments(stream)
    if not segments:
        raise NoSuchStreamError(f"stream {stream} has no segment")
    if len(segments) > 1:
        raise BadRequestError(f"stream {stream} has {len(segments)} segments; a byte stream needs exactly one")
    return stream.segment(next(iter(segments)))


class ByteStreamWriter:
    """Append bytes, each write exactly once and in order. Writes of several writers do not mix within 1 MiB."""

    def __init__(self, context: ClientContext, stream: StreamName) -> None:
        self.stream = stream
        self._context = context
        self._segment = ""
        self._writer: SegmentWriter | None = None
        self._futures: deque[asyncio.Future[None]] = deque()
        self._error: TailraceError | None = None
        self._buffered_bytes = 0

    async def start(self) -> Self:
        """Find the stream's segment. Raises as `byte_segment`."""
        self._segment = await byte_segment(self._context, self.stream)
        self._writer = SegmentWriter(
            self._context, self._segment, 0, gone=self._gone, progress=self._progressed, pack=b"".join
        )
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abandon()

    async def write(self, data: bytes) -> None:
        """Append bytes and return when they are buffered; `flush` waits until they are durable. Waits for buffer space.

        Raises:
            SegmentSealedError, and other errors that ended the writer.
        """
        for start in range(0, len(data), limits.BYTE_STREAM_WRITE_BYTES):
            part = bytes(data[start : start + limits.BYTE_STREAM_WRITE_BYTES])
            while self._futures and (
                self._futures[0].done() or self._buffered_bytes + len(part) > limits.WRITER_BUFFERED_MAX_BYTES
            ):
                await self._first_done()
            self._add(part)

    def _add(self, part: bytes) -> None:
        if self._error is not None:
            raise without_traceback(self._error)
        if self._writer is None:
            raise BadRequestError(f"the writer of byte stream {self.stream} is not started or is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        self._buffered_bytes += len(part)
        self._writer.add(Run(0.0, 1, len(part), future), (part,))

    async def _first_done(self) -> None:
        future = self._futures[0]
        if not future.done():
            await asyncio.wait([future])
        if self._futures and self._futures[0] is future:
            self._futures.popleft()
        future.result()

    async def flush(self) -> None:
        """Wait until everything written is durable. Raises the error of a failed write."""
        while self._futures:
            await self._first_done()
        if self._error is not None:
            raise without_traceback(self._error)

    async def length(self) -> int:
        """Return the offset of the end of the stream."""
        return (await self._context.segments.segment_info(self._segment)).length

    async def truncate(self, offset: int) -> None:
        """Truncate the stream at `offset`. Raises SegmentTruncatedError when it is not within the stream."""
        await self._context.segments.truncate_segment(self._segment, offset)

    async def seal(self) -> None:
        """Flush and seal: no more bytes can be written."""
        await self.flush()
        await self._context.segments.seal_segment(self._segment)

    async def close(self) -> None:
        """Flush and stop."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            await self.flush()
        finally:
            await writer.close()

    async def abandon(self) -> None:
        """Stop at once. Bytes that are not durable yet may be stored or not."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    async def _gone(self, writer: SegmentWriter, reason: TailraceError) -> None:
        self._error = reason
        writer.fail(reason)

    def _progressed(self, size: int) -> None:
        self._buffered_bytes -= size


class ByteStreamReader:
    """Read the bytes of a stream from any offset."""

    def __init__(self, context: ClientContext, stream: StreamName) -> None:
        self.stream = stream
        self.offset = 0
        self._context = context
        self._segment = ""

    async def start(self) -> Self:
        """Find the stream's segment and go to its first byte. Raises as `byte_segment`."""
        self._segment = await byte_segment(self._context, self.stream)
        self.offset = await self.head()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        return None

    async def head(self) -> int:
        """Return the offset of the first byte."""
        return (await self._context.segments.segment_info(self._segment)).start_offset

    async def tail(self) -> int:
        """Return the offset of the end."""
        return (await self._context.segments.segment_info(self._segment)).length

    def seek(self, offset: int) -> None:
        """Continue reading at `offset`. Raises BadRequestError for a negative one."""
        if offset < 0:
            raise BadRequestError(f"offset {offset} is negative")
        self.offset = offset

    async def read(self, max_bytes: int, *, timeout_s: float | None = None) -> bytes:
        """Return up to `max_bytes` bytes. Waits at the end of the stream; returns nothing at the end of a sealed one.

        Raises:
            SegmentTruncatedError: the bytes were truncated. DeadlineError: no bytes arrived within `timeout_s`.
        """
        if max_bytes < 1:
            raise BadRequestError(f"max_bytes is {max_bytes}, at least 1 is required")
        found = await self._context.segments.read(self._segment, self.offset, max_bytes, timeout_s=timeout_s)
        data = found.data[:max_bytes]
        self.offset += len(data)
        return data

    async def read_exactly(self, count: int, *, timeout_s: float | None = None) -> bytes:
        """Return `count` bytes, fewer only at the end of a sealed stream. A failed or cancelled call consumes none.

        Raises the errors of `read`.
        """
        parts: list[bytes] = []
        left = count
        begun_at = self.offset
        try:
            async with asyncio.timeout(timeout_s):
                while left and (part := await self.read(min(left, limits.READ_REPLY_MAX_BYTES))):
                    parts.append(part)
                    left -= len(part)
        except BaseException as error:
            self.offset = begun_at
            if isinstance(error, TimeoutError):
                raise DeadlineError(f"{count} bytes did not arrive within {timeout_s:g} s") from error
            raise
        return b"".join(parts)
