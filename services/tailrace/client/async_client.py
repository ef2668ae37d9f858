"""Create writers, readers and managers of one cluster, for asyncio programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from tailrace.client.byte_stream import ByteStreamReader, ByteStreamWriter
from tailrace.client.context import ClientContext
from tailrace.client.group.reader_group import ReaderGroupManager
from tailrace.client.model import StreamName, name_of
from tailrace.client.reader.batch import SegmentSlice, read_slice, slices_between
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.revisioned import RevisionedStream, open_revisioned
from tailrace.client.stream_manager import StreamManager
from tailrace.client.tables import KeyValueTable
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import TransactionalWriter
from tailrace.common import limits
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from tailrace.client.config import Authorization, ClientConfig, TlsOptions
    from tailrace.client.control.transport import ControllerTransport
    from tailrace.common.ports import Clock, Entropy
    from tailrace.common.stream_cut import StreamCut


class Client:
    """A client of one cluster.

    ``controller`` is its address, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, with `tls` and `authorization` where
    needed, or a `ClientConfig`. Streams are named ``scope/stream`` or by `StreamName`. Use ``async with``, or close the
    client after all objects that it created.
    """

    def __init__(
        self,
        controller: str | ClientConfig | ControllerTransport,
        *,
        tls: TlsOptions | None = None,
        authorization: Authorization | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.context = ClientContext(controller, tls=tls, authorization=authorization, clock=clock, entropy=entropy)
        self.streams = StreamManager(self.context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.context.close()

    def writer(self, stream: str | StreamName, *, writer_id: str | None = None) -> EventWriter:
        """Return a writer of events; start it before use."""
        return EventWriter(self.context, name_of(stream), writer_id=writer_id)

    def transactional_writer(
        self,
        stream: str | StreamName,
        *,
        writer_id: str | None = None,
        lease_ms: int = limits.TRANSACTION_LEASE_DEFAULT_MS,
    ) -> TransactionalWriter:
        """Return a writer of transactions."""
        return TransactionalWriter(self.context, name_of(stream), writer_id=writer_id, lease_ms=lease_ms)

    def reader_groups(self, scope: str) -> ReaderGroupManager:
        """Return the manager of a scope's reader groups."""
        return ReaderGroupManager(self.context, scope)

    def reader(
        self, scope: str, group: str, reader: str, *, dead_after_s: float | None = limits.READER_DEAD_AFTER_S
    ) -> EventReader:
        """Return a reader of a group; start it before use."""
        return EventReader(self.context, scope, group, reader, dead_after_s=dead_after_s)

    def byte_writer(self, stream: str | StreamName) -> ByteStreamWriter:
        """Return a writer of bytes to a stream of one segment; start it before use."""
        return ByteStreamWriter(self.context, name_of(stream))

    def byte_reader(self, stream: str | StreamName) -> ByteStreamReader:
        """Return a reader of bytes of a stream of one segment; start it before use."""
        return ByteStreamReader(self.context, name_of(stream))

    def table(self, scope: str, table: str) -> KeyValueTable:
        """Return a key-value table; start it before use."""
        return KeyValueTable(self.context, scope, table)

    async def revisioned(self, stream: str | StreamName) -> RevisionedStream:
        """Return a revisioned stream, for state that several processes share. Raises NoSuchStreamError."""
        return await open_revisioned(self.context, name_of(stream))

    async def slices(
        self, stream: str | StreamName, start: StreamCut | None = None, end: StreamCut | None = None
    ) -> list[SegmentSlice]:
        """Return the segment slices between two cuts (None: the head, the present tail), for `read_slice`.

        Raises:
            NoSuchStreamError. BadRequestError: a cut is one of another stream.
        """
        for cut in (start, end):
            if cut is not None and cut.scoped_name != str(name_of(stream)):
                raise BadRequestError(f"a cut of {cut.scoped_name} is no position in {name_of(stream)}")
        first, last = (cut.positions if cut else None for cut in (start, end))
        return await slices_between(self.context, name_of(stream), first, last)

    def read_slice(self, piece: SegmentSlice) -> AsyncIterator[list[bytes]]:
        """Yield the events of a slice, in lists."""
        return read_slice(self.context, piece)
