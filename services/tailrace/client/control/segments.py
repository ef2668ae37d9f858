"""Calls about a stream's segments: list, successors, locations, scaling.

See docs/protocol/controller.md#segments-and-stream-cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING

from tailrace.client.control.caller import (
    Caller,
    cut_message,
    segment_id,
    segment_range,
    segment_ranges,
    stream_info,
)
from tailrace.client.model import Cut, ScaleStarted, SegmentRange, StreamName, Successor
from tailrace.client.retry import Backoff
from tailrace.client.types import Endpoint
from tailrace.common import limits, names
from tailrace.common.errors import (
    ClientClosedError,
    DeadlineError,
    IllegalStateError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.client.control.transport import ControllerTransport
    from tailrace.common.ports import Entropy
    from tailrace.common.ranges import KeyRange


class SegmentCalls(Caller):
    """Calls on segments. Missing streams raise NotFoundError."""

    def __init__(
        self,
        transport: ControllerTransport,
        *,
        entropy: Entropy | None = None,
        deadline_s: float = limits.CLIENT_CONTROLLER_CALL_DEADLINE_S,
    ) -> None:
        super().__init__(transport, entropy=entropy, deadline_s=deadline_s)
        self._endpoints: OrderedDict[str, tuple[float, Endpoint]] = OrderedDict()

    async def current_segments(self, stream: StreamName) -> list[SegmentRange]:
        """Return the active segments, sorted by key range; none when the stream is sealed."""
        reply = await self._call("getCurrentSegments", stream_info(stream), pb.SegmentRanges)
        return segment_ranges(reply.segmentRanges)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> list[SegmentRange]:
        """Return the segments of an epoch, sorted by key range."""
        request = pb.GetEpochSegmentsRequest(streamInfo=stream_info(stream), epoch=epoch)
        return segment_ranges((await self._call("getEpochSegments", request, pb.SegmentRanges)).segmentRanges)

    async def head_segments(self, stream: StreamName) -> dict[int, int]:
        """Return the segments at the head of the stream with their start offsets."""
        request = pb.GetSegmentsRequest(streamInfo=stream_info(stream), timestamp=0)
        reply = await self._call("getSegments", request, pb.SegmentsAtTime)
        return {location.segmentId.segmentId: location.offset for location in reply.segments}

    async def successors(self, stream: StreamName, identifier: int) -> list[Successor]:
        """Return the successors of a sealed segment; none for an active segment or at the stream's end."""
        reply = await self._call(
            "getSegmentsImmediatelyFollowing", segment_id(stream, identifier), pb.SuccessorResponse
        )
        found = [Successor(segment_range(entry.segment), tuple(entry.value)) for entry in reply.segments]
        return sorted(found, key=lambda successor: successor.segment.key_range)

    async def segments_between(self, stream: StreamName, start: Cut | None, end: Cut | None) -> list[int]:
        """Return the ids of the segments from one cut to another; None is the head and the tail."""
        if not start and not end:
            start = await self.head_segments(stream)  # the call allows one unbounded side only
        request = pb.StreamCutRange(streamInfo=stream_info(stream))
        getattr(request, "from").update(start or {})
        request.to.update(end or {})
        reply = await self._call("getSegmentsBetween", request, pb.StreamCutRangeResponse)
        return [segment.segmentId for segment in reply.segments]

    async def is_cut_valid(self, stream: StreamName, cut: Cut) -> bool:
        """Return whether the cut covers the key space with segments of the stream."""
        reply = await self._call("isStreamCutValid", cut_message(stream, cut), pb.StreamCutValidityResponse)
        return reply.response

    # -- locations of segments ------------------------------------------------------------------------------

    async def locate(self, segment: str) -> Endpoint:
        """Return the endpoint of a segment, cached until `forget` or CLIENT_ENDPOINT_TTL_S.

        Raises:
            InvalidNameError. UnavailableError: also for INTERNAL, which only a failing controller returns here.
        """
        key = names.container_key(segment)
        now_s = asyncio.get_running_loop().time()
        known = self._endpoints.get(key)
        if known is not None and known[0] > now_s:
            return known[1]
        name = names.parse_segment_name(segment)
        request = segment_id(StreamName(name.scope, name.stream), name.identifier)
        with _internal_is_trouble(f"the location of {segment}"):
            reply = await self._call("getURI", request, pb.NodeUri)
        endpoint = Endpoint(reply.endpoint, reply.port)
        self._endpoints[key] = (now_s + limits.CLIENT_ENDPOINT_TTL_S, endpoint)
        if len(self._endpoints) > limits.CLIENT_ENDPOINTS_CACHED_MAX:
            self._endpoints.popitem(last=False)
        return endpoint

    def forget(self, segment: str) -> None:
        """Drop the cached endpoint of a segment."""
        self._endpoints.pop(names.container_key(segment), None)

    async def delegation_token(self, stream: StreamName) -> str:
        """Return the token for the segments of a stream; empty when the server requires none.

        Raises:
            NoSuchStreamError. UnavailableError: also for INTERNAL, which only a failing controller returns here.
        """
        with _internal_is_trouble(f"the token of {stream}"):
            reply = await self._call("getDelegationToken", stream_info(stream), pb.DelegationToken)
        return reply.delegationToken

    async def controllers(self) -> list[Endpoint]:
        """Return the addresses of the running controllers."""
        reply = await self._call("getControllerServerList", pb.ServerRequest(), pb.ServerResponse)
        return [Endpoint(node.endpoint, node.port) for node in reply.nodeURI]

    # -- scaling ------------------------------------------------------------------------------------------------

    async def start_scale(self, stream: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange]) -> ScaleStarted:
        """Begin to replace segments by new ones with the given ranges.

        Raises:
            WriteConflictError: a segment is not active, or fewer segments than the minimum remain.
            IllegalStateError: another scale runs, the stream is sealed, or the ranges do not match.
        """
        entries = [pb.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges]
        request = pb.ScaleRequest(streamInfo=stream_info(stream), sealedSegments=sealed, newKeyRanges=entries)
        reply, unsure = await self._call_unsure("scale", request, pb.ScaleResponse)
        if unsure and reply.status != pb.ScaleResponse.STARTED:
            started = await self._scaled_already(stream, sealed, ranges)
            if started is not None:
                return started
        if reply.status == pb.ScaleResponse.PRECONDITION_FAILED:
            raise WriteConflictError(
                f"stream {stream}: a segment to seal is not active, or the scale leaves fewer segments than the minimum"
            )
        if reply.status != pb.ScaleResponse.STARTED:
            raise IllegalStateError(
                f"stream {stream} was not scaled: another change is running, it is sealed, or the ranges do not match"
            )
        return ScaleStarted(reply.epoch, segment_ranges(reply.segments))

    async def _scaled_already(
        self, stream: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange]
    ) -> ScaleStarted | None:
        """Return the scale that an attempt with a lost reply began, if the stream has the requested ranges.

        The controller shows the new segments before the scale is complete, but not at once, so wait a short time.
        """
        backoff = Backoff(self._entropy)
        ends_at_s = asyncio.get_running_loop().time() + limits.CLIENT_REPLY_DEADLINE_S
        while asyncio.get_running_loop().time() < ends_at_s:
            active = await self.current_segments(stream)
            fresh = [segment for segment in active if segment.key_range in ranges and segment.identifier not in sealed]
            if len(fresh) == len(ranges) and all(segment.identifier not in sealed for segment in active):
                return ScaleStarted(max(names.segment_epoch(segment.identifier) for segment in fresh) - 1, fresh)
            if not all(any(segment.identifier == one for segment in active) for one in sealed):
                return None  # another client replaced some of them
            await asyncio.sleep(backoff.next_delay_s())
        return None

    async def scale_is_done(self, stream: StreamName, epoch: int) -> bool:
        """Return whether the scale that ended `epoch` is complete. Raises IllegalStateError for an unknown epoch."""
        request = pb.ScaleStatusRequest(streamInfo=stream_info(stream), epoch=epoch)
        reply = await self._call("checkScale", request, pb.ScaleStatusResponse)
        if reply.status in (pb.ScaleStatusResponse.IN_PROGRESS, pb.ScaleStatusResponse.SUCCESS):
            return reply.status == pb.ScaleStatusResponse.SUCCESS
        name = pb.ScaleStatusResponse.ScaleStatus.Name(reply.status)
        raise IllegalStateError(f"stream {stream}: checkScale of epoch {epoch} returned {name}")

    async def scale(
        self, stream: StreamName, sealed: Sequence[int], ranges: Sequence[KeyRange], *, deadline_s: float
    ) -> list[SegmentRange]:
        """Scale, wait until it is complete and return the new segments. Raises as `start_scale`, and DeadlineError."""
        started = await self.start_scale(stream, sealed, ranges)
        ends_at_s = asyncio.get_running_loop().time() + deadline_s
        backoff = Backoff(self._entropy, maximum_s=1.0)
        while not await self.scale_is_done(stream, started.epoch):
            if asyncio.get_running_loop().time() > ends_at_s:
                raise DeadlineError(f"scaling of {stream} is not complete after {deadline_s:g} s; it continues")
            await asyncio.sleep(backoff.next_delay_s())
        return list(started.segments)


@contextlib.contextmanager
def _internal_is_trouble(what: str) -> Iterator[None]:
    """Raise UnavailableError in place of an IllegalStateError of a call that has no such answer."""
    try:
        yield
    except ClientClosedError:
        raise
    except IllegalStateError as error:
        raise UnavailableError(f"the controller did not return {what}: {error}") from error
