"""Manage scopes and streams: create, describe, configure, scale, truncate, delete.

See docs/protocol/controller.md#streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.control.scale_plan import ScalePlan, plan_changes, plan_count
from tailrace.client.model import SegmentRange, StreamName, name_of
from tailrace.client.tails import tail_cut
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotEmptyError, StreamSealedError
from tailrace.common.names import READER_GROUP_PREFIX, some_of
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import StreamConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.context import ClientContext


class StreamInfo(NamedTuple):
    """The present state of a stream: configuration, active segments, head and tail."""

    stream: StreamName
    config: StreamConfig
    segments: Sequence[SegmentRange]
    head: StreamCut
    tail: StreamCut


class StreamManager:
    """Manage scopes and streams.

    Streams are ``scope/stream`` or a StreamName. Missing scopes and streams raise kinds of NotFoundError, wrong
    arguments kinds of BadRequestError.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._controller = context.controller

    # -- scopes -------------------------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """Create a scope; return False when it exists."""
        return await self._controller.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; return False when it does not exist.

        Raises NotEmptyError unless `recursive`; the message names what is left.
        """
        try:
            return await self._controller.delete_scope(scope, recursive=recursive)
        except NotEmptyError as error:
            raise NotEmptyError(f"{error}: it has {await self._content_of(scope)}") from error

    async def _content_of(self, scope: str) -> str:
        """Return the names of what a scope contains, some of each kind. Internal streams belong to the others."""
        streams = [name.stream async for name in self._controller.list_streams(scope)]
        groups = [name.removeprefix(READER_GROUP_PREFIX) for name in streams if name.startswith(READER_GROUP_PREFIX)]
        tables = [name async for name in self._controller.list_tables(scope)]
        kinds = {
            "stream": [name for name in streams if not name.startswith("_")],
            "reader group": groups,
            "key-value table": tables,
        }
        found = [_named(kind, sorted(names)) for kind, names in kinds.items() if names]
        return ", ".join(found) or "only internal streams, or something that is being made or deleted"

    async def list_scopes(self) -> list[str]:
        """Return all scopes, including internal ones (leading "_")."""
        return [scope async for scope in self._controller.list_scopes()]

    # -- streams ------------------------------------------------------------------------------------------------

    async def create_stream(self, stream: str | StreamName, config: StreamConfig | None = None) -> bool:
        """Create a stream, by default with one segment; return False when it exists."""
        stream = name_of(stream)
        return await self._controller.create_stream(stream, config or StreamConfig())

    async def update_stream(self, stream: str | StreamName, config: StreamConfig) -> None:
        """Replace the configuration. A policy that asks for other segments than there are scales the stream."""
        stream = name_of(stream)
        await self._controller.update_stream(stream, config)

    async def list_streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[StreamName]:
        """Return the streams of a scope, optionally those with `tag`, and with `internal` also internal ones."""
        found = [stream async for stream in self._controller.list_streams(scope, tag=tag)]
        return [stream for stream in found if internal or not stream.stream.startswith("_")]

    async def tags(self, stream: str | StreamName) -> tuple[str, ...]:
        """Return the tags of a stream."""
        stream = name_of(stream)
        return (await self._controller.stream_config(stream)).tags

    async def info(self, stream: str | StreamName) -> StreamInfo:
        """Return configuration, active segments, head and tail."""
        stream = name_of(stream)
        config = await self._controller.stream_config(stream)
        segments = await self._controller.current_segments(stream)
        return StreamInfo(stream, config, segments, await self.head(stream), await self.tail(stream))

    async def head(self, stream: str | StreamName) -> StreamCut:
        """Return the cut at the first event."""
        stream = name_of(stream)
        return StreamCut(stream.scope, stream.stream, await self._controller.head_segments(stream))

    async def tail(self, stream: str | StreamName) -> StreamCut:
        """Return a cut after everything acknowledged before this call."""
        return await tail_cut(self._context, name_of(stream))

    async def seal_stream(self, stream: str | StreamName) -> None:
        """Seal a stream, so that it takes no more events. Sealing a sealed stream succeeds."""
        stream = name_of(stream)
        await self._controller.seal_stream(stream)

    async def truncate_stream(self, stream: str | StreamName, cut: StreamCut) -> None:
        """Truncate a stream at a cut. Raises IllegalStateError for a cut that is not valid."""
        stream = name_of(stream)
        if (cut.scope, cut.stream) != stream:
            raise BadRequestError(f"the cut belongs to {cut.scoped_name}, not to {stream}")
        await self._controller.truncate_stream(stream, cut.positions)

    async def delete_stream(self, stream: str | StreamName) -> bool:
        """Delete a sealed stream; return False when it does not exist. Raises IllegalStateError unless it is sealed."""
        stream = name_of(stream)
        return await self._controller.delete_stream(stream)

    # -- scaling ------------------------------------------------------------------------------------------------

    async def scale_to(
        self, stream: str | StreamName, count: int, *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace segments until there are `count` equal ones. Segments whose range fits stay.

        Raises StreamSealedError for a sealed stream.
        """
        stream = name_of(stream)
        await self._scale(stream, plan_count(await self._active(stream), count), deadline_s)

    async def split_segment(
        self, stream: str | StreamName, identifier: int, parts: int, *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace a segment by `parts` equal ones."""
        stream = name_of(stream)
        plan = plan_changes(await self._active(stream), [(identifier, parts)], [])
        await self._scale(stream, plan, deadline_s)

    async def merge_segments(
        self, stream: str | StreamName, identifiers: Sequence[int], *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace neighbouring segments by one."""
        stream = name_of(stream)
        plan = plan_changes(await self._active(stream), [], [identifiers])
        await self._scale(stream, plan, deadline_s)

    async def _scale(self, stream: StreamName, plan: ScalePlan, deadline_s: float) -> None:
        if not plan.changes_nothing:
            await self._controller.scale(stream, list(plan.sealed), list(plan.ranges), deadline_s=deadline_s)

    async def _active(self, stream: StreamName) -> Sequence[SegmentRange]:
        active = await self._controller.current_segments(stream)
        if not active:
            raise StreamSealedError(f"stream {stream} is sealed")
        return active


def _named(kind: str, names: Sequence[str]) -> str:
    """Return the count of a kind, and some names."""
    return f"{len(names)} {kind}{'' if len(names) == 1 else 's'} ({some_of(names)})"
