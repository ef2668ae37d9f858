"""Scopes and streams for users: create, configure, scale, truncate, delete, look at (controller §4)."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.model import SegmentRange, StreamConfig, StreamName
from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import KeyRange, equal_ranges, split_range
from tailrace.common.streamcut import StreamCut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.client.context import ClientContext
    from tailrace.client.types import SegmentInfo


class StreamInfo(NamedTuple):
    """A stream as it is now: configuration, active segments, and its first and last positions."""

    stream: StreamName
    config: StreamConfig
    segments: Sequence[SegmentRange]
    head: StreamCut
    tail: StreamCut


class StreamManager:
    """Manages scopes and streams.

    Missing scopes and streams raise kinds of NotFoundError, wrong arguments kinds of BadRequestError.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._controller = context.controller

    # -- scopes -------------------------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """Create a scope; False when it exists."""
        return await self._controller.create_scope(scope)

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; False when there is none. Raises NotEmptyError unless `recursive`."""
        return await self._controller.delete_scope(scope, recursive=recursive)

    async def list_scopes(self) -> list[str]:
        """All scopes, internal ones (leading "_") too."""
        return [scope async for scope in self._controller.list_scopes()]

    # -- streams ------------------------------------------------------------------------------------------------

    async def create_stream(self, stream: StreamName, config: StreamConfig | None = None) -> bool:
        """Create a stream, of one segment unless configured otherwise; False when it exists."""
        return await self._controller.create_stream(stream, config or StreamConfig())

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Replace the configuration; a policy that wants more segments scales the stream."""
        await self._controller.update_stream(stream, config)

    async def list_streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[StreamName]:
        """Streams of a scope, those with `tag` if given; internal ones (leading "_") only if asked for."""
        found = [stream async for stream in self._controller.list_streams(scope, tag=tag)]
        return [stream for stream in found if internal or not stream.stream.startswith("_")]

    async def tags(self, stream: StreamName) -> tuple[str, ...]:
        """Tags of a stream."""
        return (await self._controller.stream_config(stream)).tags

    async def info(self, stream: StreamName) -> StreamInfo:
        """Configuration, active segments, head and tail."""
        config = await self._controller.stream_config(stream)
        segments = await self._controller.current_segments(stream)
        return StreamInfo(stream, config, segments, await self.head(stream), await self.tail(stream))

    async def head(self, stream: StreamName) -> StreamCut:
        """The cut at the first event that is left."""
        return StreamCut(stream.scope, stream.stream, await self._controller.head_segments(stream))

    async def tail(self, stream: StreamName) -> StreamCut:
        """A cut after everything acknowledged before this call."""
        segments = await self._controller.current_segments(stream)
        identifiers = [segment.identifier for segment in segments] or await self._last_segments(stream)
        infos: list[SegmentInfo] = await asyncio.gather(
            *(self._context.segments.segment_info(stream.segment(identifier)) for identifier in identifiers)
        )
        lengths = {identifier: info.length for identifier, info in zip(identifiers, infos, strict=True)}
        return StreamCut(stream.scope, stream.stream, lengths)

    async def _last_segments(self, stream: StreamName) -> list[int]:
        """Segments of a sealed stream that nothing follows."""
        found = await self._controller.segments_between(stream, None, None)
        return [identifier for identifier in found if not await self._controller.successors(stream, identifier)]

    async def seal_stream(self, stream: StreamName) -> None:
        """Seal; nothing can be written any more. Sealing a sealed stream succeeds."""
        await self._controller.seal_stream(stream)

    async def truncate_stream(self, stream: StreamName, cut: StreamCut) -> None:
        """Drop everything before a cut. Raises IllegalStateError for a cut that is not valid."""
        if (cut.scope, cut.stream) != stream:
            raise BadRequestError(f"the cut belongs to {cut.scoped_name}, not to {stream}")
        await self._controller.truncate_stream(stream, cut.positions)

    async def delete_stream(self, stream: StreamName) -> bool:
        """Delete a sealed stream; False when there is none. Raises IllegalStateError when it is not sealed."""
        return await self._controller.delete_stream(stream)

    # -- scaling ------------------------------------------------------------------------------------------------

    async def scale_to(self, stream: StreamName, count: int, *, deadline_s: float = limits.SCALE_DEADLINE_S) -> None:
        """Replace segments until there are `count` equal ones; those whose range fits already stay."""
        wanted = equal_ranges(count)
        active = await self._controller.current_segments(stream)
        kept = [segment.key_range for segment in active if segment.key_range in wanted]
        sealed = [segment.identifier for segment in active if segment.key_range not in wanted]
        if sealed:
            fresh = [key_range for key_range in wanted if key_range not in kept]
            await self._controller.scale(stream, sealed, fresh, deadline_s=deadline_s)

    async def split_segment(
        self, stream: StreamName, identifier: int, parts: int, *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace a segment by `parts` equal ones."""
        (segment,) = await self._active(stream, [identifier])
        ranges = split_range(segment.key_range, parts)
        await self._controller.scale(stream, [identifier], ranges, deadline_s=deadline_s)

    async def merge_segments(
        self, stream: StreamName, identifiers: Sequence[int], *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace neighbouring segments by one."""
        segments = sorted(await self._active(stream, identifiers), key=lambda segment: segment.key_range)
        for left, right in itertools.pairwise(segments):
            if left.key_range.high != right.key_range.low:
                raise BadRequestError(f"segments {left.identifier} and {right.identifier} are not neighbours")
        joined = KeyRange(segments[0].key_range.low, segments[-1].key_range.high)
        await self._controller.scale(stream, list(identifiers), [joined], deadline_s=deadline_s)

    async def _active(self, stream: StreamName, identifiers: Sequence[int]) -> list[SegmentRange]:
        active = {segment.identifier: segment for segment in await self._controller.current_segments(stream)}
        if not identifiers:
            raise BadRequestError("no segment is named")
        for identifier in identifiers:
            if identifier not in active:
                raise BadRequestError(f"segment {identifier} of {stream} is not active")
        return [active[identifier] for identifier in identifiers]
