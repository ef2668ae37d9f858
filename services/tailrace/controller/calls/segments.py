"""Calls about segments, stream cuts, scaling and locations (docs/protocol/controller.md#segments-and-stream-cuts)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common.errors import (
    BadRequestError,
    StreamSealedError,
    WorkflowBusyError,
)
from tailrace.common.names import qualified_segment_name
from tailrace.controller.calls.convert import (
    check_room,
    key_of,
    positions,
    segment_id_message,
    segment_range,
    segment_ranges,
)
from tailrace.controller.managers.streams import ScalePreconditionError
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.policies import INT64_MAX, check_new_ranges
from tailrace.controller.metadata.records import ScaleIntent
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from tailrace.controller.calls.call import Call, Core

_LOG = structlog.get_logger(__name__)


class SegmentService:
    """List a stream's segments and their successors, locate them, and scale the stream."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.context.store
        self._streams = core.streams
        self._cuts = core.cuts

    async def get_current_segments(self, request: pb.StreamInfo, call: Call) -> pb.SegmentRanges:
        """Return the active segments in key order; none for a sealed stream."""
        key = key_of(request)
        root = await self._streams.load(key)
        if root.state in (StreamState.SEALED, StreamState.DELETING):
            return pb.SegmentRanges()
        return segment_ranges(key, (await self._store.active_epoch(key, root)).segments)

    async def get_epoch_segments(self, request: pb.GetEpochSegmentsRequest, call: Call) -> pb.SegmentRanges:
        """Return the segments of an epoch in key order."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        return segment_ranges(key, (await self._store.epoch(key, root, request.epoch)).segments)

    async def get_segments(self, request: pb.GetSegmentsRequest, call: Call) -> pb.SegmentsAtTime:
        """Return the segments at the head with their start offsets. The request's timestamp is ignored."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        head = await self._cuts.head_offsets(key, root)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(segmentId=segment_id_message(key, identifier), offset=offset)
                for identifier, offset in head.items()
            ]
        )

    async def get_segments_immediately_following(self, request: pb.SegmentId, call: Call) -> pb.SuccessorResponse:
        """Return the successors of a segment, each with all its predecessors."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        found = await self._cuts.successors(key, root, request.segmentId)
        return pb.SuccessorResponse(
            segments=[
                pb.SuccessorResponse.SegmentEntry(segment=segment_range(key, segment), value=predecessors)
                for segment, predecessors in found
            ]
        )

    async def get_segments_immediatly_following(self, request: pb.SegmentId, call: Call) -> pb.SuccessorResponse:
        """Answer the same call under its misspelt name."""
        return await self.get_segments_immediately_following(request, call)

    async def get_segments_between(self, request: pb.StreamCutRange, call: Call) -> pb.StreamCutRangeResponse:
        """Return every segment from one cut to another, as far as an answer has room for all of them."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        start: dict[int, int] = positions(getattr(request, "from"))
        found = await self._cuts.between(key, root, start, positions(request.to))
        check_room(pb.StreamCutRangeResponse(segments=[segment_id_message(key, INT64_MAX)]), len(found))
        return pb.StreamCutRangeResponse(segments=[segment_id_message(key, segment.identifier) for segment in found])

    async def is_segment_valid(self, request: pb.SegmentId, call: Call) -> pb.SegmentValidityResponse:
        """Return whether the segment is active."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        active = await self._store.active_epoch(key, root)
        open_now = root.state not in (StreamState.SEALED, StreamState.DELETING)
        return pb.SegmentValidityResponse(response=open_now and active.find(request.segmentId) is not None)

    async def is_stream_cut_valid(self, request: pb.StreamCut, call: Call) -> pb.StreamCutValidityResponse:
        """Return whether the cut is a position in the stream."""
        key = key_of(request.streamInfo)
        root = await self._streams.load(key)
        try:
            await self._cuts.check(key, root, positions(request.cut))
        except BadRequestError:
            return pb.StreamCutValidityResponse(response=False)
        return pb.StreamCutValidityResponse(response=True)

    # -- scaling

    async def scale(self, request: pb.ScaleRequest, call: Call) -> pb.ScaleResponse:
        """Begin a manual scale; the reply has the epoch to pass to `check_scale`."""
        key = key_of(request.streamInfo)
        ranges = check_new_ranges([(entry.start, entry.end) for entry in request.newKeyRanges])
        try:
            intent = await self._streams.scale(key, list(request.sealedSegments), ranges)
        except ScalePreconditionError as error:
            _LOG.info("scale refused", stream=str(key), reason=str(error))
            return pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
        except (BadRequestError, WorkflowBusyError, StreamSealedError) as error:
            _LOG.info("scale refused", stream=str(key), reason=str(error))
            return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
        return pb.ScaleResponse(
            status=pb.ScaleResponse.STARTED,
            segments=[segment_range(key, segment) for segment in intent.created],
            epoch=intent.old_epoch,
        )

    async def check_scale(self, request: pb.ScaleStatusRequest, call: Call) -> pb.ScaleStatusResponse:
        """Return the state of an epoch's scale; INTERNAL_ERROR when the stream was sealed before it ended."""
        root = await self._streams.load(key_of(request.streamInfo))
        answer = pb.ScaleStatusResponse
        if request.epoch < 0 or request.epoch > root.active_epoch:
            return answer(status=answer.INVALID_INPUT)
        running = isinstance(root.intent, ScaleIntent) and root.intent.old_epoch == request.epoch
        if request.epoch < root.active_epoch and not running:
            return answer(status=answer.SUCCESS)
        if root.state in (StreamState.SEALING, StreamState.SEALED, StreamState.DELETING):
            return answer(status=answer.INTERNAL_ERROR)
        return answer(status=answer.IN_PROGRESS)

    # -- locations

    async def get_uri(self, request: pb.SegmentId, call: Call) -> pb.NodeUri:
        """Return the endpoint that serves a segment's container. The segment need not exist, now or ever."""
        key = key_of(request.streamInfo)  # the mapping hashes and keeps names: their length needs a bound
        name = qualified_segment_name(key.scope, key.stream, request.segmentId)
        host, port = self._core.containers.endpoint_of(name, call.listener)
        return pb.NodeUri(endpoint=host, port=port)

    async def get_controller_server_list(self, request: pb.ServerRequest, call: Call) -> pb.ServerResponse:
        """Return the address of every live controller, each once, this one's first."""
        own = [f"{host}:{port}" for host, port in self._core.endpoints]
        others = [endpoint for record in self._core.membership.others for endpoint in record.endpoints]
        pairs = [endpoint.rpartition(":") for endpoint in dict.fromkeys((*own, *others))]
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=int(port)) for host, _, port in pairs])

    async def get_delegation_token(self, request: pb.StreamInfo, call: Call) -> pb.DelegationToken:
        """Return an empty token: the segment store does not check tokens."""
        return pb.DelegationToken(delegationToken="")

    async def get_controller_to_bucket_mapping(
        self, request: pb.ControllerToBucketMappingRequest, call: Call
    ) -> pb.ControllerToBucketMappingResponse:
        """Return the buckets of each controller, by its address; controllers behind one address share an entry."""
        membership = self._core.membership
        addresses = {record.instance: ",".join(record.endpoints) for record in membership.others}
        addresses[membership.instance] = ",".join(f"{host}:{port}" for host, port in self._core.endpoints)
        mapping: dict[str, list[int]] = {}
        for bucket, owner in enumerate(membership.owners):
            if owner in addresses:
                mapping.setdefault(addresses[owner], []).append(bucket)
        answer = pb.ControllerToBucketMappingResponse
        return answer(mapping={address: pb.BucketIds(id=buckets) for address, buckets in mapping.items()})
