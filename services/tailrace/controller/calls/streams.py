"""Calls about whole streams (docs/protocol/controller.md#streams)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import (
    BadRequestError,
    InvalidNameError,
    NoSuchScopeError,
    NoSuchStreamError,
    StreamNotSealedError,
    StreamSealedError,
    WorkflowBusyError,
)
from tailrace.common.names import check_not_internal, check_stream_name
from tailrace.controller.calls.convert import config_from, config_message, key_of, positions, stream_info
from tailrace.controller.metadata.model import EXISTING_STATES
from tailrace.controller.metadata.policies import check_segment_count
from tailrace.controller.metadata.scope_store import STREAMS
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace.controller.calls.call import Call, Core

_LOG = structlog.get_logger(__name__)
_Update = pb.UpdateStreamStatus


class StreamService:
    """Streams: create, update, truncate, seal, delete, list."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scopes = core.context.scopes

    async def create_stream(self, request: pb.StreamConfig, call: Call) -> pb.CreateStreamStatus:
        """Create a stream; reply when clients can write to it."""
        check_not_internal(request.streamInfo.scope)
        try:
            check_stream_name(request.streamInfo.stream, internal=True)
        except InvalidNameError:
            return pb.CreateStreamStatus(status=pb.CreateStreamStatus.INVALID_STREAM_NAME)
        config = config_from(request)
        try:
            key = key_of(request.streamInfo)
        except NoSuchStreamError:  # the scope's name is not valid
            return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
        check_segment_count(*key, config.scaling.min_segments)
        try:
            created = await self._core.streams.create(key, config)
        except NoSuchScopeError:
            return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND)
        status = pb.CreateStreamStatus.SUCCESS if created else pb.CreateStreamStatus.STREAM_EXISTS
        return pb.CreateStreamStatus(status=status)

    async def update_stream(self, request: pb.StreamConfig, call: Call) -> pb.UpdateStreamStatus:
        """Replace a stream's configuration."""
        key, config = key_of(request.streamInfo), config_from(request)
        check_segment_count(*key, config.scaling.min_segments)
        answer = await self._status_of(self._core.streams.update(key, config))
        if answer.status == _Update.SUCCESS and config.retention is not None:
            self._core.retention.request(key)
        return answer

    async def truncate_stream(self, request: pb.StreamCut, call: Call) -> pb.UpdateStreamStatus:
        """Truncate a stream at a stream cut."""
        key = key_of(request.streamInfo)
        return await self._status_of(self._core.streams.truncate(key, positions(request.cut)))

    async def seal_stream(self, request: pb.StreamInfo, call: Call) -> pb.UpdateStreamStatus:
        """Seal a stream."""
        return await self._status_of(self._core.streams.seal(key_of(request)))

    async def _status_of(self, change: Awaitable[None]) -> pb.UpdateStreamStatus:
        try:
            await change
        except NoSuchStreamError:
            return _Update(status=_Update.STREAM_NOT_FOUND)
        except StreamSealedError:
            return _Update(status=_Update.STREAM_SEALED)
        except (BadRequestError, WorkflowBusyError) as error:
            _LOG.info("the change of a stream is refused", reason=str(error))
            return _Update(status=_Update.FAILURE)
        return _Update(status=_Update.SUCCESS)

    async def delete_stream(self, request: pb.StreamInfo, call: Call) -> pb.DeleteStreamStatus:
        """Delete a sealed stream."""
        try:
            await self._core.streams.delete(key_of(request))
        except NoSuchStreamError:
            return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND)
        except StreamNotSealedError:
            return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED)
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)

    async def get_stream_configuration(self, request: pb.StreamInfo, call: Call) -> pb.StreamConfig:
        """Return the stored configuration."""
        key = key_of(request)
        return config_message(key, (await self._core.streams.load(key)).config)

    async def check_stream_exists(self, request: pb.StreamInfo, call: Call) -> pb.ExistsResponse:
        """Return whether the stream exists."""
        root = await self._core.context.store.load(key_of(request))
        return pb.ExistsResponse(exists=root is not None and root.state in EXISTING_STATES)

    async def list_streams_in_scope(self, request: pb.StreamsInScopeRequest, call: Call) -> pb.StreamsInScopeResponse:
        """Return a page of a scope's streams, including internal ones."""
        return await self._list(request.scope.scope, request.continuationToken.token, "")

    async def list_streams_in_scope_for_tag(
        self, request: pb.StreamsInScopeWithTagRequest, call: Call
    ) -> pb.StreamsInScopeResponse:
        """Return a page of a scope's streams that have a tag."""
        if not request.tag:
            raise BadRequestError("tag is empty")
        return await self._list(request.scope.scope, request.continuationToken.token, request.tag)

    async def _list(self, scope: str, token: str, tag: str) -> pb.StreamsInScopeResponse:
        try:
            await self._scopes.require(scope)
            if tag:
                found, following = await self._core.tag_lists.page(scope, tag, limits.LIST_PAGE_ENTRIES_MAX, token)
            else:
                found, following = await self._scopes.list_names(scope, STREAMS, limits.LIST_PAGE_ENTRIES_MAX, token)
        except NoSuchScopeError:
            return pb.StreamsInScopeResponse(
                status=pb.StreamsInScopeResponse.SCOPE_NOT_FOUND, continuationToken=pb.ContinuationToken()
            )
        return pb.StreamsInScopeResponse(
            streams=[stream_info(StreamKey(scope, name)) for name in found],
            continuationToken=pb.ContinuationToken(token=following),
            status=pb.StreamsInScopeResponse.SUCCESS,
        )
