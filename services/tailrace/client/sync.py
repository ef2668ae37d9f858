"""The client for programs without asyncio: the same operations, each of which waits for its result.

One thread runs the event loop for all objects of a `BlockingClient`; calls may come from any thread. An object (a
writer, a reader) is for one thread at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tailrace.client.asyncclient import Client
from tailrace.client.model import StreamConfig, StreamName
from tailrace.common import limits

if TYPE_CHECKING:
    import uuid

    from tailrace.client.admin import StreamInfo, StreamManager
    from tailrace.client.batch import SegmentSlice
    from tailrace.client.bytestream import ByteStreamReader, ByteStreamWriter
    from tailrace.client.groupstate.records import Checkpoint, Position, ReaderGroupConfig
    from tailrace.client.model import TransactionState
    from tailrace.client.reader import EventRead, EventReader
    from tailrace.client.readergroup import ReaderGroup, ReaderGroupManager
    from tailrace.client.routedwriter import RoutedWriter
    from tailrace.client.tables import KeyValueTable, TableKeyParts, TableValue
    from tailrace.client.transactions import Transaction, TransactionalWriter
    from tailrace.common.streamcut import StreamCut

T = TypeVar("T")


class Portal:
    """Runs coroutines on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tailrace client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result; an interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        """Stop the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingClient:
    """As `Client`. Use with ``with``, or close it after everything that it made."""

    def __init__(self, controller: str) -> None:
        self._portal = Portal()
        self._client = self._portal.call(lambda: Client(controller))
        self.streams = BlockingStreamManager(self._portal, self._client.streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and stop the thread."""
        try:
            self._portal.run(self._client.close())
        finally:
            self._portal.close()

    def writer(self, stream: str | StreamName) -> BlockingEventWriter:
        """A started writer of events."""
        made = self._portal.call(lambda: self._client.writer(stream))
        return BlockingEventWriter(self._portal, self._portal.run(made.start()))

    def transactional_writer(
        self, stream: str | StreamName, *, lease_ms: int = limits.TRANSACTION_LEASE_DEFAULT_MS
    ) -> BlockingTransactionalWriter:
        """A writer of transactions."""
        made = self._portal.call(lambda: self._client.transactional_writer(stream, lease_ms=lease_ms))
        return BlockingTransactionalWriter(self._portal, made)

    def reader_groups(self, scope: str) -> BlockingReaderGroupManager:
        """The reader groups of a scope."""
        return BlockingReaderGroupManager(self._portal, self._client.reader_groups(scope))

    def reader(self, scope: str, group: str, reader: str) -> BlockingEventReader:
        """A reader that has joined a group."""
        made = self._portal.call(lambda: self._client.reader(scope, group, reader))
        return BlockingEventReader(self._portal, self._portal.run(made.start()))

    def byte_writer(self, stream: str | StreamName) -> BlockingByteStreamWriter:
        """A started writer of bytes."""
        made = self._portal.call(lambda: self._client.byte_writer(stream))
        return BlockingByteStreamWriter(self._portal, self._portal.run(made.start()))

    def byte_reader(self, stream: str | StreamName) -> BlockingByteStreamReader:
        """A started reader of bytes."""
        made = self._portal.call(lambda: self._client.byte_reader(stream))
        return BlockingByteStreamReader(self._portal, self._portal.run(made.start()))

    def table(self, scope: str, table: str) -> BlockingTable:
        """A started key-value table."""
        made = self._portal.call(lambda: self._client.table(scope, table))
        return BlockingTable(self._portal, self._portal.run(made.start()))

    def slices(
        self, stream: str | StreamName, start: StreamCut | None = None, end: StreamCut | None = None
    ) -> list[SegmentSlice]:
        """What lies between two cuts, to be read in any order by `read_slice`."""
        return self._portal.run(self._client.slices(stream, start, end))

    def read_slice(self, piece: SegmentSlice) -> Iterator[list[bytes]]:
        """The events of a slice, in lists."""
        source = self._client.read_slice(piece)
        while (events := self._portal.run(_next_or(source, []))) != []:
            yield events


async def _next_or(source: Any, default: T) -> T:
    result: T = await anext(source, default)
    return result


