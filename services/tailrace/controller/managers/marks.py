"""Store writers' times and positions, of which watermarks are made.

See docs/protocol/server.md#watermarks.

A writer that has a mark renews it under the mark's own version, and leaves the stream's root alone: many writers note
times without a conflict. Whatever takes a writer from the root removes the mark first, so the renewal fails then. The
first mark of a writer is written together with the root.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NoSuchStreamError, OverloadedError, UnavailableError
from tailrace.common.names import check_entity_name
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import goes_back, joined
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import StreamRecord, WriterMark
from tailrace.controller.metadata.transitions import require
from tailrace.controller.workflows import marked
from tailrace.controller.workflows.commit_times import writers_of
from tailrace.controller.workflows.writer_marks import has_room, make_room, mark_in, with_writer

if TYPE_CHECKING:
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


class NoteResult(enum.Enum):
    """The outcome of noting a time."""

    SUCCESS = "success"
    INVALID_TIME = "invalid time"
    INVALID_POSITION = "invalid position"


class MarkManager:
    """Store the writers' marks of all streams."""

    def __init__(self, context: WorkflowContext, cuts: CutReader) -> None:
        self._context = context
        self._cuts = cuts

    async def note(self, key: StreamKey, writer: str, timestamp: int, position: dict[int, int]) -> NoteResult:
        """Store a writer's time and position; neither may go back.

        For keys that the position does not reach, as after the writer's restart, the last position stays.

        Raises:
            InvalidNameError, NoSuchStreamError, OverloadedError (too many writers).
        """
        check_entity_name("writer", writer)
        item = key.writer(writer)
        snapshot = await self._context.store.read(key, [key.root, item])
        root = require(snapshot.get(StreamRecord, key.root), key)
        before = mark_in(snapshot, item, root, writer)
        reached = await self._reached(key, root, before, position)
        if reached is None:
            return NoteResult.INVALID_POSITION
        if not has_room(root, writer):
            await make_room(self._context, key)
        mark = WriterMark(timestamp, reached, self._context.clock.now_ms())

        def decide(found: StreamRecord | None, now: Snapshot) -> Change[NoteResult]:
            current = require(found, key)
            if current.state is StreamState.DELETING:  # a mark that is written now would stay
                raise NoSuchStreamError(f"stream {key} is being deleted")
            stored = mark_in(now, item, current, writer)
            if current.incarnation != root.incarnation:
                return Change(NoteResult.INVALID_POSITION)  # the position is of the stream that was deleted meanwhile
            if stored is not None and timestamp < stored.timestamp:
                return Change(NoteResult.INVALID_TIME)
            if stored is not None and (stored.timestamp, stored.position, stored.alive) == (timestamp, reached, True):
                return Change(NoteResult.SUCCESS)  # stored by an earlier attempt of this call whose reply was lost
            if stored is not None and stored != before:
                return Change(NoteResult.INVALID_POSITION)  # the same writer noted two times at once
            if stored is not None:
                return Change(NoteResult.SUCCESS, {item: mark})  # see the module's text
            if not has_room(current, writer):
                raise OverloadedError(
                    f"stream {key} has {limits.WRITER_MARKS_PER_STREAM_MAX} writers that noted times within the last"
                    f" {limits.WRITER_MARK_IDLE_MAX_MS / 60_000:g} minutes or longer, which is the maximum"
                )
            return Change(NoteResult.SUCCESS, {item: mark, key.root: with_writer(current, writer)})

        return await marked.change(self._context, key, [item], decide)

    async def _reached(
        self, key: StreamKey, root: StreamRecord, before: WriterMark | None, position: dict[int, int]
    ) -> dict[int, int] | None:
        """Return the position joined with the writer's last one; None when the stream has it not, or it goes back."""
        if not position or any(offset < 0 for offset in position.values()):
            return None
        last = before.position if before is not None else {}
        try:
            segments = await self._cuts.named_segments(key, root, position, *([last] if last else []))
        except BadRequestError:
            return None
        if any(identifier not in segments for identifier in position) or goes_back(position, last, segments):
            return None
        return joined(position, last, segments)

    async def remove(self, key: StreamKey, writer: str) -> bool:
        """Mark a writer as removed; return False when it never noted a time.

        Raises:
            InvalidNameError, NoSuchStreamError. UnavailableError: commits of the writer are not merged yet.
        """
        check_entity_name("writer", writer)
        await self._until_merged(key, writer)
        item = key.writer(writer)

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
            stored = mark_in(snapshot, item, require(found, key), writer)
            if stored is None:
                return Change(False)
            if not stored.alive:
                return Change(True)
            return Change(True, {item: msgspec.structs.replace(stored, alive=False)})

        return await self._context.store.change(key, [item], decide)

    async def _until_merged(self, key: StreamKey, writer: str) -> None:
        """Wait for the commits of a writer that carry times: each of them makes its mark, or renews it.

        Raises:
            NoSuchStreamError. UnavailableError: they last too long.
        """
        store, loop = self._context.store, asyncio.get_running_loop()
        unmerged = _unmerged(require(await store.load(key), key))
        found = await writers_of(self._context, key, unmerged)
        own = {transaction_id for transaction_id, its_writer in found.items() if its_writer == writer}
        ends_at_s, pause_s = loop.time() + limits.WRITER_REMOVAL_COMMITS_S, limits.TRANSACTION_COMMIT_PASS_INTERVAL_S
        while not own.isdisjoint(unmerged):
            if loop.time() >= ends_at_s:
                raise UnavailableError(
                    f"commits of writer {writer} on stream {key} are not merged after"
                    f" {limits.WRITER_REMOVAL_COMMITS_S:g} s; retry"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.WRITER_REMOVAL_LOOK_MAX_S)
            unmerged = _unmerged(require(await store.load(key), key))


def _unmerged(root: StreamRecord) -> tuple[bytes, ...]:
    """Return the transactions whose commit is decided and not completed."""
    return (*root.commit_batch, *root.commit_queue)
