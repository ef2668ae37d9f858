"""Read and write revisioned streams: one segment with conditional appends of records.

See docs/protocol/naming.md#revisioned-streams.

A revision is an offset: the end of the record that was read or written last. The mark is an attribute that holds the
offset of a record where reading may begin.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tailrace.client.hashing import REVISION_MARK
from tailrace.client.model import StreamName, owner_of
from tailrace.client.retry import Attempts, with_retries
from tailrace.client.types import NO_ATTRIBUTE
from tailrace.client.writer.append_blocks import EVENT_HEADER_BYTES
from tailrace.common import limits
from tailrace.common.errors import (
    BadEventNumberError,
    BadRequestError,
    ConnectionLostError,
    CorruptionError,
    NoSuchStreamError,
    SegmentTruncatedError,
    UnavailableError,
    WrongHostError,
)
from tailrace.common.ports import new_uuid
from tailrace.kernel import pack_events, split_events_bytes
from tailrace.wire import commands as c

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.client.connections.connection import Connection
    from tailrace.client.connections.pool import ConnectionPool
    from tailrace.client.connections.segments import SegmentClient
    from tailrace.client.context import ClientContext
    from tailrace.common.ports import Entropy

    _Make = Callable[[int], c.Command]

LANE: Final = "state"
"""Not that of event writers: the server does not read a connection whose append waits for room."""


class SegmentAccess(Protocol):
    """Access to segments: a ``ClientContext`` has it, and so has a controller."""

    @property
    def pool(self) -> ConnectionPool:
        """Return the connections."""
        ...

    @property
    def segments(self) -> SegmentClient:
        """Return the operations on segments."""
        ...

    @property
    def entropy(self) -> Entropy:
        """Return the source of random ids."""
        ...


class Entry(NamedTuple):
    """A record and the revision after it."""

    payload: bytes
    revision: int


async def open_revisioned(context: ClientContext, stream: StreamName) -> RevisionedStream:
    """Open the revisioned stream in a stream: the segment that owns key 0.0.

    Raises:
        NoSuchStreamError: the stream is missing or sealed.
    """
    segments = await context.controller.current_segments(stream)
    if not segments:
        raise NoSuchStreamError(f"stream {stream} is sealed")
    return RevisionedStream(context, stream.segment(owner_of(segments, 0.0).identifier))


class RevisionedStream:
    """Read and write one segment, one write at a time."""

    def __init__(self, context: SegmentAccess, segment: str) -> None:
        self.segment = segment
        self._context = context
        self._writer_id = new_uuid(context.entropy).bytes
        self._number = 0
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    # -- reading ------------------------------------------------------------------------------------------------

    async def latest(self) -> int:
        """Return the revision after the last record."""
        return (await self._context.segments.segment_info(self.segment)).length

    async def oldest(self) -> int:
        """Return the revision before the first record."""
        return (await self._context.segments.segment_info(self.segment)).start_offset

    async def read_from(self, revision: int, max_entries: int | None = None) -> list[Entry]:
        """Return the records after `revision` up to the present end, or the first `max_entries` of them.

        With `max_entries` requests begin small, so that little is read beyond these records.

        Raises:
            SegmentTruncatedError: `revision` lies before the start. CorruptionError: no record begins there.
        """
        info = await self._context.segments.segment_info(self.segment)
        if revision < info.start_offset:
            raise SegmentTruncatedError(self.segment, info.start_offset)
        request_bytes = limits.READER_REQUEST_BYTES if max_entries is None else limits.REVISIONED_REQUEST_BYTES
        entries: list[Entry] = []
        data = bytearray()  # that follows the last record found
        while revision + len(data) < info.length and (max_entries is None or len(entries) < max_entries):
            wanted = min(request_bytes, info.length - revision - len(data))
            read = await self._context.segments.read(self.segment, revision + len(data), wanted)
            if not read.data:
                break
            data += read.data[:wanted]  # a server returns at least 8 bytes (docs/protocol/wire.md#reads)
            entries += self._records(data, revision)
            if entries:
                del data[: entries[-1].revision - revision]
                revision = entries[-1].revision
            request_bytes = min(2 * request_bytes, limits.READER_REQUEST_BYTES)
        if data and (max_entries is None or len(entries) < max_entries):
            raise CorruptionError(f"{self.segment} at {revision}", "a record is cut off")
        return entries[:max_entries]

    def _records(self, data: bytearray, revision: int) -> list[Entry]:
        """Return the complete records of the bytes after `revision`."""
        try:
            payloads, _ = split_events_bytes(data, 0, len(data), limits.READER_GROUP_RECORD_MAX_BYTES)
        except ValueError as error:
            raise CorruptionError(f"{self.segment} after {revision}", str(error)) from error
        return _with_revisions(payloads, revision)

    # -- writing ------------------------------------------------------------------------------------------------

    async def write_conditionally(self, revision: int, payload: bytes) -> int | None:
        """Write a record if `revision` is the latest; return the new revision, or None when it is not."""
        _check_size(payload)

        def make(number: int) -> c.Command:
            return c.ConditionalAppend(self._writer_id, number, revision, payload, 0)

        if await self._write(make):
            return revision + EVENT_HEADER_BYTES + len(payload)
        return None

    async def write_unconditionally(self, payload: bytes) -> None:
        """Append a record unconditionally."""
        _check_size(payload)
        event = pack_events([payload])

        def make(number: int) -> c.Command:
            return c.AppendBlockEnd(self._writer_id, len(event), event, 1, number, 0)

        await self._write(make)

    async def _write(self, make: _Make) -> bool:
        """Append under the next number; after a lost reply the segment's attribute shows whether it was stored."""
        async with self._lock:
            self._number += 1
            number = self._number

            async def attempt(attempts: Attempts) -> bool:
                try:
                    if await self._attempt(make, number):
                        return True
                    # The first attempt may have arrived late and caused the failed condition.
                    return attempts.uncertain and (await self._set_up())[1] >= number
                except (WrongHostError, ConnectionLostError):
                    self._connection = None
                    self._context.segments.forget(self.segment)  # its container may have moved
                    attempts.uncertain = True
                    raise
                except UnavailableError:
                    attempts.uncertain = True
                    raise

            return await with_retries(attempt, self._context.entropy, limits.CLIENT_REQUEST_DEADLINE_S)

    async def _attempt(self, make: _Make, number: int) -> bool:
        connection = self._connection
        if connection is None or not connection.is_open:
            connection, stored = await self._set_up()
            if stored >= number:
                return True
        try:
            reply = await connection.request(make(number))
        except BaseException:
            self._connection = None  # the next SetupAppend returns the outcome
            raise
        match reply:
            case c.DataAppended():
                return True
            case c.ConditionalCheckFailed():
                return False
            case _:
                self._connection = None
                error = self._context.segments.refusal(self.segment, reply)
                raise ConnectionLostError(str(error)) if isinstance(error, BadEventNumberError) else error

    async def _set_up(self) -> tuple[Connection, int]:
        endpoint = await self._context.segments.locate(self.segment)
        setup = c.SetupAppend(0, self._writer_id, self.segment, await self._context.segments.token(self.segment))
        connection = await self._context.pool.get(endpoint, LANE)
        if not connection.may_set_up:
            self._context.pool.retire(endpoint, LANE, connection)
            connection = await self._context.pool.get(endpoint, LANE)
        reply = await connection.request(setup)
        if not isinstance(reply, c.AppendSetup):
            raise self._context.segments.refusal(self.segment, reply)
        self._connection = connection
        return connection, reply.last_event_number

    # -- mark and truncation ------------------------------------------------------------------------------------

    async def mark(self) -> int | None:
        """Return the revision where the marked record begins; None without a mark."""
        value = await self._context.segments.get_attribute(self.segment, REVISION_MARK)
        return None if value == NO_ATTRIBUTE else value

    async def compare_and_set_mark(self, expected: int | None, new: int) -> bool:
        """Move the mark if it has the expected value; return whether it had."""
        old = NO_ATTRIBUTE if expected is None else expected
        return await self._context.segments.update_attribute(self.segment, REVISION_MARK, new, old)

    async def truncate(self, revision: int) -> None:
        """Truncate at `revision`. A revision that is truncated already is fine."""
        try:
            await self._context.segments.truncate_segment(self.segment, revision)
        except SegmentTruncatedError as error:
            if error.start_offset < revision:
                raise


def _with_revisions(payloads: list[bytes], revision: int) -> list[Entry]:
    entries = []
    for payload in payloads:
        revision += EVENT_HEADER_BYTES + len(payload)
        entries.append(Entry(payload, revision))
    return entries


def _check_size(payload: bytes) -> None:
    if len(payload) > limits.READER_GROUP_RECORD_MAX_BYTES:
        raise BadRequestError(
            f"a record of {len(payload)} bytes is too large, at most {limits.READER_GROUP_RECORD_MAX_BYTES} are allowed"
        )
