"""Calls about reader groups and subscribers (docs/protocol/controller.md#groups-and-subscribers)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from tailrace.client.control.caller import Caller, check_status, cut_message, stream_info
from tailrace.client.model import Cut, ReaderGroupConfig, StreamName
from tailrace.common.errors import (
    BadRequestError,
    IllegalStateError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    WriteConflictError,
)
from tailrace.common.stream_cut import StreamCut
from tailrace.rpc import controller_pb2 as pb


class ReaderGroupCalls(Caller):
    """Calls on reader groups. A missing group raises NoSuchReaderGroupError."""

    async def create_reader_group(self, scope: str, group: str, config: ReaderGroupConfig) -> ReaderGroupConfig:
        """Create a group; return the stored configuration, which differs if the group existed."""
        request = group_message(scope, group, config)
        reply = await self._call("createReaderGroup", request, pb.CreateReaderGroupResponse)
        check_status(
            reply,
            f"reader group {scope}/{group}",
            {
                "SCOPE_NOT_FOUND": lambda subject: NoSuchScopeError(f"{subject}: the scope does not exist"),
                "INVALID_RG_NAME": lambda subject: InvalidNameError(f"{subject}: invalid name"),
            },
        )
        return group_config_of(reply.config)

    async def reader_group_config(self, scope: str, group: str) -> ReaderGroupConfig:
        """Return the stored configuration."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = await self._call("getReaderGroupConfig", request, pb.ReaderGroupConfigResponse)
        check_status(reply, f"reader group {scope}/{group}", {"RG_NOT_FOUND": _no_group})
        return group_config_of(reply.config)

    async def update_reader_group(self, scope: str, group: str, config: ReaderGroupConfig) -> int:
        """Replace the configuration of the same id and generation; return the new generation.

        Raises:
            WriteConflictError: the id or generation differs from the stored one.
        """
        request = group_message(scope, group, config)
        reply, unsure = await self._call_unsure("updateReaderGroup", request, pb.UpdateReaderGroupResponse)
        if unsure and reply.status == pb.UpdateReaderGroupResponse.INVALID_CONFIG:
            stored = await self.reader_group_config(scope, group)
            own = stored.group_id == config.group_id and stored.same_settings(config)
            if own and stored.generation == config.generation + 1:
                return stored.generation  # updated by the attempt whose reply was lost
        check_status(
            reply,
            f"reader group {scope}/{group}",
            {
                "RG_NOT_FOUND": _no_group,
                "INVALID_CONFIG": lambda subject: WriteConflictError(f"{subject} was changed by another client"),
            },
        )
        return reply.generation

    async def delete_reader_group(self, scope: str, group: str, group_id: uuid.UUID) -> None:
        """Delete the group of that id."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group, readerGroupId=str(group_id))
        reply, unsure = await self._call_unsure("deleteReaderGroup", request, pb.DeleteReaderGroupStatus)
        if unsure and reply.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND:
            return  # probably deleted by an attempt whose reply was lost
        check_status(reply, f"reader group {scope}/{group}", {"RG_NOT_FOUND": _no_group})

    async def list_subscribers(self, stream: StreamName) -> list[str]:
        """Return the groups (``scope/group``) whose positions hold back the stream's retention."""
        reply = await self._call("listSubscribers", stream_info(stream), pb.SubscribersResponse)
        check_status(
            reply,
            f"stream {stream}",
            {"STREAM_NOT_FOUND": lambda subject: NoSuchStreamError(f"{subject} does not exist")},
        )
        return list(reply.subscribers)

    async def update_subscriber_cut(
        self, stream: StreamName, subscriber: str, group_id: uuid.UUID, generation: int, cut: Cut
    ) -> None:
        """Publish the position of a subscriber (``scope/group``).

        Raises:
            BadRequestError: the cut is not valid or goes back. WriteConflictError: another generation.
        """
        request = pb.SubscriberStreamCut(
            subscriber=subscriber,
            generation=generation,
            readerGroupId=str(group_id),
            streamCut=cut_message(stream, cut),
        )
        reply = await self._call("updateSubscriberStreamCut", request, pb.UpdateSubscriberStatus)
        check_status(
            reply,
            f"subscriber {subscriber} of {stream}",
            {
                "STREAM_NOT_FOUND": lambda subject: NoSuchStreamError(f"{subject}: the stream does not exist"),
                "SUBSCRIBER_NOT_FOUND": _no_group,
                "STREAM_CUT_NOT_VALID": lambda subject: BadRequestError(f"{subject}: the cut is not valid"),
                "GENERATION_MISMATCH": lambda subject: WriteConflictError(f"{subject}: the group was reset"),
            },
        )


def _no_group(subject: str) -> NoSuchReaderGroupError:
    return NoSuchReaderGroupError(f"{subject} does not exist")


def group_message(scope: str, group: str, config: ReaderGroupConfig) -> pb.ReaderGroupConfiguration:
    """Return the message of a group's configuration."""
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=config.group_refresh_ms,
        automaticCheckpointIntervalMillis=config.automatic_checkpoint_ms,
        maxOutstandingCheckpointRequest=config.max_outstanding_checkpoints,
        retentionType=int(config.retention),
        generation=config.generation,
        readerGroupId=str(config.group_id),
        startingStreamCuts=_cut_messages(config.starting),
        endingStreamCuts=_cut_messages(config.ending),
    )


def _cut_messages(cuts: Mapping[str, StreamCut | None]) -> list[pb.StreamCut]:
    return [cut_message(StreamName.parse(name), cut.positions if cut else None) for name, cut in cuts.items()]


def group_config_of(message: pb.ReaderGroupConfiguration) -> ReaderGroupConfig:
    """Return the configuration of a message. Raises IllegalStateError when the controller sends an invalid id."""
    try:
        group_id = uuid.UUID(message.readerGroupId)
    except ValueError as error:
        raise IllegalStateError(
            f"the controller sent {message.readerGroupId!r} as a reader group's id, which is not a UUID"
        ) from error
    return ReaderGroupConfig(
        automatic_checkpoint_ms=message.automaticCheckpointIntervalMillis,
        group_refresh_ms=message.groupRefreshTimeMillis,
        starting=_cuts_of(message.startingStreamCuts),
        ending=_cuts_of(message.endingStreamCuts),
        max_outstanding_checkpoints=message.maxOutstandingCheckpointRequest,
        retention=message.retentionType,
        generation=message.generation,
        group_id=group_id,
    )


def _cuts_of(messages: Sequence[pb.StreamCut]) -> dict[str, StreamCut | None]:
    cuts: dict[str, StreamCut | None] = {}
    for message in messages:
        info = message.streamInfo
        cut = StreamCut(info.scope, info.stream, dict(message.cut)) if message.cut else None
        cuts[f"{info.scope}/{info.stream}"] = cut
    return cuts
