"""Segment operations that workflows can repeat (docs/design.md#controller)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tailrace.common.errors import NoSuchSegmentError, SegmentExistsError, SegmentSealedError, SegmentTruncatedError
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.common.stream_policies import StreamConfig
    from tailrace.controller.metadata.ports import SegmentInfo, SegmentStorePort

_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge of several sources.

    ``length`` is the target's, 0 when it is missing. ``refused`` holds the sources that exist and can never be merged
    into the target, each with the reason.
    """

    length: int
    refused: Mapping[str, str]


@dataclass(slots=True)
class Progress:
    """How far work has come that changes more segments than a step has time for: the next step goes on there.

    It is in memory only. A controller that resumes the work begins again, which costs calls and does no harm.
    """

    work: bytes = b""
    """Names the work by ids that never come again."""
    position: int = 0
    """Where the next step goes on."""
    end: int = 0
    """The position at which the work has ended, once it is known."""
    ahead: list[int] = field(default_factory=list)
    """The next segments, as far as they are remembered."""

    def of(self, work: bytes) -> Progress:
        """Begin again, unless that is the work of the step before."""
        if work != self.work:
            self.work, self.position, self.end, self.ahead = work, 0, 0, []
        return self


class SegmentOperations:
    """Idempotent operations on many segments: an operation that was done before succeeds."""

    def __init__(self, port: SegmentStorePort) -> None:
        self.port = port

    async def create(self, names: Sequence[str], config: StreamConfig) -> list[str]:
        """Create segments that measure the rate of the scaling policy; return those that existed and were used.

        An earlier run of the same step leaves empty ones. Bytes or a seal come from clients that had learned of them,
        or from a life of the stream that its records do not know (`leftovers`).
        """

        existing = await self.port.create_segments(
            names,
            scale_type=int(config.scaling.kind),
            target_rate=config.scaling.target_rate,
            rollover_bytes=config.rollover_bytes,
        )
        return await self.used(existing)

    async def used(self, names: Sequence[str]) -> list[str]:
        """Return those of the segments that exist with bytes, or sealed."""
        found = await self.port.segment_infos(names) if names else []
        return [name for name, info in zip(names, found, strict=True) if _is_used(info)]

    async def create_tables(self, names: Sequence[str], key_length: int) -> None:
        """Create table segments."""

        async def one(name: str) -> None:
            try:
                await self.port.create_table(name, key_length)
            except SegmentExistsError:
                return

        await gather_bounded(names, one)

    async def update_policy(self, names: Sequence[str], config: StreamConfig) -> None:
        """Change the rate that segments measure. One that was sealed or deleted directly measures none."""

        async def one(name: str) -> None:
            try:
                with contextlib.suppress(SegmentSealedError):
                    await self.port.update_policy(name, int(config.scaling.kind), config.scaling.target_rate)
            except NoSuchSegmentError:
                _LOG.error("segment to update does not exist", segment=name)

        await gather_bounded(names, one)

    async def seal(self, names: Sequence[str]) -> list[int]:
        """Seal segments; return their final lengths, 0 for a segment that was deleted directly."""

        async def one(name: str) -> int:
            try:
                with contextlib.suppress(SegmentSealedError):  # by an earlier run of the same step
                    await self.port.seal_segment(name)
                return (await self.port.segment_info(name)).length
            except NoSuchSegmentError:
                _LOG.error("segment to seal does not exist, its length counts as 0", segment=name)
                return 0

        return await gather_bounded(names, one)

    async def truncate(self, offsets: Sequence[tuple[str, int]]) -> None:
        """Set start offsets. A segment with a later start offset keeps it; one that was deleted is left out."""

        async def one(item: tuple[str, int]) -> None:
            try:
                await self.port.truncate_segment(*item)
            except SegmentTruncatedError:
                if (await self.port.segment_info(item[0])).start_offset < item[1]:
                    raise
            except NoSuchSegmentError:
                _LOG.error("segment to truncate does not exist", segment=item[0])

        await gather_bounded(offsets, one)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete segments."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_segment(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def delete_tables(self, names: Sequence[str]) -> None:
        """Delete table segments and their contents."""

        async def one(name: str) -> None:
            try:
                await self.port.delete_table(name)
            except NoSuchSegmentError:
                return

        await gather_bounded(names, one)

    async def merge(self, targets: Sequence[tuple[str, Sequence[str]]]) -> list[Merged]:
        """Merge each target's sources in order.

        Only for transactions whose commit is decided: a missing source counts as merged. A sealed or missing target
        and a truncated source are no errors: the sources that they concern are in `Merged.refused`.
        """

        async def one(item: tuple[str, Sequence[str]]) -> Merged:
            return await self._merge_into(*item)

        return await gather_bounded(targets, one)

    async def _merge_into(self, target: str, sources: Sequence[str]) -> Merged:
        left = list(sources)
        refused: dict[str, str] = {}
        while left:  # each turn but the last finds one truncated source
            try:
                lengths = await self.port.merge_batch(target, left)
                return Merged(lengths[-1], refused)
            except SegmentTruncatedError as error:
                if error.segment not in left:
                    raise
                refused[error.segment] = f"{error.segment} was truncated"
                left.remove(error.segment)
            except (SegmentSealedError, NoSuchSegmentError) as error:
                if error.segment != target:
                    raise
                found = [await self._info(source) for source in left]  # after the refusal: what exists now stays
                refused.update((name, str(error)) for name, info in zip(left, found, strict=True) if info is not None)
                break
        known = await self._info(target)
        return Merged(0 if known is None else known.length, refused)

    async def infos(self, names: Sequence[str]) -> Sequence[SegmentInfo | None]:
        """Return properties; None for a missing segment."""
        return await self.port.segment_infos(names) if names else []

    async def _info(self, name: str) -> SegmentInfo | None:
        try:
            return await self.port.segment_info(name)
        except NoSuchSegmentError:
            return None

    async def lengths(self, names: Sequence[str]) -> list[int]:
        """Return lengths, counted from offset 0."""

        async def one(name: str) -> int:
            return (await self.port.segment_info(name)).length

        return await gather_bounded(names, one)

    async def start_offsets(self, names: Sequence[str]) -> list[int]:
        """Return start offsets; 0 for a missing segment."""

        async def one(name: str) -> int:
            try:
                return (await self.port.segment_info(name)).start_offset
            except NoSuchSegmentError:
                return 0

        return await gather_bounded(names, one)


def _is_used(info: SegmentInfo | None) -> bool:
    return info is not None and (info.length > 0 or info.sealed)
