"""Calls about scopes and streams: create, list, configure, seal, truncate, delete.

See docs/protocol/controller.md#streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tailrace.client.control.caller import Caller, check_status, cut_message, stream_info
from tailrace.client.model import Cut, StreamName
from tailrace.client.retry import Backoff
from tailrace.common import limits
from tailrace.common.errors import (
    IllegalStateError,
    InvalidNameError,
    NoSuchScopeError,
    NoSuchStreamError,
    NotEmptyError,
    UnsupportedError,
)
from tailrace.common.stream_policies import (
    UNLIMITED,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from tailrace.common.errors import TailraceError

_Failures = dict[str, "Callable[[str], TailraceError]"]

_NO_SCOPE: _Failures = {"SCOPE_NOT_FOUND": lambda subject: NoSuchScopeError(f"{subject}: the scope does not exist")}
_NO_STREAM: _Failures = {
    **_NO_SCOPE,
    "STREAM_NOT_FOUND": lambda subject: NoSuchStreamError(f"{subject} does not exist"),
}
_SEALED: _Failures = {"STREAM_SEALED": lambda subject: UnsupportedError(f"{subject} is sealed")}


class ScopeCalls(Caller):
    """Calls on scopes."""

    async def create_scope(self, scope: str) -> bool:
        """Create a scope; return False when it exists, also when an attempt of this call with a lost reply created it.

        Raises InvalidNameError.
        """
        reply = await self._call("createScope", pb.ScopeInfo(scope=scope), pb.CreateScopeStatus)
        if reply.status == pb.CreateScopeStatus.SCOPE_EXISTS:
            return False
        check_status(reply, f"scope {scope}", {"INVALID_SCOPE_NAME": lambda s: InvalidNameError(f"{s}: invalid name")})
        return True

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; return False when it does not exist. Raises NotEmptyError unless `recursive`."""
        method = "deleteScopeRecursive" if recursive else "deleteScope"
        reply, unsure = await self._call_unsure(method, pb.ScopeInfo(scope=scope), pb.DeleteScopeStatus)
        if reply.status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND:
            return unsure  # probably deleted by an attempt whose reply was lost
        check_status(reply, f"scope {scope}", {"SCOPE_NOT_EMPTY": lambda s: NotEmptyError(f"{s} is not empty")})
        return True

    async def scope_exists(self, scope: str) -> bool:
        """Return whether the scope exists."""
        reply = await self._call("checkScopeExists", pb.ScopeInfo(scope=scope), pb.ExistsResponse)
        return reply.exists

    async def list_scopes(self) -> AsyncIterator[str]:
        """Yield all scopes, including internal ones, page by page."""
        token = ""
        while True:
            request = pb.ScopesRequest(continuationToken=pb.ContinuationToken(token=token))
            reply = await self._call("listScopes", request, pb.ScopesResponse)
            if not reply.scopes:
                return
            for scope in reply.scopes:
                yield scope
            token = reply.continuationToken.token


