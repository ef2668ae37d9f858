"""The streams that a query reads by a tag (docs/spark.md#streams-by-a-tag)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tailrace.common import limits
from tailrace.common.errors import NoSuchStreamError
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName
    from tailrace.pipelines.source.offsets import Positions
    from tailrace.pipelines.source.options import Tag

_LOG = structlog.get_logger(__name__)


@dataclass
class Division:
    """What a query does with the streams of its position, and with those that have its tag.

    ``read``: streams with the tag. ``idle``: streams that have lost it; their positions are kept. ``joined``: streams
    that have it and no position yet. Deleted streams are in none of them.
    """

    read: Positions = field(default_factory=dict)
    idle: Positions = field(default_factory=dict)
    joined: list[StreamName] = field(default_factory=list)


def divide(positions: Positions, tagged: Collection[StreamName], deleted: Collection[StreamName]) -> Division:
    """Divide the streams; pure."""
    division = Division(joined=sorted(set(tagged) - positions.keys()))
    for stream, position in positions.items():
        if stream in tagged:
            division.read[stream] = position
        elif stream not in deleted:
            division.idle[stream] = position
    return division


class TaggedStreams:
    """Looks up the streams of a tag, at intervals of ``limits.SPARK_TAG_LOOK_S``."""

    def __init__(self, context: ClientContext, tag: Tag) -> None:
        self._context = context
        self._tag = tag
        self._found: tuple[StreamName, ...] = ()
        self._looked_s: float | None = None

    async def now(self, *, fresh: bool = False) -> tuple[StreamName, ...]:
        """Return the streams that have the tag, in order; `fresh`: looked up now, without those that are being deleted.

        Raises:
            NoSuchScopeError.
        """
        now_s = asyncio.get_running_loop().time()
        if fresh or self._looked_s is None or now_s - self._looked_s >= limits.SPARK_TAG_LOOK_S:
            listed = self._context.controller.list_streams(self._tag.scope, tag=self._tag.name)
            self._found = tuple(sorted([stream async for stream in listed]))
            self._looked_s = now_s
        if fresh:
            stays = await gather_bounded(self._found, self._stays)
            self._found = tuple(itertools.compress(self._found, stays))
        return self._found

    async def _stays(self, stream: StreamName) -> bool:
        """Return whether a stream exists and is not being deleted, when it still has its name and its tags."""
        try:
            return not (await self._context.controller.stream_history(stream)).is_going
        except NoSuchStreamError:
            return False

    async def some(self) -> tuple[StreamName, ...]:
        """Return the streams that have the tag now: at least one.

        Raises:
            NoSuchScopeError. NoSuchStreamError: no stream has it.
        """
        found = await self.now(fresh=True)
        if not found:
            raise NoSuchStreamError(f"no stream of scope {self._tag.scope} has the tag {self._tag.name}")
        return found

    async def divide(self, positions: Positions, tagged: Collection[StreamName]) -> Division:
        """Return what to do with the streams of a position, and with those of the tag."""
        left = sorted(positions.keys() - set(tagged))
        exist = await gather_bounded(left, self._context.controller.stream_exists)
        deleted = [stream for stream, exists in zip(left, exist, strict=True) if not exists]
        division = divide(positions, tagged, deleted)
        for stream in division.joined:
            _LOG.info("stream_joins_query", stream=str(stream), tag=self._tag.name)
        for stream in deleted:
            _LOG.info("deleted_stream_leaves_query", stream=str(stream), tag=self._tag.name)
        return division
