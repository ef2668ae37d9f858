"""A tiny segment store that speaks hand-made frames, so that clients meet exactly the failures that a test wants."""

from __future__ import annotations

import asyncio
import ssl
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from harness.localtransport import LocalTransport
from harness.streamserver import StreamServer
from tailrace.client.connections.pool import ConnectionPool
from tailrace.client.context import ClientContext
from tailrace.client.types import Endpoint
from tailrace.common import limits, names
from tailrace.common.errors import NotFoundError
from tailrace.kernel import split_events_bytes
from tailrace.rpc import controller_pb2 as pb
from tailrace.wire import commands as c
from tailrace.wire.codec import decode, encode

UNSET = -(2**63)


class Cut(Exception):
    """Raised by a rule: the connection ends here without an answer."""


@dataclass
class Segment:
    """Bytes, writers' event numbers and whether it is sealed."""

    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    attributes: dict[bytes, int] = field(default_factory=dict)


Rule = Callable[[c.Command], "list[c.Command] | None"]


class TinyStore:
    """Segments in memory. ``rules`` see every command first: a list answers it, None passes on, Cut disconnects.

    ``after`` rules run when a command had its effect, before the answer leaves. ``reads``: the unanswered reads of each
    connection, which ends above the server's bound.
    """

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.rules: list[Rule] = []
        self.after: list[Rule] = []
        self.seen: list[c.Command] = []
        self.connections = 0
        self.merged: dict[str, str] = {}
        self.grown = asyncio.Condition()
        self._server = StreamServer(self._serve)
        self._polls: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.reads: Counter[asyncio.StreamWriter] = Counter()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        await self._server.start(ssl=tls)

    async def stop(self) -> None:
        await self._server.close()
        for task in list(self._polls):
            task.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(*self._server.address)

    @property
    def open_connections(self) -> int:
        """Those that neither side has ended."""
        return sum(not writer.is_closing() for writer in self._server.connections)

    def create(self, name: str, data: bytes = b"") -> Segment:
        """A segment that holds `data`."""
        segment = self.segments[name] = Segment(bytearray(data))
        return segment

    def cut(self, kind: type[c.Command], *, times: int = 1, after: bool = False) -> None:
        """End the connection at the next commands of a kind, before or after they have their effect."""
        left = times

        def rule(command: c.Command) -> None:
            nonlocal left
            if isinstance(command, kind) and left > 0:
                left -= 1
                raise Cut

        (self.after if after else self.rules).append(rule)

    def answer(self, kind: type[c.Command], make: Callable[[int], c.Command], *, times: int = 1) -> None:
        """Answer the next commands of a kind with a reply made from the request id."""
        left = times

        def rule(command: c.Command) -> list[c.Command] | None:
            nonlocal left
            if not isinstance(command, kind) or left == 0:
                return None
            left -= 1
            return [make(getattr(command, "request_id", -1))]

        self.rules.append(rule)

    def send(self, data: bytes) -> None:
        """Write to the newest connection."""
        self._server.connections[-1].write(data)

    def drop_all(self) -> None:
        """End every connection."""
        self._server.cut_connections()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writers: dict[bytes, str] = {}
        try:
            while True:
                code, length = struct.unpack(">ii", await reader.readexactly(8))
                command = decode(code, await reader.readexactly(length))
                self.seen.append(command)
                for reply in await self._answer(command, writers, writer):
                    writer.write(encode(reply))
        except Cut:
            writer.transport.abort()  # without what is written
        finally:
            for task in [task for task, owner in self._polls.items() if owner is writer]:
                task.cancel()

    async def _answer(
        self, command: c.Command, writers: dict[bytes, str], writer: asyncio.StreamWriter
    ) -> list[c.Command]:
        for rule in list(self.rules):
            replies = rule(command)
            if replies is not None:
                return replies
        if isinstance(command, c.ReadSegment):
            if self.reads[writer] >= limits.REQUESTS_PER_CONNECTION_MAX:
                raise Cut
            task = asyncio.create_task(self._poll(command, writer))
            self._polls[task] = writer
            self.reads[writer] += 1

            def done(task: asyncio.Task[None]) -> None:
                del self._polls[task]
                self.reads[writer] -= 1

            task.add_done_callback(done)
            return []
        replies = self._apply(command, writers)
        async with self.grown:
            self.grown.notify_all()
        for rule in list(self.after):
            rule(command)
        return replies

    async def _poll(self, command: c.ReadSegment, writer: asyncio.StreamWriter) -> None:
        segment = self.segments.get(command.segment)
        if segment is None:
            writer.write(encode(c.NoSuchSegment(command.request_id, command.segment, "", command.offset)))
            return
        if command.offset < segment.start:
            reply = c.SegmentIsTruncated(command.request_id, command.segment, segment.start, "", command.offset)
            writer.write(encode(reply))
            return
        async with self.grown:
            await self.grown.wait_for(lambda: segment.sealed or len(segment.data) > command.offset)
        data = bytes(segment.data[command.offset : command.offset + command.suggested_length])
        end = command.offset + len(data) == len(segment.data)
        read = c.SegmentRead(command.segment, command.offset, end, end and segment.sealed, data, command.request_id)
        writer.write(encode(read))

    def _apply(self, command: c.Command, writers: dict[bytes, str]) -> list[c.Command]:
        match command:
            case c.Hello():
                return [c.Hello(16, 5)]
            case c.KeepAlive():
                return [c.KeepAlive()]
            case c.CreateSegment():
                if command.segment in self.segments:
                    return [c.SegmentAlreadyExists(command.request_id, command.segment, "")]
                self.segments[command.segment] = Segment()
                return [c.SegmentCreated(command.request_id, command.segment)]
            case c.SetupAppend():
                if command.segment not in self.segments:
                    return [c.NoSuchSegment(command.request_id, command.segment)]
                writers[command.writer_id] = command.segment
                last = self.segments[command.segment].attributes.get(command.writer_id, UNSET)
                return [c.AppendSetup(command.request_id, command.segment, command.writer_id, last)]
            case c.AppendBlockEnd():
                return self._append(command, writers[command.writer_id])
            case c.ConditionalAppend():
                event = struct.pack(">ii", 0, len(command.data)) + bytes(command.data)
                return self._conditional(command, writers[command.writer_id], event)
            case c.ConditionalBlockEnd():
                return self._conditional(command, writers[command.writer_id], bytes(command.data))
            case _:
                return self._apply_plain(command)

    def _append(self, command: c.AppendBlockEnd, name: str) -> list[c.Command]:
        segment = self.segments.get(name)
        if segment is None:
            return [c.NoSuchSegment(command.request_id, name)]
        if segment.sealed:
            return [c.SegmentIsSealed(command.request_id, name, "", command.last_event_number)]
        previous = segment.attributes.get(command.writer_id, UNSET)
        if command.last_event_number > previous:
            segment.data += command.data
            segment.attributes[command.writer_id] = command.last_event_number
        number = segment.attributes[command.writer_id]
        return [c.DataAppended(command.writer_id, number, previous, command.request_id, len(segment.data))]

    def _conditional(
        self, command: c.ConditionalAppend | c.ConditionalBlockEnd, name: str, data: bytes
    ) -> list[c.Command]:
        segment = self.segments[name]
        if segment.sealed:
            return [c.SegmentIsSealed(command.request_id, name)]
        if command.expected_offset != len(segment.data):
            return [c.ConditionalCheckFailed(command.writer_id, command.event_number, command.request_id)]
        previous = segment.attributes.get(command.writer_id, UNSET)
        segment.data += data
        segment.attributes[command.writer_id] = command.event_number
        return [
            c.DataAppended(command.writer_id, command.event_number, previous, command.request_id, len(segment.data))
        ]

    def _apply_plain(self, command: c.Command) -> list[c.Command]:
        request_id: int = getattr(command, "request_id", -1)
        name: str = getattr(command, "segment", "")
        if isinstance(command, c.CreateTransientSegment):
            name = f"{command.parent_segment}#transient.{command.writer_id.hex()}.{len(self.segments):032x}"
            self.segments[name] = Segment()
            return [c.SegmentCreated(request_id, name)]
        if isinstance(command, c.MergeSegments):
            target = self.segments[command.target]
            if command.source in self.segments and target.sealed:
                return [c.SegmentIsSealed(request_id, command.target)]
            if command.source in self.segments:
                target.data += self.segments.pop(command.source).data
                self.merged[command.source] = command.target
            elif self.merged.get(command.source) != command.target:
                return [c.NoSuchSegment(request_id, command.source)]
            return [c.SegmentsMerged(request_id, command.target, command.source, len(target.data))]
        segment = self.segments.get(name)
        if segment is None:
            return [c.NoSuchSegment(request_id, name)]
        match command:
            case c.GetStreamSegmentInfo():
                length = len(segment.data)
                return [c.StreamSegmentInfo(request_id, name, True, segment.sealed, False, 1, length, segment.start)]
            case c.SealSegment():
                if segment.sealed:
                    return [c.SegmentIsSealed(request_id, name)]
                segment.sealed = True
                return [c.SegmentSealed(request_id, name)]
            case c.TruncateSegment():
                segment.start = command.truncation_offset
                return [c.SegmentTruncated(request_id, name)]
            case c.DeleteSegment():
                del self.segments[name]
                return [c.SegmentDeleted(request_id, name)]
            case c.GetSegmentAttribute():
                return [c.SegmentAttribute(request_id, segment.attributes.get(command.attribute_id, UNSET))]
            case c.UpdateSegmentAttribute():
                equal = segment.attributes.get(command.attribute_id, UNSET) == command.expected_value
                if equal:
                    segment.attributes[command.attribute_id] = command.new_value
                return [c.SegmentAttributeUpdated(request_id, equal)]
        return [c.OperationUnsupported(request_id, type(command).__name__)]