class StreamCalls(Caller):
    """Calls on streams. Missing scopes and streams raise NoSuchScopeError and NoSuchStreamError."""

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> bool:
        """Create a stream; return False when it exists, also when an attempt of this call with a lost reply created it.

        Raises NoSuchScopeError, InvalidNameError, BadRequestError.
        """
        reply = await self._call("createStream", config_message(stream, config), pb.CreateStreamStatus)
        if reply.status == pb.CreateStreamStatus.STREAM_EXISTS:
            return False
        failures: _Failures = {
            **_NO_SCOPE,
            "INVALID_STREAM_NAME": lambda subject: InvalidNameError(f"{subject}: invalid name"),
        }
        check_status(reply, f"stream {stream}", failures)
        return True

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Replace the configuration. Raises UnsupportedError when the stream is sealed."""
        reply = await self._change("updateStream", config_message(stream, config))
        check_status(reply, f"stream {stream}", {**_NO_STREAM, **_SEALED})

    async def truncate_stream(self, stream: StreamName, cut: Cut) -> None:
        """Truncate a stream at a cut. Raises IllegalStateError for a cut that is not valid."""
        reply = await self._change("truncateStream", cut_message(stream, cut))
        check_status(
            reply,
            f"stream {stream}",
            {
                **_NO_STREAM,
                **_SEALED,
                "FAILURE": lambda subject: IllegalStateError(
                    f"{subject}: the cut does not cover the key space, lies before the head or beyond a segment's end"
                ),
            },
        )

    async def seal_stream(self, stream: StreamName) -> None:
        """Seal a stream. Sealing a sealed stream succeeds."""
        reply = await self._change("sealStream", stream_info(stream))
        check_status(reply, f"stream {stream}", _NO_STREAM)

    async def _change(self, method: str, request: Message) -> pb.UpdateStreamStatus:
        """Change a stream. Repeat the call after a lost reply and a refusal.

        These changes are idempotent, and the refusal may mean that the change of the lost attempt is still running.
        """
        backoff = Backoff(self._entropy)
        unsure = False
        for _ in range(limits.CLIENT_CONTROLLER_ATTEMPTS_MAX):
            reply, unsure_now = await self._call_unsure(method, request, pb.UpdateStreamStatus)
            unsure = unsure or unsure_now
            if not unsure or reply.status != pb.UpdateStreamStatus.FAILURE:
                break
            await asyncio.sleep(backoff.next_delay_s())
        return reply

    async def delete_stream(self, stream: StreamName) -> bool:
        """Delete a sealed stream; return False when it does not exist. Raises IllegalStateError unless it is sealed."""
        reply, unsure = await self._call_unsure("deleteStream", stream_info(stream), pb.DeleteStreamStatus)
        if reply.status == pb.DeleteStreamStatus.STREAM_NOT_FOUND:
            return unsure  # probably deleted by an attempt whose reply was lost
        check_status(
            reply,
            f"stream {stream}",
            {"STREAM_NOT_SEALED": lambda subject: IllegalStateError(f"{subject} is not sealed")},
        )
        return True

    async def stream_config(self, stream: StreamName) -> StreamConfig:
        """Return the present configuration. Raises NotFoundError."""
        reply = await self._call("getStreamConfiguration", stream_info(stream), pb.StreamConfig)
        return config_of(reply)

    async def stream_exists(self, stream: StreamName) -> bool:
        """Return whether the stream exists."""
        return (await self._call("checkStreamExists", stream_info(stream), pb.ExistsResponse)).exists

    async def list_streams(self, scope: str, *, tag: str | None = None) -> AsyncIterator[StreamName]:
        """Yield the streams of a scope, including internal ones (leading "_"), optionally with `tag`.

        Raises NoSuchScopeError.
        """
        async for page in self.stream_pages(scope, tag=tag):
            for name in page:
                yield name

    async def stream_pages(self, scope: str, *, tag: str | None = None) -> AsyncIterator[list[StreamName]]:
        """Yield the streams of `list_streams` by pages, one for each reply. Raises NoSuchScopeError."""
        token = pb.ContinuationToken(token="")
        while True:
            if tag is None:
                plain = pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope), continuationToken=token)
                reply = await self._call("listStreamsInScope", plain, pb.StreamsInScopeResponse)
            else:
                tagged = pb.StreamsInScopeWithTagRequest(
                    scope=pb.ScopeInfo(scope=scope), tag=tag, continuationToken=token
                )
                reply = await self._call("listStreamsInScopeForTag", tagged, pb.StreamsInScopeResponse)
            check_status(reply, f"scope {scope}", _NO_SCOPE)
            if not reply.streams:
                return
            yield [StreamName(info.scope, info.stream) for info in reply.streams]
            token = reply.continuationToken


def config_message(stream: StreamName, config: StreamConfig) -> pb.StreamConfig:
    """Return the message of a stream's configuration."""
    message = pb.StreamConfig(
        streamInfo=stream_info(stream),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.ScalingPolicyType.ValueType(int(config.scaling.kind)),
            targetRate=config.scaling.target_rate,
            scaleFactor=config.scaling.scale_factor,
            minNumSegments=config.scaling.min_segments,
        ),
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )
    if config.retention is not None:
        message.retentionPolicy.CopyFrom(
            pb.RetentionPolicy(
                retentionType=pb.RetentionPolicy.RetentionPolicyType.ValueType(int(config.retention.kind)),
                retentionParam=config.retention.minimum,
                retentionMax=config.retention.maximum,
            )
        )
    return message


def config_of(message: pb.StreamConfig) -> StreamConfig:
    """Return the configuration of a message. Retention of type UNKNOWN is none.

    See docs/protocol/controller.md#conventions.
    """
    scaling, retention = message.scalingPolicy, message.retentionPolicy
    kept = None
    if retention.retentionType != pb.RetentionPolicy.UNKNOWN:
        kept = RetentionPolicy(
            RetentionType(retention.retentionType), retention.retentionParam, retention.retentionMax or UNLIMITED
        )
    return StreamConfig(
        scaling=ScalingPolicy(
            ScaleType(scaling.scaleType), scaling.minNumSegments, scaling.targetRate, scaling.scaleFactor
        ),
        retention=kept,
        tags=tuple(message.tags.tag),
        timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )
