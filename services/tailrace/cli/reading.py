"""Read for the command line, through a shared reader group or a temporary one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.cli.groups import Holders
from tailrace.cli.output import Bar, note, progress_bar
from tailrace.cli.positions import check_cut_of
from tailrace.cli.session import tidy_up
from tailrace.cli.temporary import group_name, maker_of, remove_groups_left_behind, this_process
from tailrace.cli.values import TAIL
from tailrace.client.group.reader_group import ReaderGroupManager, group_config
from tailrace.client.model import StreamName
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.stream_manager import StreamManager
from tailrace.common import names
from tailrace.common.errors import (
    BadRequestError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
    NotFoundError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.common.stream_cut import StreamCut

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import ReaderGroupConfig

Write = Callable[[str, int, list[bytes]], Awaitable[None]]
"""Takes events of a segment, and the offset of the first."""

BATCH_EVENTS: Final = 1000
LOOK_MS: Final = 500
CHECKPOINT_MS: Final = 250
"""Readers follow a scale at a checkpoint, so frequent checkpoints get a reader through many scales quickly."""
SEGMENTS_MEASURED_MAX: Final = 1000
LEAVE_TEMPORARY_S: Final = 2.0
LEAVE_SHARED_S: Final = 10.0
"""Longer, because a reader that did not leave keeps its segments from other readers."""


SEGMENTS_TO_COME_S: Final = 10.0
"""For which a read waits at least for segments that it is to read, or for two automatic checkpoints."""

OTHERS_NAMED_MAX: Final = 3
"""Streams of a group that a refusal names."""


class _SegmentsToCome:
    """Segments that a reader does not have yet: those of no reader, and the successors of what it read to the end."""

    def __init__(self, client: ClientContext, group: str, reader: EventReader, checkpoint_ms: int) -> None:
        self._client = client
        self._group = group
        self._reader = reader
        self._wait_s = max(SEGMENTS_TO_COME_S, 2 * checkpoint_ms / 1000)
        self._until_s: float | None = None
        self._has_successors: dict[str, bool] = {}

    def timeout_ms(self, idle_ms: int) -> int:
        """Return how long the next read may wait."""
        return idle_ms if self._until_s is None else max(idle_ms, LOOK_MS)

    def note_progress(self) -> None:
        """Begin the wait again: there was an event, or a checkpoint."""
        self._until_s = None

    async def are_awaited(self) -> bool:
        """Return whether there are some, and the wait for them is not over."""
        if not self._reader.unassigned_segments and not await self._successors():
            return False
        now_s = asyncio.get_running_loop().time()
        if self._until_s is None:
            self._until_s = now_s + self._wait_s
        if now_s < self._until_s:
            return True
        note(
            f"tailrace: reader group {self._group} has segments that no reader has yet, perhaps with events; "
            "readers get to what follows a scale at the group's next checkpoint"
        )
        return False

    async def _successors(self) -> bool:
        """Return whether segments follow those that were read to the end, and were not deleted."""
        for segment in self._reader.ended_segments:
            if segment not in self._has_successors:
                name = names.parse_segment_name(segment)
                stream = StreamName(name.scope, name.stream)
                try:
                    found = await self._client.controller.successors(stream, name.identifier)
                except NotFoundError:
                    found = []
                self._has_successors[segment] = bool(found)
        return any(self._has_successors[segment] for segment in self._reader.ended_segments)


async def read_with_temporary_group(
    client: ClientContext,
    stream: StreamName,
    begin: str | StreamCut,
    write: Write,
    *,
    follow: bool,
    limit: int | None,
) -> None:
    """Read from `begin` through a temporary group; without `follow` up to the present tail."""
    await _check_exists(client, stream)
    end = None if follow else await StreamManager(client).tail(stream)
    start = await _start_cut(client, stream, begin)
    total = await _bytes_between(client, stream, start, end) if end is not None else None
    manager = ReaderGroupManager(client, stream.scope)
    group = group_name(this_process())
    config = group_config(
        {stream: start},
        end={stream: end} if end is not None else None,
        automatic_checkpoint_ms=CHECKPOINT_MS,
        group_refresh_ms=LOOK_MS,
    )
    await manager.create(group, config)
    try:
        await remove_groups_left_behind(client, stream.scope, group)
        # No bar when events are printed on a terminal.
        with progress_bar(f"reading {stream}", total, shown=total is not None and not _is_terminal()) as bar:
            await _read(client, stream, group, write, bar, limit=limit, idle_ms=None, checkpoint_ms=CHECKPOINT_MS)
    finally:
        await tidy_up(manager.delete(group))


async def read_with_group(
    client: ClientContext,
    stream: StreamName,
    group: str,
    begin: str | StreamCut | None,
    write: Write,
    *,
    follow: bool,
    limit: int | None,
    idle_ms: int,
) -> None:
    """Join a group, created if missing; without `follow` read until no event arrives for `idle_ms`.

    It then goes on while there are segments to come, as after a scale. Raises BadRequestError for a group that reads
    another stream, or others too: their events would be printed, and count as read.
    """
    await _check_exists(client, stream)
    manager = ReaderGroupManager(client, stream.scope)
    config = await _config_of(client, stream.scope, group)
    if config is None:
        start = await _start_cut(client, stream, begin) if begin is not None else None
        config = group_config({stream: start})
        await manager.create(group, config)
    elif str(stream) not in config.starting:
        raise BadRequestError(f"reader group {stream.scope}/{group} does not read {stream}")
    elif others := sorted(config.starting.keys() - {str(stream)}):
        more = f" and {len(others) - OTHERS_NAMED_MAX} more" if len(others) > OTHERS_NAMED_MAX else ""
        named = ", ".join(others[:OTHERS_NAMED_MAX]) + more
        raise BadRequestError(
            f"reader group {stream.scope}/{group} reads {named}, too: this command reads groups of one stream"
        )
    elif begin is not None:
        raise BadRequestError(f"reader group {stream.scope}/{group} exists and continues at its position: omit --from")
    checkpoint_ms = config.automatic_checkpoint_ms
    idle = None if follow else idle_ms
    await _read(client, stream, group, write, Bar(), limit=limit, idle_ms=idle, checkpoint_ms=checkpoint_ms)


async def _config_of(client: ClientContext, scope: str, group: str) -> ReaderGroupConfig | None:
    try:
        return await client.controller.reader_group_config(scope, group)
    except NoSuchReaderGroupError:
        return None


async def _check_exists(client: ClientContext, stream: StreamName) -> None:
    if not await client.controller.stream_exists(stream):
        raise NoSuchStreamError(f"stream {stream} does not exist")


async def _start_cut(client: ClientContext, stream: StreamName, begin: str | StreamCut) -> StreamCut:
    if isinstance(begin, StreamCut):
        check_cut_of(begin, stream)
        return begin
    streams = StreamManager(client)
    return await (streams.tail if begin == TAIL else streams.head)(stream)


async def _read(
    client: ClientContext,
    stream: StreamName,
    group: str,
    write: Write,
    bar: Bar,
    *,
    limit: int | None,
    idle_ms: int | None,
    checkpoint_ms: int,
) -> None:
    """Read until the group's end, `limit` events, or no event for `idle_ms` and no segments to come."""
    left = limit
    name = f"cli-{uuid.uuid4().hex}"
    reader = EventReader(client, stream.scope, group, name)
    holders = await _holders(client, stream.scope, group, name)
    to_come = _SegmentsToCome(client, f"{stream.scope}/{group}", reader, checkpoint_ms)
    await reader.start()
    try:
        while left is None or left > 0:
            try:
                wait_ms = to_come.timeout_ms(idle_ms or LOOK_MS)
                batch = await reader.read_batch(min(BATCH_EVENTS, left or BATCH_EVENTS), wait_ms)
            except SegmentTruncatedError as error:
                note(f"tailrace: events are missed: {error}")
                continue
            if batch is not None:
                to_come.note_progress()
            if batch is not None and batch.events:
                try:
                    await write(batch.segment, batch.offset, batch.events)
                except BaseException:
                    reader.take_back()  # not all of them were written: the group reads them again
                    raise
                bar.advance(sum(map(len, batch.events)) + 8 * len(batch.events))
                left = None if left is None else left - len(batch.events)
            elif reader.end_of_data or (batch is None and idle_ms is not None and not await to_come.are_awaited()):
                await _look(holders, at_end=not reader.end_of_data)
                return
            await _look(holders)
    finally:
        if maker_of(group) is not None:  # the group is deleted with its only reader
            await tidy_up(reader.close(), deadline_s=LEAVE_TEMPORARY_S)
        else:
            held = f"reader {name} still belongs to reader group {stream.scope}/{group} and holds its segments"
            await tidy_up(reader.close(), deadline_s=LEAVE_SHARED_S, else_=held)


