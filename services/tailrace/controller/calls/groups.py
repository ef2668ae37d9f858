"""Calls about reader groups and subscribers (docs/protocol/controller.md#groups-and-subscribers)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
)
from tailrace.common.names import check_entity_name, check_not_internal
from tailrace.common.ports import new_uuid
from tailrace.common.stream_policies import StreamDataRetention
from tailrace.controller.calls.convert import key_of, positions
from tailrace.controller.managers.groups import GroupMismatchError
from tailrace.controller.managers.subscribers import PublishResult, publish, subscriber, subscriber_names
from tailrace.controller.metadata.epochs import is_behind
from tailrace.controller.metadata.records import ReaderGroupRecord, Subscriber
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.controller.calls.call import Call, Core
    from tailrace.controller.metadata.stream_store import StreamKey

_Cut = tuple[str, str, dict[int, int]]


_Published = pb.UpdateSubscriberStatus
_PUBLISHED = {
    PublishResult.PUBLISHED: _Published.SUCCESS,
    PublishResult.NOT_SUBSCRIBED: _Published.SUBSCRIBER_NOT_FOUND,
    PublishResult.OTHER_GENERATION: _Published.GENERATION_MISMATCH,
    PublishResult.REFUSED: _Published.STREAM_CUT_NOT_VALID,
}


class ReaderGroupService:
    """Reader groups and their published positions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._groups = core.groups

    async def create_reader_group(
        self, request: pb.ReaderGroupConfiguration, call: Call
    ) -> pb.CreateReaderGroupResponse:
        """Create a group with its state stream; return the stored configuration when it exists."""
        check_not_internal(request.scope)
        answer = pb.CreateReaderGroupResponse
        try:
            check_entity_name("reader group", request.readerGroupName)
        except InvalidNameError:
            return answer(status=answer.INVALID_RG_NAME)
        group_id = request.readerGroupId
        if not group_id or group_id == str(uuid.UUID(int=0)):
            group_id = str(new_uuid(self._core.context.entropy))
        record = _record_from(request, group_id, max(request.generation, 0))
        try:
            stored = await self._groups.create(request.scope, request.readerGroupName, record)
        except NoSuchScopeError:
            return answer(status=answer.SCOPE_NOT_FOUND)
        return answer(status=answer.SUCCESS, config=_message(request.scope, request.readerGroupName, stored))

    async def get_reader_group_config(self, request: pb.ReaderGroupInfo, call: Call) -> pb.ReaderGroupConfigResponse:
        """Return the stored configuration."""
        answer = pb.ReaderGroupConfigResponse
        try:
            stored = await self._groups.load(request.scope, request.readerGroup)
        except NoSuchReaderGroupError:
            return answer(status=answer.RG_NOT_FOUND)
        return answer(status=answer.SUCCESS, config=_message(request.scope, request.readerGroup, stored))

    async def update_reader_group(
        self, request: pb.ReaderGroupConfiguration, call: Call
    ) -> pb.UpdateReaderGroupResponse:
        """Replace the configuration if the request names its generation."""
        answer = pb.UpdateReaderGroupResponse
        record = _record_from(request, request.readerGroupId, request.generation)
        try:
            generation = await self._groups.update(request.scope, request.readerGroupName, record)
        except NoSuchReaderGroupError:
            return answer(status=answer.RG_NOT_FOUND)
        except GroupMismatchError:
            return answer(status=answer.INVALID_CONFIG)
        return answer(status=answer.SUCCESS, generation=generation)

    async def delete_reader_group(self, request: pb.ReaderGroupInfo, call: Call) -> pb.DeleteReaderGroupStatus:
        """Delete a group with its state stream."""
        answer = pb.DeleteReaderGroupStatus
        try:
            await self._groups.delete(request.scope, request.readerGroup, request.readerGroupId)
        except NoSuchReaderGroupError:
            return answer(status=answer.RG_NOT_FOUND)
        return answer(status=answer.SUCCESS)

    # -- subscribers

    async def list_subscribers(self, request: pb.StreamInfo, call: Call) -> pb.SubscribersResponse:
        """List the groups whose positions hold back the stream's retention."""
        answer = pb.SubscribersResponse
        try:
            found = await subscriber_names(self._core.context, key_of(request))
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        return answer(status=answer.SUCCESS, subscribers=found)

    async def update_subscriber_stream_cut(
        self, request: pb.SubscriberStreamCut, call: Call
    ) -> pb.UpdateSubscriberStatus:
        """Store the position that a group has read up to."""
        answer = pb.UpdateSubscriberStatus
        key = key_of(request.streamCut.streamInfo)
        try:
            result = await self._publish(key, request)
        except NoSuchStreamError:
            return answer(status=answer.STREAM_NOT_FOUND)
        return answer(status=_PUBLISHED[result])

    async def _publish(self, key: StreamKey, request: pb.SubscriberStreamCut) -> PublishResult:
        root = await self._core.streams.load(key)
        cut = positions(request.streamCut.cut)
        before = await subscriber(self._core.context, key, request.subscriber)
        try:
            await self._core.cuts.check(key, root, cut)
            behind = False
            if before is not None and before.cut:
                known = await self._core.cuts.segments(key, root, cut, before.cut)
                behind = is_behind(cut, before.cut, known)
        except BadRequestError:
            return PublishResult.REFUSED
        return await publish(
            self._core.context,
            key,
            request.subscriber,
            before,
            Subscriber(request.readerGroupId, request.generation, cut, self._core.context.clock.now_ms()),
            behind=behind,
        )


