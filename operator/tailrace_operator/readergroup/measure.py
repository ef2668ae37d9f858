"""Measure the lag of a group: the bytes between its positions and the tails of its streams.

See docs/protocol/reader-group-state.md#reporting.

A segment counts from the group's position, or from its start if it was truncated past that. Successors of a segment
that is not read completely count from their start. End cuts limit both.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.group.report import published_cut, segments_after
from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.model import StreamName
from tailrace.client.retry import without_traceback
from tailrace.common import limits, names
from tailrace.common.errors import NoSuchSegmentError, UnavailableError
from tailrace_operator.readergroup.history import NOTHING_UNREAD, Age, LengthHistory, oldest

if TYPE_CHECKING:
    import uuid

    from tailrace.client.async_client import Client
    from tailrace.client.group.view import GroupView
    from tailrace.client.types import SegmentInfo
    from tailrace.common.stream_cut import StreamCut


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one measurement.

    ``published``: cuts that the group sent to the controller, by ``scope/stream``. ``generation``: that of the state.
    """

    online_readers: int
    unassigned_segments: int
    lag_bytes: int
    age: Age
    published: Mapping[str, StreamCut]
    group_id: uuid.UUID | None
    generation: int = 0


@dataclass(slots=True)
class Histories:
    """Length histories of segments; the least recently used one is forgotten first."""

    _known: OrderedDict[str, LengthHistory] = field(default_factory=OrderedDict)

    def of(self, segment: str) -> LengthHistory:
        """Return the history of a segment; empty for one that was never measured."""
        history = self._known.setdefault(segment, LengthHistory())
        self._known.move_to_end(segment)
        if len(self._known) > limits.OPERATOR_LAG_SEGMENTS_MAX:
            self._known.popitem(last=False)
        return history


class SegmentLook:
    """Segment properties during one measurement of a cluster; each segment is queried once for all its groups.

    Also one that does not answer: else each group that reads it would wait for it as long.
    """

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._infos: dict[str, SegmentInfo | UnavailableError | None] = {}

    async def info(self, client: Client, segment: str) -> SegmentInfo | None:
        """Return the properties; None for a deleted segment. Raises UnavailableError."""
        if segment not in self._infos:
            try:
                self._infos[segment] = await client.context.segments.segment_info(segment)
            except NoSuchSegmentError:
                self._infos[segment] = None
            except UnavailableError as error:
                self._infos[segment] = error
        found = self._infos[segment]
        if isinstance(found, UnavailableError):
            raise without_traceback(found)
        return found

    def age(self, segment: str, length: int, position: int, empty_at_s: float | None) -> Age:
        """Return the age of the byte at a position; `empty_at_s`: a time at which the segment did not exist yet."""
        history, now_s = self._histories.of(segment), asyncio.get_running_loop().time()
        if not history and empty_at_s is not None:
            history.note(empty_at_s, 0)
        history.note(now_s, length)
        return history.age(position, now_s)


class Seen(NamedTuple):
    """When a stream was last measured for a group, and its newest epoch then."""

    time_s: float
    epoch: int


async def measure(
    client: Client, group: str, positions: GroupView, look: SegmentLook, seen: dict[str, Seen], *, publishes: bool
) -> Sample:
    """Measure one group, named ``scope/group``. `seen` holds the state of the last measurement and is updated.

    Raises:
        UnavailableError: a segment store or the controller does not answer.
    """
    cuts = await complete_cuts(client.context, positions.offsets)
    total, ages, published = 0, [NOTHING_UNREAD], {}
    for scoped in positions.streams:
        stream = StreamName.parse(scoped)
        cut = cuts.get(scoped)
        if cut is not None:  # otherwise the group has read all of the stream that it is to read
            unread, age = await _behind(client, stream, cut.positions, positions.ends, look, seen)
            total += unread
            ages.append(age)
        if publishes and (last := await published_cut(client.context, stream, group)) is not None:
            published[scoped] = last
    return Sample(
        online_readers=positions.online_readers,
        unassigned_segments=positions.unassigned_segments,
        lag_bytes=total,
        age=oldest(ages),
        published=published,
        group_id=positions.group_id,
        generation=positions.generation,
    )


async def _behind(
    client: Client,
    stream: StreamName,
    cut: Mapping[int, int],
    ends: Mapping[str, int],
    look: SegmentLook,
    seen: dict[str, Seen],
) -> tuple[int, Age]:
    before, total, ages = seen.get(str(stream)), 0, [NOTHING_UNREAD]
    now_s = asyncio.get_running_loop().time()
    identifiers = await segments_after(client.context, stream, cut, ends)
    for identifier in identifiers:
        segment = stream.segment(identifier)
        info = await look.info(client, segment)
        if info is None:
            continue
        position = max(cut.get(identifier, 0), info.start_offset, 0)
        is_new = before is not None and names.segment_epoch(identifier) > before.epoch
        age = look.age(segment, info.length, position, before.time_s if before is not None and is_new else None)
        unread = min(info.length, ends.get(segment, info.length)) - position
        if unread > 0:
            total += unread
            ages.append(age)
    newest = max((names.segment_epoch(identifier) for identifier in identifiers), default=0)
    seen[str(stream)] = Seen(now_s, newest)
    return total, oldest(ages)
