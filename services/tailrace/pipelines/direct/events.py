"""Events of a segment from Tier 2, in batches that become Arrow arrays without a copy in Python.

See docs/spark-direct.md#batches, docs/protocol/wire.md#append-commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import CorruptionError
from tailrace.common.real_ports import SystemEntropy
from tailrace.kernel import gather_events
from tailrace.pipelines.direct.paced_reads import PacedReads
from tailrace.pipelines.direct.segment_range import SegmentRange, TierTwo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.references import SegmentReferences
    from tailrace.pipelines.direct.store_location import StoreLocation

_HEADER: Final = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events, one after the other.

    ``payloads`` are their bytes. ``ends`` are ``count`` + 1 native int32: 0, then where each ends in ``payloads``: the
    offsets of an Arrow binary array. ``offsets`` are ``count`` native int64: where each begins in the segment.

    Its text is without the bytes: `asyncio.Runner.run` makes the text of each result (of its task, for a signal
    handler), and that of a MiB takes ten times as long as to read it.
    """

    count: int
    payloads: bytes = field(repr=False)
    ends: bytes = field(repr=False)
    offsets: bytes = field(repr=False)

    def events(self) -> list[bytes]:
        """Return the events one by one: for tests and small results."""
        ends = memoryview(self.ends).cast("i")
        return [self.payloads[ends[index] : ends[index + 1]] for index in range(self.count)]


class EventFrames:
    """Cuts bytes of a segment, which arrive in pieces of any length, into batches of whole events. Pure.

    ``offset`` is where the next event begins; events that begin at ``stop`` or later are not returned.
    """

    def __init__(self, segment: str, offset: int, stop: int) -> None:
        self.offset = offset
        self._segment = segment
        self._stop = stop
        self._parts: list[bytes | memoryview] = []
        self._have = 0
        self._need = _HEADER.size

    @property
    def wanted_to(self) -> int:
        """Return up to which offset bytes are needed for the next event; its header first, then all of it."""
        return self.offset + self._need

    def add(self, blocks: list[memoryview]) -> EventBatch | None:
        """Take the next bytes; return the events that are complete now, None without any.

        Raises:
            CorruptionError: no event begins where one should; the text names segment and offset.
        """
        self._parts += blocks
        self._have += sum(map(len, blocks))
        if self._have < self._need or self.offset >= self._stop:
            return None
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        begin = self.offset
        try:
            payloads, ends, offsets, position = gather_events(
                data, 0, len(data), self._stop - begin, begin, limits.WRITER_EVENT_MAX_BYTES
            )
            self._keep(memoryview(data)[position:], begin + position)
        except ValueError as error:
            raise CorruptionError(f"segment {self._segment} from offset {begin}", str(error)) from error
        return EventBatch(len(offsets) // 8, payloads, ends, offsets) if offsets else None

    def _keep(self, rest: memoryview, offset: int) -> None:
        """Keep the bytes of an event that is not complete. Raises ValueError: its header is no event's."""
        self.offset, self._have, self._need = offset, len(rest), _HEADER.size
        if offset >= self._stop:
            rest, self._have = rest[:0], 0
        self._parts = [bytes(rest)] if rest else []  # a copy: the view would keep the whole buffer
        if len(rest) >= _HEADER.size:
            self._need += _HEADER.unpack_from(rest)[1]  # not negative: the events before it were looked for up to here


class DirectEvents:
    """The events of a segment that begin in [start, stop), read from Tier 2.

    When `batches` ends, ``offset`` is where the next event begins. Below ``stop`` it is the first event that Tier 2
    does not have whole, by the references that were given: the caller reads on from the segment store.
    """

    def __init__(self, tier2: TierTwo, references: SegmentReferences, start: int, stop: int) -> None:
        references.split(start, stop)  # refuses a start that is truncated
        self._range = SegmentRange(tier2, references)
        self._frames = EventFrames(references.segment, start, stop)
        self._covered = references.length
        self._stop = stop

    @property
    def offset(self) -> int:
        """Return where the next event begins."""
        return self._frames.offset

    @property
    def rereads(self) -> int:
        """Return how often references were read again because an object was gone."""
        return self._range.rereads

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """Yield the events. Raises as `SegmentRange.pieces`, and CorruptionError where no event begins."""
        frames, position = self._frames, self._frames.offset
        goal = min(self._stop, self._covered)
        while position < goal:
            async with contextlib.aclosing(self._range.pieces(position, goal)) as pieces:
                async for blocks in pieces:
                    position += sum(map(len, blocks))
                    batch = frames.add(blocks)
                    if batch is not None:
                        yield batch
            if frames.offset >= self._stop or frames.wanted_to > self._covered:
                return
            goal = frames.wanted_to  # the rest of an event that begins before `stop`


class BlockingEvents:
    """`DirectEvents` without asyncio, for an executor's task: iterate over it, then look at ``offset``."""

    def __init__(
        self, location: StoreLocation, identity: ClusterIdentity, references: SegmentReferences, start: int, stop: int
    ) -> None:
        self.offset = start
        """Where the next event begins."""
        self._location = location
        self._identity = identity
        self._references = references
        self._stop = stop

    def __iter__(self) -> Iterator[EventBatch]:
        """Yield the events from ``offset`` on. Raises as `DirectEvents.batches`, and StartError."""
        with asyncio.Runner() as runner:
            store = PacedReads(self._location.open(), SystemEntropy())
            tier2 = TierTwo(store, uuid.UUID(self._identity.cluster_id), self._identity.containers)
            events = DirectEvents(tier2, self._references, self.offset, self._stop)
            batches = events.batches()
            try:
                while (batch := runner.run(_next(batches))) is not None:
                    self.offset = events.offset
                    yield batch
                self.offset = events.offset
            finally:
                runner.run(batches.aclose())
                runner.run(store.close())


async def _next(batches: AsyncGenerator[EventBatch, None]) -> EventBatch | None:
    return await anext(batches, None)