@pytest.fixture
async def store() -> AsyncIterator[TinyStore]:
    """A tiny store that listens."""
    store = TinyStore()
    await store.start()
    yield store
    await store.stop()


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    """A connection pool that is closed at the end."""
    pool = ConnectionPool()
    yield pool
    await pool.close()


class TinyController:
    """Answers the calls of writers and readers from a table of epochs."""

    def __init__(self, store: TinyStore) -> None:
        self.store = store
        self.active: list[pb.SegmentRange] = []
        self.epochs: list[list[pb.SegmentRange]] = []
        self.following: dict[int, list[pb.SuccessorResponse.SegmentEntry]] = {}
        self.heads: dict[int, int] = {}
        self.calls: list[tuple[str, object]] = []
        self.transactions = 0
        self.transaction_state = pb.TxnState.OPEN
        self.groups: dict[str, pb.ReaderGroupConfiguration] = {}
        self.answers: dict[str, Callable[[object], object]] = {}
        self.stream = pb.StreamInfo(scope="s", stream="t")

    def segment(self, identifier: int, low: float, high: float, *, create: bool = True) -> pb.SegmentRange:
        """A segment's message; creates the segment in the store."""
        if create:
            self.store.create(names.qualified_segment_name("s", "t", identifier))
        return pb.SegmentRange(
            segmentId=pb.SegmentId(streamInfo=self.stream, segmentId=identifier), minKey=low, maxKey=high
        )

    def begin(self, *segments: tuple[int, float, float]) -> None:
        """The first epoch."""
        self.active = [self.segment(*segment) for segment in segments]
        self.epochs = [self.active]
        self.heads = {segment[0]: 0 for segment in segments}

    def scale(self, sealed: list[int], *segments: tuple[int, float, float]) -> None:
        """Replace active segments: successors are known before the old ones are sealed."""
        fresh = [self.segment(*segment) for segment in segments]
        old = [segment for segment in self.active if segment.segmentId.segmentId in sealed]
        self.active = [segment for segment in self.active if segment not in old] + fresh
        self.epochs.append(self.active)
        for segment in old:
            self.following[segment.segmentId.segmentId] = [
                pb.SuccessorResponse.SegmentEntry(
                    segment=new,
                    value=[
                        other.segmentId.segmentId
                        for other in old
                        if other.minKey < new.maxKey and new.minKey < other.maxKey
                    ],
                )
                for new in fresh
                if segment.minKey < new.maxKey and new.minKey < segment.maxKey
            ]
        for segment in old:
            self.store.segments[names.qualified_segment_name("s", "t", segment.segmentId.segmentId)].sealed = True

    async def handle(self, method: str, request: object) -> object:
        self.calls.append((method, request))
        if method in self.answers:
            return self.answers[method](request)
        match method:
            case "getURI":
                return pb.NodeUri(endpoint=self.store.endpoint.host, port=self.store.endpoint.port)
            case "getCurrentSegments":
                assert isinstance(request, pb.StreamInfo)
                if request.stream.startswith("_RG"):
                    if request.stream.removeprefix("_RG") not in self.groups:
                        raise NotFoundError(f"stream {request.stream} does not exist")
                    only = pb.SegmentRange(segmentId=pb.SegmentId(streamInfo=request), minKey=0.0, maxKey=1.0)
                    return pb.SegmentRanges(segmentRanges=[only])
                return pb.SegmentRanges(segmentRanges=self.active)
            case "getSegmentsImmediatelyFollowing":
                assert isinstance(request, pb.SegmentId)
                return pb.SuccessorResponse(segments=self.following.get(request.segmentId, []))
            case "getSegments":
                locations = [
                    pb.SegmentsAtTime.SegmentLocation(
                        segmentId=pb.SegmentId(streamInfo=self.stream, segmentId=identifier), offset=offset
                    )
                    for identifier, offset in self.heads.items()
                ]
                return pb.SegmentsAtTime(segments=locations)
            case "createReaderGroup":
                assert isinstance(request, pb.ReaderGroupConfiguration)
                stored = self.groups.setdefault(request.readerGroupName, request)
                self.store.segments.setdefault(f"s/_RG{request.readerGroupName}/0.#epoch.0", Segment())
                return pb.CreateReaderGroupResponse(config=stored)
            case "getReaderGroupConfig":
                assert isinstance(request, pb.ReaderGroupInfo)
                if request.readerGroup not in self.groups:
                    return pb.ReaderGroupConfigResponse(status=pb.ReaderGroupConfigResponse.RG_NOT_FOUND)
                return pb.ReaderGroupConfigResponse(config=self.groups[request.readerGroup])
            case "updateReaderGroup":
                assert isinstance(request, pb.ReaderGroupConfiguration)
                stored = self.groups[request.readerGroupName]
                if request.generation != stored.generation:
                    return pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.INVALID_CONFIG)
                stored.CopyFrom(request)
                stored.generation += 1
                return pb.UpdateReaderGroupResponse(generation=stored.generation)
            case "deleteReaderGroup":
                assert isinstance(request, pb.ReaderGroupInfo)
                del self.groups[request.readerGroup]
                self.store.segments.pop(f"s/_RG{request.readerGroup}/0.#epoch.0", None)
                return pb.DeleteReaderGroupStatus()
            case "createTransaction":
                self.transactions += 1
                identifier = uuid.UUID(int=self.transactions)
                for segment in self.active:
                    name = names.qualified_segment_name("s", "t", segment.segmentId.segmentId)
                    self.store.create(names.transaction_segment_name(name, identifier))
                return pb.CreateTxnResponse(txnId=pb.TxnId(lowBits=self.transactions), activeSegments=self.active)
            case "getEpochSegments":
                assert isinstance(request, pb.GetEpochSegmentsRequest)
                if request.epoch >= len(self.epochs):
                    raise NotFoundError(f"there is no epoch {request.epoch}")
                return pb.SegmentRanges(segmentRanges=self.epochs[request.epoch])
            case "pingTransaction":
                return pb.PingTxnStatus()
            case "commitTransaction" | "abortTransaction":
                return pb.TxnStatus()
            case "checkTransactionState":
                return pb.TxnState(state=self.transaction_state)
            case "getSegmentsBetween":
                ids = [pb.SegmentId(segmentId=segment.segmentId.segmentId) for segment in self.active]
                return pb.StreamCutRangeResponse(segments=ids)
            case "getStreamConfiguration":
                return pb.StreamConfig(scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
            case "removeWriter":
                return pb.RemoveWriterResponse()
            case "noteTimestampFromWriter":
                return pb.TimestampResponse()
            case "updateSubscriberStreamCut":
                return pb.UpdateSubscriberStatus()
        raise AssertionError(f"no answer to {method}")


@pytest.fixture
def controller(store: TinyStore) -> TinyController:
    """A controller whose segments the tiny store serves."""
    return TinyController(store)


@pytest.fixture
async def context(controller: TinyController) -> AsyncIterator[ClientContext]:
    """A client of the tiny controller and the tiny store."""
    context = ClientContext(LocalTransport(controller.handle))
    yield context
    await context.close()


def events_in(data: bytes | bytearray) -> list[bytes]:
    """The events that stand in a segment."""
    events, end = split_events_bytes(data, 0, len(data))
    assert end == len(data)
    return events


@pytest.fixture
def cut() -> Exception:
    """What a rule raises to end the connection without an answer."""
    return Cut()


@pytest.fixture
def split() -> Callable[[bytes | bytearray], list[bytes]]:
    """`events_in`, for tests."""
    return events_in