def _record_from(message: pb.ReaderGroupConfiguration, group_id: str, generation: int) -> ReaderGroupRecord:
    if message.retentionType not in [int(kind) for kind in StreamDataRetention]:
        raise BadRequestError(f"retentionType {message.retentionType} is not known")
    try:
        canonical = str(uuid.UUID(group_id))
    except ValueError as error:
        raise BadRequestError(f"readerGroupId {group_id[:80]!r} is not a UUID") from error
    for field in ("startingStreamCuts", "endingStreamCuts"):
        if len(getattr(message, field)) > limits.STREAMS_PER_READER_GROUP_MAX:
            raise BadRequestError(
                f"{field} names too many streams; at most {limits.STREAMS_PER_READER_GROUP_MAX} are allowed"
            )
    return ReaderGroupRecord(
        group_id=canonical,
        generation=generation,
        retention=StreamDataRetention(message.retentionType),
        refresh_time_ms=message.groupRefreshTimeMillis,
        automatic_checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
        max_outstanding_checkpoints=message.maxOutstandingCheckpointRequest,
        rollover_size_bytes=message.rolloverSizeBytes,
        starting_cuts=tuple(_cuts_from(message.startingStreamCuts)),
        ending_cuts=tuple(_cuts_from(message.endingStreamCuts)),
    )


def _cuts_from(messages: Iterable[pb.StreamCut]) -> list[_Cut]:
    return [(*key_of(item.streamInfo), positions(item.cut)) for item in messages]


def _cut_messages(cuts: Iterable[_Cut]) -> list[pb.StreamCut]:
    return [pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=stream), cut=cut) for scope, stream, cut in cuts]


def _message(scope: str, group: str, record: ReaderGroupRecord) -> pb.ReaderGroupConfiguration:
    """Return every field as the client sent it: the Java client compares them.

    See docs/protocol/controller.md#messages.
    """
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=record.refresh_time_ms,
        automaticCheckpointIntervalMillis=record.automatic_checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=record.max_outstanding_checkpoints,
        retentionType=int(record.retention),
        generation=record.generation,
        readerGroupId=record.group_id,
        startingStreamCuts=_cut_messages(record.starting_cuts),
        endingStreamCuts=_cut_messages(record.ending_cuts),
        rolloverSizeBytes=record.rollover_size_bytes,
    )
