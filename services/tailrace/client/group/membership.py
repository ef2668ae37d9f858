"""Join and leave a group, share its segments and answer its checkpoints.

See docs/protocol/reader-group-state.md#checkpoints, docs/protocol/reader-group-state.md#distribution.

All of this happens inside the reader's read calls, in the order of the Java reader. By the rules of
docs/protocol/reader-group-state.md#rules-for-our-client, a due checkpoint is answered first, and all writes with a
precondition are conditional.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.group.liveness import HeartbeatWriter, Watch
from tailrace.client.group.publisher import Publisher
from tailrace.client.group.reader_group import UNLIMITED_OFFSET, initial_record
from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.model import StreamName
from tailrace.common import limits, names
from tailrace.common.errors import (
    AlreadyExistsError,
    NoSuchReaderGroupError,
    NotFoundError,
    ReinitializationRequiredError,
)
from tailrace.common.logs import LibraryLog
from tailrace.common.ports import new_uuid

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.group.state.state import GroupState
    from tailrace.client.group.synchronizer import GroupSynchronizer
    from tailrace.common.ranges import KeyRange


_LOG = LibraryLog(__name__)

Positions = Callable[[], dict[str, int]]


class Taken(NamedTuple):
    """An acquired segment with its start and end offsets."""

    segment: str
    offset: int
    end_offset: int


class Timers:
    """When each of the reader's periodic tasks is due, in seconds of the loop's clock."""

    def __init__(self, now_s: float, first_acquire_s: float) -> None:
        self.fetch_s = now_s
        self.acquire_s = now_s + first_acquire_s
        self.release_s = now_s + policy.TIME_UNIT_S
        self.lag_s = now_s + policy.TIME_UNIT_S
        self.checkpoint_s = now_s + policy.TIME_UNIT_S
        self.config_s = now_s + policy.TIME_UNIT_S


def _removal(reader: str, last: r.Heartbeat) -> Callable[[GroupState], list[r.Update]]:
    """Return what removes `reader`, at the positions in the state, while `last` is still its newest heartbeat."""
    return lambda state: [r.RemoveReader(reader, {})] if state.heartbeats.get(reader) == last else []


class GroupMember:
    """One reader's membership in its group. Not for concurrent use."""

    def __init__(
        self,
        context: ClientContext,
        synchronizer: GroupSynchronizer,
        scope: str,
        group: str,
        reader: str,
        dead_after_s: float | None = None,
    ) -> None:
        self.reader = reader
        self._context = context
        self._synchronizer = synchronizer
        self._scope = scope
        self._group = group
        self._distance = 0
        self._timers = Timers(0.0, 0.0)
        self._heart = None if dead_after_s is None else HeartbeatWriter(context.entropy, reader, dead_after_s)
        self._watch = None if dead_after_s is None else Watch(dead_after_s)
        self._publisher = Publisher(context, synchronizer, f"{scope}/{group}")

    @property
    def state(self) -> GroupState:
        """Return the last fetched state of the group."""
        return self._synchronizer.state

    @property
    def version(self) -> int:
        """Return a number that changes with the state."""
        return self._synchronizer.version

    @property
    def owned(self) -> Mapping[str, int]:
        """Return the segments that the group assigns to this reader. Raises ReinitializationRequiredError."""
        owned = self.state.assigned.get(self.reader)
        if owned is None or not self._is_member(self.state):
            raise ReinitializationRequiredError(
                f"reader {self.reader} no longer belongs to group {self._scope}/{self._group}; create a new reader"
            )
        return owned

    def next_look_s(self) -> float:
        """Return the loop time at which the next periodic task is due."""
        return min(self._timers.fetch_s, self._now_s() + policy.TIME_UNIT_S)

    # -- joining and leaving ------------------------------------------------------------------------------------

    async def join(self, first_acquire_s: float = 0.0) -> None:
        """Join the group; first wait for the end of a silent reader of that name, as `_outlast_a_namesake` does.

        Raises AlreadyExistsError when a reader of that name is online.
        """

        def add(state: GroupState) -> list[r.Update]:
            if state.is_online(self.reader):
                raise AlreadyExistsError(f"reader {self.reader} is online in group {self._scope}/{self._group} already")
            return [r.AddReader(self.reader), *([self._heart.beat(0)] if self._heart is not None else [])]

        await self._synchronizer.fetch()
        await self._outlast_a_namesake()
        await self._synchronizer.update(add)
        self._timers = Timers(self._now_s(), first_acquire_s)
        if self._heart is not None:
            self._heart.start(self._write_heartbeat)

    async def _outlast_a_namesake(self) -> None:
        """Declare a reader of this name offline that promised heartbeats and is silent for the time that it announced.

        Return at its next heartbeat: then it lives. This is for the only reader of a group, which no other one declares
        dead when it crashed.
        """
        last = self.state.heartbeats.get(self.reader)
        if self._watch is None or last is None:
            return
        announced_s = min(limits.READER_DEAD_AFTER_MAX_S, last.dead_after_ms / 1000)
        dead_after_s = max(limits.READER_DEAD_AFTER_MIN_S, announced_s)
        pause_s = min(limits.READER_GROUP_POLL_S, dead_after_s / limits.READER_HEARTBEATS_PER_DEAD_AFTER)
        ends_at_s = self._now_s() + limits.READER_NAMESAKE_WATCHES_MAX * dead_after_s
        watch = Watch(dead_after_s)
        group = f"{self._scope}/{self._group}"
        _LOG.info("reader_of_this_name_watched", reader=self.reader, group=group, dead_after_s=dead_after_s)
        while self.state.heartbeats.get(self.reader) == last and self._now_s() < ends_at_s:
            if self.reader in watch.look(self.state, self._now_s()):
                await self._synchronizer.update(_removal(self.reader, last))
                return
            await asyncio.sleep(pause_s)
            await self._synchronizer.fetch()

    async def _write_heartbeat(self) -> None:
        assert self._heart is not None
        await self._synchronizer.update_unconditionally([self._heart.beat(max(0, self._distance))])

    async def leave(self, positions: Mapping[str, int]) -> None:
        """Leave the group; the segments become free at `positions`. A reader of a deleted group has left it."""
        if self._heart is not None:
            await self._heart.stop()
        with contextlib.suppress(NoSuchReaderGroupError):
            await self._publisher.stop()
            await self._synchronizer.fetch()
            await self._synchronizer.update(
                lambda state: [r.RemoveReader(self.reader, dict(positions))] if self._is_member(state) else []
            )

    def _is_member(self, state: GroupState) -> bool:
        """Return whether this reader is online, and not another one of its name that started later."""
        heartbeat = state.heartbeats.get(self.reader)
        other = self._heart is not None and heartbeat is not None and heartbeat.session != self._heart.session
        return state.is_online(self.reader) and not other

    # -- following the group ------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Fetch the state when it is due."""
        now_s = self._now_s()
        if now_s >= self._timers.fetch_s:
            refresh_s = self.state.config.group_refresh_ms / 1000
            self._timers.fetch_s = now_s + min(refresh_s, self._heart.interval_s if self._heart else refresh_s)
            await self._synchronizer.fetch()
            await self._remove_the_dead()
            await self._synchronizer.compact_sometimes()
            await self._finish_reset()
        await self._publisher.note_end()

    async def _remove_the_dead(self) -> None:
        """Declare readers offline that promised heartbeats and are silent; their segments become free."""
        if self._watch is None or not self._is_member(self.state):
            return
        for reader, last in self._watch.look(self.state, self._now_s()).items():
            if reader != self.reader:
                await self._synchronizer.update(_removal(reader, last))

    async def _finish_reset(self) -> None:
        """Write the new configuration if the client that reset the group failed halfway.

        See docs/protocol/reader-group-state.md#creating-and-resetting-groups.
        """
        if self._now_s() < self._timers.config_s:
            return
        self._timers.config_s = self._now_s() + limits.READER_GROUP_CONFIG_CHECK_S
        if not self.state.updating_config:
            return
        stored = await self._context.controller.reader_group_config(self._scope, self._group)
        if stored.generation > self.state.config.generation:
            initial = await initial_record(self._context, stored, without_deleted=True)
            await self._synchronizer.update(
                lambda state: [initial] if stored.generation > state.config.generation else []
            )

    def note_event(self, segment: str) -> None:
        """Update the distance to the tail after a returned event, as Java readers compute it.

        See docs/protocol/reader-group-state.md#distribution.
        """
        self._distance = self._context.clock.now_ms() - names.parse_segment_name(segment).identifier

    async def tell_positions(self, positions: Positions) -> None:
        """Report how far the segments were read, when it is due."""
        now_s = self._now_s()
        if now_s >= self._timers.lag_s and self._is_member(self.state):
            self._timers.lag_s = now_s + policy.lag_timer_s(self.state)
            await self._synchronizer.update_unconditionally([self._distance_update(self.state, positions())])

    def _distance_update(self, state: GroupState, positions: Mapping[str, int]) -> r.UpdateDistanceToTail:
        read = {(segment, state.range_of(segment)): offset for segment, offset in positions.items()}
        return r.UpdateDistanceToTail(self.reader, max(0, self._distance), read)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def due_checkpoint(self) -> str | None:
        """Return the oldest checkpoint that this reader must answer; none that is due for another one of its name."""
        return self.state.due_for(self.reader) if self._is_member(self.state) else None

    async def answer(self, checkpoint: str, positions: Mapping[str, int]) -> None:
        """Write this reader's positions for a checkpoint, unless the checkpoint was cancelled."""

        def give(state: GroupState) -> list[r.Update]:
            if not self._is_member(state) or self.reader not in state.due.get(checkpoint, ()):
                return []
            owned = state.assigned[self.reader]
            # A cancelled acquisition may have taken effect: such a segment is at the offset in the state.
            answered = {name: positions.get(name, offset) for name, offset in owned.items()}
            return [r.CheckpointReader(checkpoint, self.reader, answered)]

        await self._synchronizer.update(give)
        if not r.is_silent(checkpoint):
            self._restart_checkpoint_timer()

    async def begin_checkpoint(self) -> None:
        """Begin an automatic checkpoint when it is due and no other is open.

        See docs/protocol/reader-group-state.md#checkpoints.
        """
        interval_ms = self.state.config.automatic_checkpoint_ms
        if interval_ms <= 0 or self._now_s() < self._timers.checkpoint_s:
            return
        name = str(new_uuid(self._context.entropy))

        def create(state: GroupState) -> list[r.Update]:
            if policy.checkpoint_is_outstanding(state) or not self._is_member(state):
                return []
            return [r.CreateCheckpoint(name), r.ClearCheckpointsBefore(name)]

        self._restart_checkpoint_timer()
        await self._synchronizer.update(create)

    def _restart_checkpoint_timer(self) -> None:
        self._timers.checkpoint_s = self._now_s() + self.state.config.automatic_checkpoint_ms / 1000

    def publish(self) -> None:
        """Begin to publish the last checkpoint to the controller as the subscriber's cut, if so configured."""
        self._publisher.begin()

    # -- segments -----------------------------------------------------------------------------------------------

    async def complete(self, segment: str) -> bool:
        """Replace a segment that was read to its end by its successors, after an answered checkpoint.

        See docs/protocol/reader-group-state.md#distribution.
        """
        successors, ranges = await self._successors(segment)

        def finish(state: GroupState) -> list[r.Update]:
            if not self._is_member(state) or segment not in state.assigned[self.reader]:
                return []
            if state.due_for(self.reader) is not None:
                return []
            known = {segment: state.range_of(segment), **ranges}
            return [r.SegmentCompleted(self.reader, segment, successors, known)]

        done = bool(await self._synchronizer.update(finish))
        if done:
            self._timers.acquire_s = self._now_s()
        return done

    async def _successors(self, segment: str) -> tuple[dict[str, list[int]], dict[str, KeyRange | None]]:
        if segment in self.state.end_segments:
            return {}, {}
        name = names.parse_segment_name(segment)
        stream = StreamName(name.scope, name.stream)
        try:
            found = await self._context.controller.successors(stream, name.identifier)
        except NotFoundError:
            return {}, {}  # the stream was deleted, perhaps created again since: nothing follows the segment
        names_of = {successor.segment.identifier: stream.segment(successor.segment.identifier) for successor in found}
        predecessors = {names_of[item.segment.identifier]: list(item.predecessors) for item in found}
        return predecessors, {names_of[item.segment.identifier]: item.segment.key_range for item in found}

    async def release_one(self, positions: Mapping[str, int]) -> str | None:
        """Release and return a segment when this reader has clearly more than its share."""
        now_s = self._now_s()
        if now_s < self._timers.release_s or policy.segment_to_release(self.state, self.reader) is None:
            return None

        def release(state: GroupState) -> list[r.Update]:
            segment = policy.segment_to_release(state, self.reader) if self._is_member(state) else None
            if segment is None or segment not in positions:
                return []
            return [
                r.ReleaseSegment(self.reader, segment, positions[segment]),
                self._distance_update(state, {name: positions[name] for name in positions if name != segment}),
            ]

        updates = await self._synchronizer.update(release)
        self._restart_sharing_timers()
        return next((update.segment for update in updates if isinstance(update, r.ReleaseSegment)), None)

    async def acquire(self, positions: Positions) -> list[Taken]:
        """Acquire free segments when it is due."""
        now_s = self._now_s()
        if now_s < self._timers.acquire_s or self.due_checkpoint() is not None:
            return []
        if not self.state.unassigned:
            self._timers.acquire_s = now_s + policy.acquire_timer_s(self.state, self.reader)
            return []

        def take(state: GroupState) -> list[r.Update]:
            wanted = policy.segments_to_acquire(state, self.reader) if self._is_member(state) else []
            acquired: list[r.Update] = [r.AcquireSegment(self.reader, segment) for segment in wanted]
            return [*acquired, self._distance_update(state, positions())] if acquired else []

        updates = await self._synchronizer.update(take)
        self._restart_sharing_timers()
        taken = [update.segment for update in updates if isinstance(update, r.AcquireSegment)]
        return [self.taken(segment) for segment in taken]

    def taken(self, segment: str) -> Taken:
        """Return the start and end offsets of an owned segment."""
        return Taken(segment, self.owned[segment], self.state.end_segments.get(segment, UNLIMITED_OFFSET))

    def _restart_sharing_timers(self) -> None:
        now_s = self._now_s()
        self._timers.acquire_s = now_s + policy.acquire_timer_s(self.state, self.reader)
        self._timers.release_s = now_s + policy.release_timer_s(self.state, self.reader)
        self._timers.lag_s = now_s + policy.lag_timer_s(self.state)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
