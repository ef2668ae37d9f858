"""Read for the command line, through a shared reader group or a temporary one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
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
from tailrace.common.errors import (
    BadRequestError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
    SegmentTruncatedError,
    UnavailableError,
)
from tailrace.common.stream_cut import StreamCut

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import ReaderGroupConfig

Write = Callable[[str, int, list[bytes]], None]
"""Takes events of a segment, and the offset of the first."""

BATCH_EVENTS: Final = 1000
LOOK_MS: Final = 500
CHECKPOINT_MS: Final = 250
"""Readers follow a scale at a checkpoint, so frequent checkpoints get a reader through many scales quickly."""
SEGMENTS_MEASURED_MAX: Final = 1000
LEAVE_TEMPORARY_S: Final = 2.0
LEAVE_SHARED_S: Final = 10.0
"""Longer, because a reader that did not leave keeps its segments from other readers."""


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
            await _read(client, stream, group, write, bar, limit=limit, idle_ms=None)
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
    """Join a group, created if missing; without `follow` read until no event arrives for `idle_ms`."""
    await _check_exists(client, stream)
    manager = ReaderGroupManager(client, stream.scope)
    config = await _config_of(client, stream.scope, group)
    if config is None:
        start = await _start_cut(client, stream, begin) if begin is not None else None
        await manager.create(group, group_config({stream: start}))
    elif str(stream) not in config.starting:
        raise BadRequestError(f"reader group {stream.scope}/{group} does not read {stream}")
    elif begin is not None:
        raise BadRequestError(f"reader group {stream.scope}/{group} exists and continues at its position: omit --from")
    await _read(client, stream, group, write, Bar(), limit=limit, idle_ms=None if follow else idle_ms)


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
) -> None:
    """Read until the group's end, `limit` events, or no event for `idle_ms`."""
    left = limit
    name = f"cli-{uuid.uuid4().hex}"
    reader = EventReader(client, stream.scope, group, name)
    holders = await _holders(client, stream.scope, group, name)
    await reader.start()
    try:
        while left is None or left > 0:
            try:
                batch = await reader.read_batch(min(BATCH_EVENTS, left or BATCH_EVENTS), idle_ms or LOOK_MS)
            except SegmentTruncatedError as error:
                note(f"tailrace: events are missed: {error}")
                continue
            if batch is not None and batch.events:
                write(batch.segment, batch.offset, batch.events)
                bar.advance(sum(map(len, batch.events)) + 8 * len(batch.events))
                left = None if left is None else left - len(batch.events)
            elif reader.end_of_data or (batch is None and idle_ms is not None):
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
