"""Puts something in front of all calls of a store: holds, failures, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tailrace.common.errors import NoSuchSegmentError, SegmentExistsError
from tailrace.common.task_groups import gather_bounded

Call = Callable[[], Awaitable[Any]]
Around = Callable[[str, tuple[Any, ...], Call], Awaitable[Any]]


class EachSegment:
    """A wrapper of segments that sees one call for each segment of a call for several: a crash may come between two."""

    async def create_segments(self, names: Sequence[str], **fields: Any) -> list[str]:
        """Create each by itself."""
        return await create_each(self, names, **fields)

    async def segment_infos(self, names: Sequence[str]) -> list[Any]:
        """Return the properties of each."""
        return await info_of_each(self, names)


class Intercepted(EachSegment):
    """A store whose calls go through ``around(name, arguments, call)``, each after a turn of the event loop."""

    def __init__(self, target: Any, around: Around) -> None:
        self._target = target
        self._around = around

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def intercepted(*arguments: Any, **keywords: Any) -> Any:
            await asyncio.sleep(0)  # as a real store lets others run
            return await self._around(name, arguments, lambda: method(*arguments, **keywords))

        return intercepted


async def create_each(segments: Any, names: Sequence[str], **fields: Any) -> list[str]:
    """Create segments by a call for each; return those that existed."""

    async def existed(name: str) -> bool:
        try:
            await segments.create_segment(name, **fields)
        except SegmentExistsError:
            return True
        return False

    found = await gather_bounded(names, existed)
    return [name for name, existing in zip(names, found, strict=True) if existing]


async def info_of_each(segments: Any, names: Sequence[str]) -> list[Any]:
    """Return properties by a call for each segment; None for a missing one."""

    async def one(name: str) -> Any:
        try:
            return await segments.segment_info(name)
        except NoSuchSegmentError:
            return None

    return await gather_bounded(names, one)