async def _holders(client: ClientContext, scope: str, group: str, name: str) -> Holders | None:
    """Return what watches the other readers of a group that may have some."""
    if maker_of(group) is not None:
        return None
    opened = await ReaderGroupManager(client, scope).open(group)
    return Holders(client, opened, name, lambda text: note(f"tailrace: {text}"))


async def _look(holders: Holders | None, *, at_end: bool = False) -> None:
    """Report other readers that hold what is not read, as far as the server answers."""
    if holders is None:
        return
    try:
        if at_end:
            await holders.at_end()
        else:
            await holders.look(asyncio.get_running_loop().time())
    except UnavailableError as error:
        note(f"tailrace: the other readers of the group cannot be looked at: {error}")


async def _bytes_between(client: ClientContext, stream: StreamName, start: StreamCut, end: StreamCut) -> int | None:
    """Return the bytes between two cuts; None when that needs too many requests."""
    identifiers = await client.controller.segments_between(stream, start.positions, end.positions)
    if len(identifiers) > SEGMENTS_MEASURED_MAX:
        return None
    total = 0
    for identifier in identifiers:
        properties = await client.segments.segment_info(stream.segment(identifier))
        first = max(start.positions.get(identifier, 0), properties.start_offset)
        total += max(0, end.positions.get(identifier, properties.length) - first)
    return total


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