class BlockingStreamManager:
    """As `StreamManager`."""

    def __init__(self, portal: Portal, manager: StreamManager) -> None:
        self._run = portal.run
        self._manager = manager

    def create_scope(self, scope: str) -> bool:
        """Create a scope; False when it exists."""
        return self._run(self._manager.create_scope(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; False when there is none."""
        return self._run(self._manager.delete_scope(scope, recursive=recursive))

    def list_scopes(self) -> list[str]:
        """All scopes."""
        return self._run(self._manager.list_scopes())

    def create_stream(self, stream: str | StreamName, config: StreamConfig | None = None) -> bool:
        """Create a stream; False when it exists."""
        return self._run(self._manager.create_stream(_name(stream), config))

    def update_stream(self, stream: str | StreamName, config: StreamConfig) -> None:
        """Replace the configuration."""
        self._run(self._manager.update_stream(_name(stream), config))

    def list_streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[StreamName]:
        """Streams of a scope."""
        return self._run(self._manager.list_streams(scope, tag=tag, internal=internal))

    def info(self, stream: str | StreamName) -> StreamInfo:
        """Configuration, active segments, head and tail."""
        return self._run(self._manager.info(_name(stream)))

    def head(self, stream: str | StreamName) -> StreamCut:
        """The cut at the first event that is left."""
        return self._run(self._manager.head(_name(stream)))

    def tail(self, stream: str | StreamName) -> StreamCut:
        """A cut after everything acknowledged before this call."""
        return self._run(self._manager.tail(_name(stream)))

    def seal_stream(self, stream: str | StreamName) -> None:
        """Seal."""
        self._run(self._manager.seal_stream(_name(stream)))

    def truncate_stream(self, stream: str | StreamName, cut: StreamCut) -> None:
        """Drop everything before a cut."""
        self._run(self._manager.truncate_stream(_name(stream), cut))

    def delete_stream(self, stream: str | StreamName) -> bool:
        """Delete a sealed stream; False when there is none."""
        return self._run(self._manager.delete_stream(_name(stream)))

    def scale_to(self, stream: str | StreamName, count: int) -> None:
        """Replace segments until there are `count` equal ones."""
        self._run(self._manager.scale_to(_name(stream), count))

    def split_segment(self, stream: str | StreamName, identifier: int, parts: int) -> None:
        """Replace a segment by equal parts."""
        self._run(self._manager.split_segment(_name(stream), identifier, parts))

    def merge_segments(self, stream: str | StreamName, identifiers: Sequence[int]) -> None:
        """Replace neighbouring segments by one."""
        self._run(self._manager.merge_segments(_name(stream), identifiers))


def _name(stream: str | StreamName) -> StreamName:
    return StreamName.parse(stream) if isinstance(stream, str) else stream


class _BlockingWrites:
    """Writes of events that wait for room, not for durability."""

    def __init__(self, portal: Portal, writer: RoutedWriter) -> None:
        self._run = portal.run
        self._routed = writer

    def write_event(self, event: bytes, routing_key: str | None = None) -> None:
        """Take an event; `flush` waits until it is durable."""
        self.write_events((event,), routing_key)

    def write_events(self, events: Sequence[bytes], routing_key: str | None = None) -> None:
        """Take events of one routing key; `flush` waits until they are durable."""

        async def work() -> None:
            await self._routed.ready()
            self._routed.write_events(events, routing_key)

        self._run(work())

    def flush(self) -> None:
        """Wait until everything taken is durable. Raises the error of an event that is not."""
        self._run(self._routed.flush())


class BlockingEventWriter(_BlockingWrites):
    """As `EventWriter`, except that writes return nothing: use `flush`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and stop."""
        self._run(self._routed.close())


class BlockingTransaction(_BlockingWrites):
    """As `Transaction`; ``with`` commits, or aborts when an exception leaves the block."""

    def __init__(self, portal: Portal, transaction: Transaction) -> None:
        super().__init__(portal, transaction)
        self._transaction = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()

    @property
    def transaction_id(self) -> uuid.UUID:
        """Id of the transaction."""
        return self._transaction.transaction_id

    def commit(self, timestamp_ms: int | None = None) -> None:
        """Decide to commit."""
        self._run(self._transaction.commit(timestamp_ms))

    def abort(self) -> None:
        """Drop the events."""
        self._run(self._transaction.abort())

    def state(self) -> TransactionState:
        """What the controller says."""
        return self._run(self._transaction.state())

    def wait_until_visible(self, deadline_s: float) -> None:
        """Wait until a committed transaction's events can be read."""
        self._run(self._transaction.wait_until_visible(deadline_s))


class BlockingTransactionalWriter:
    """As `TransactionalWriter`."""

    def __init__(self, portal: Portal, writer: TransactionalWriter) -> None:
        self._portal = portal
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> BlockingTransaction:
        """Open a transaction."""
        return BlockingTransaction(self._portal, self._portal.run(self._writer.begin()))

    def resume(self, transaction_id: uuid.UUID) -> BlockingTransaction:
        """A handle of an open transaction."""
        return BlockingTransaction(self._portal, self._portal.run(self._writer.resume(transaction_id)))

    def close(self) -> None:
        """Stop pinging."""
        self._portal.run(self._writer.close())


class BlockingReaderGroupManager:
    """As `ReaderGroupManager`."""

    def __init__(self, portal: Portal, manager: ReaderGroupManager) -> None:
        self._portal = portal
        self._manager = manager

    def create(self, group: str, config: ReaderGroupConfig) -> bool:
        """Create a group; False when it exists with the same settings."""
        return self._portal.run(self._manager.create(group, config))

    def open(self, group: str) -> BlockingReaderGroup:
        """A handle of an existing group."""
        return BlockingReaderGroup(self._portal, self._portal.run(self._manager.open(group)))

    def delete(self, group: str) -> None:
        """Delete a group."""
        self._portal.run(self._manager.delete(group))

    def list(self) -> list[str]:
        """Names of the groups of the scope."""
        return self._portal.run(self._manager.list())


class BlockingReaderGroup:
    """As `ReaderGroup`."""

    def __init__(self, portal: Portal, group: ReaderGroup) -> None:
        self._run = portal.run
        self._group = group

    def online_readers(self) -> list[str]:
        """Readers that belong to the group at present."""
        return self._run(self._group.online_readers())

    def positions(self) -> dict[str, StreamCut]:
        """How far the group has read, by stream."""
        return self._run(self._group.positions())

    def reader_offline(self, reader: str, position: Position | None = None) -> None:
        """Declare a reader dead."""
        self._run(self._group.reader_offline(reader, position))

    def checkpoint(self, name: str, *, deadline_s: float) -> Checkpoint:
        """Make a named checkpoint; readers must be reading in other threads."""
        return self._run(self._group.checkpoint(name, deadline_s=deadline_s))

    def stream_cuts(self, *, deadline_s: float) -> dict[str, StreamCut]:
        """A consistent cut; readers must be reading in other threads."""
        return self._run(self._group.stream_cuts(deadline_s=deadline_s))

    def publish_cuts(self, cuts: Mapping[StreamName, StreamCut]) -> None:
        """Tell the controller up to where the group has consumed."""
        self._run(self._group.publish_cuts(cuts))

    def reset(self, config: ReaderGroupConfig | None = None) -> None:
        """Begin anew."""
        self._run(self._group.reset(config))


class BlockingEventReader:
    """As `EventReader`."""

    def __init__(self, portal: Portal, reader: EventReader) -> None:
        self._run = portal.run
        self._reader = reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_events(self, max_events: int, timeout_ms: int) -> list[EventRead]:
        """Events of one segment, or one checkpoint; nothing when nothing came in time."""
        return self._run(self._reader.read_events(max_events, timeout_ms))

    def read_event(self, timeout_ms: int) -> EventRead | None:
        """The next event or checkpoint."""
        return self._run(self._reader.read_event(timeout_ms))

    def events(self, *, idle_ms: int) -> Iterator[EventRead]:
        """Events one after the other, until none came for `idle_ms`."""
        source = self._reader.events(idle_ms=idle_ms)
        while (item := self._run(_next_or(source, None))) is not None:
            yield item

    @property
    def position(self) -> Position:
        """What was returned so far."""
        return self._reader.position

    @property
    def end_of_data(self) -> bool:
        """Whether the whole group has read everything that it should read."""
        return self._reader.end_of_data

    def close(self) -> None:
        """Leave the group."""
        self._run(self._reader.close())


class BlockingByteStreamWriter:
    """As `ByteStreamWriter`."""

    def __init__(self, portal: Portal, writer: ByteStreamWriter) -> None:
        self._run = portal.run
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Append; `flush` waits until the bytes are durable."""
        self._run(self._writer.write(data))

    def flush(self) -> None:
        """Wait until everything written is durable."""
        self._run(self._writer.flush())

    def truncate(self, offset: int) -> None:
        """Drop the bytes before `offset`."""
        self._run(self._writer.truncate(offset))

    def seal(self) -> None:
        """Flush and seal."""
        self._run(self._writer.seal())

    def close(self) -> None:
        """Flush and stop."""
        self._run(self._writer.close())


class BlockingByteStreamReader:
    """As `ByteStreamReader`."""

    def __init__(self, portal: Portal, reader: ByteStreamReader) -> None:
        self._run = portal.run
        self._reader = reader

    def head(self) -> int:
        """Offset of the first byte that is left."""
        return self._run(self._reader.head())

    def tail(self) -> int:
        """Offset of the end."""
        return self._run(self._reader.tail())

    def seek(self, offset: int) -> None:
        """Read from `offset` next."""
        self._reader.seek(offset)

    def read(self, max_bytes: int, *, timeout_s: float | None = None) -> bytes:
        """Up to `max_bytes` bytes; waits at the end of the stream."""
        return self._run(self._reader.read(max_bytes, timeout_s=timeout_s))

    def read_exactly(self, count: int, *, timeout_s: float | None = None) -> bytes:
        """`count` bytes."""
        return self._run(self._reader.read_exactly(count, timeout_s=timeout_s))


class BlockingTable:
    """As `KeyValueTable`."""

    def __init__(self, portal: Portal, table: KeyValueTable) -> None:
        self._run = portal.run
        self._table = table

    def put(self, key: TableKeyParts, value: bytes, *, version: int | None = None) -> int:
        """Insert or update; returns the new version."""
        return self._run(self._table.put(key, value, version=version))

    def get(self, key: TableKeyParts) -> TableValue | None:
        """The entry of a key."""
        return self._run(self._table.get(key))

    def remove(self, key: TableKeyParts, *, version: int | None = None) -> None:
        """Remove."""
        self._run(self._table.remove(key, version=version))

    def entries(self, primary: bytes | None = None) -> Iterator[TableValue]:
        """Entries in order of their keys."""
        source = self._table.entries(primary)
        while (entry := self._run(_next_or(source, None))) is not None:
            yield entry
