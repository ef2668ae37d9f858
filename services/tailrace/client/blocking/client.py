"""Create writers, readers and managers for programs without asyncio: each call waits for its result.

One thread runs the event loop for all objects of a `BlockingClient`. Calls may come from any thread, but only one
thread at a time may use a writer or a reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from tailrace.client.async_client import Client
from tailrace.client.blocking.manage import BlockingReaderGroupManager, BlockingStreamManager
from tailrace.client.blocking.portal import Portal, next_of
from tailrace.client.blocking.read import BlockingByteStreamReader, BlockingEventReader
from tailrace.client.blocking.shared_state import BlockingRevisionedStream, BlockingTable
from tailrace.client.blocking.write import BlockingByteStreamWriter, BlockingEventWriter, BlockingTransactionalWriter
from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from tailrace.client.config import Authorization, ClientConfig, TlsOptions
    from tailrace.client.context import ClientContext
    from tailrace.client.control.transport import ControllerTransport
    from tailrace.client.model import StreamName
    from tailrace.client.reader.batch import SegmentSlice
    from tailrace.common.stream_cut import StreamCut

T = TypeVar("T")


class BlockingClient:
    """The blocking form of `Client`. Use ``with``, or close it after all objects that it created.

    It belongs to the process that created it; a forked child creates its own.
    """

    def __init__(
        self,
        controller: str | ClientConfig | ControllerTransport,
        *,
        tls: TlsOptions | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        self._portal = Portal()
        try:
            self._client = self._portal.call(lambda: Client(controller, tls=tls, authorization=authorization))
        except BaseException:
            self._portal.close()
            raise
        self.streams = BlockingStreamManager(self._portal, self._client.streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def context(self) -> ClientContext:
        """Return what the parts of the client share, for coroutines given to `run`."""
        return self._client.context

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's event loop and return its result. Raises what it raises."""
        return self._portal.run(work)

    def close(self) -> None:
        """Close all connections and stop the thread; calls in other threads fail. A second call does nothing."""
        if not self._portal.usable:
            return
        try:
            self._portal.run(self._client.close())
        finally:
            self._portal.close()

    def writer(self, stream: str | StreamName, *, writer_id: str | None = None) -> BlockingEventWriter:
        """Return a started writer of events."""
        made = self._portal.call(lambda: self._client.writer(stream, writer_id=writer_id))
        return BlockingEventWriter(self._portal, self._portal.run(made.start()))

    def transactional_writer(
        self,
        stream: str | StreamName,
        *,
        writer_id: str | None = None,
        lease_ms: int = limits.TRANSACTION_LEASE_DEFAULT_MS,
    ) -> BlockingTransactionalWriter:
        """Return a writer of transactions."""
        made = self._portal.call(
            lambda: self._client.transactional_writer(stream, writer_id=writer_id, lease_ms=lease_ms)
        )
        return BlockingTransactionalWriter(self._portal, made)

    def reader_groups(self, scope: str) -> BlockingReaderGroupManager:
        """Return the manager of a scope's reader groups."""
        return BlockingReaderGroupManager(self._portal, self._client.reader_groups(scope))

    def reader(
        self, scope: str, group: str, reader: str, *, dead_after_s: float | None = limits.READER_DEAD_AFTER_S
    ) -> BlockingEventReader:
        """Return a reader that has joined a group."""
        made = self._portal.call(lambda: self._client.reader(scope, group, reader, dead_after_s=dead_after_s))
        return BlockingEventReader(self._portal, self._portal.run(made.start()))

    def byte_writer(self, stream: str | StreamName) -> BlockingByteStreamWriter:
        """Return a started writer of bytes."""
        made = self._portal.call(lambda: self._client.byte_writer(stream))
        return BlockingByteStreamWriter(self._portal, self._portal.run(made.start()))

    def byte_reader(self, stream: str | StreamName) -> BlockingByteStreamReader:
        """Return a started reader of bytes."""
        made = self._portal.call(lambda: self._client.byte_reader(stream))
        return BlockingByteStreamReader(self._portal, self._portal.run(made.start()))

    def table(self, scope: str, table: str) -> BlockingTable:
        """Return a started key-value table."""
        made = self._portal.call(lambda: self._client.table(scope, table))
        return BlockingTable(self._portal, self._portal.run(made.start()))

    def revisioned(self, stream: str | StreamName) -> BlockingRevisionedStream:
        """Return a revisioned stream, for state that several processes share. Raises NoSuchStreamError."""
        return BlockingRevisionedStream(self._portal, self._portal.run(self._client.revisioned(stream)))

    def slices(
        self, stream: str | StreamName, start: StreamCut | None = None, end: StreamCut | None = None
    ) -> list[SegmentSlice]:
        """Return the segment slices between two cuts, for `read_slice` in any order."""
        return self._portal.run(self._client.slices(stream, start, end))

    def read_slice(self, piece: SegmentSlice) -> Iterator[list[bytes]]:
        """Yield the events of a slice, in lists."""
        source = self._client.read_slice(piece)
        while events := self._portal.run(next_of(source)):
            yield events
            del events  # before the next ones are read
