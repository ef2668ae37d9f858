"""Create, reset and delete reader groups; checkpoints, stream cuts, offline readers.

See docs/protocol/reader-group-state.md#checkpoints, docs/protocol/reader-group-state.md#creating-and-resetting-groups,
docs/protocol/reader-group-state.md#reporting.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.group.stream_cuts import complete_cuts
from tailrace.client.group.synchronizer import GroupSynchronizer
from tailrace.client.group.view import positions_of
from tailrace.client.model import NO_GROUP_ID, ReaderGroupConfig, StreamName
from tailrace.client.retry import Backoff
from tailrace.client.tails import tail_cut
from tailrace.common import limits, names
from tailrace.common.errors import (
    AlreadyExistsError,
    BadRequestError,
    DeadlineError,
    IllegalStateError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
    NotFoundError,
    OverloadedError,
    TailraceError,
    WriteConflictError,
)
from tailrace.common.ports import new_uuid
from tailrace.common.stream_policies import StreamDataRetention
from tailrace.common.task_groups import gather_bounded

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.group.state.state import GroupState
    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_cut import StreamCut

UNLIMITED_OFFSET: Final = 2**63 - 1


def group_config(
    streams: Mapping[StreamName, StreamCut | None],
    *,
    end: Mapping[StreamName, StreamCut | None] | None = None,
    automatic_checkpoint_ms: int = 30_000,
    group_refresh_ms: int = 3_000,
    max_outstanding_checkpoints: int = 3,
    retention: StreamDataRetention = StreamDataRetention.NONE,
) -> ReaderGroupConfig:
    """Return the configuration of a group: `streams` with start cuts (None: head), and end cuts (None: no end).

    Raises:
        BadRequestError: no stream is given, or a cut belongs to another stream.
    """
    if not streams:
        raise BadRequestError("a reader group needs at least one stream")
    ends = end or {}
    _require_own(streams)
    _require_own(ends)
    return ReaderGroupConfig(
        automatic_checkpoint_ms=automatic_checkpoint_ms,
        group_refresh_ms=group_refresh_ms,
        starting={str(stream): cut for stream, cut in streams.items()},
        ending={str(stream): ends.get(stream) for stream in streams},
        max_outstanding_checkpoints=max_outstanding_checkpoints,
        retention=retention,
    )


def _require_own(cuts: Mapping[StreamName, StreamCut | None]) -> None:
    """Refuse a cut of another stream: one whose segments have the same ids would be taken for a position."""
    for stream, cut in cuts.items():
        if cut is not None and cut.scoped_name != str(stream):
            raise BadRequestError(f"the cut belongs to {cut.scoped_name}, not to {stream}")


class ReaderGroupManager:
    """Create, open, list and delete the reader groups of a scope."""

    def __init__(self, context: ClientContext, scope: str) -> None:
        self.scope = names.check_scope_name(scope)
        self._context = context

    async def create(self, group: str, config: ReaderGroupConfig) -> bool:
        """Create a group; return False when it exists with the same settings.

        A creation that was interrupted leaves a group without a state; this call replaces its settings.

        Raises:
            InvalidNameError, NoSuchScopeError, NotFoundError (a stream): nothing is left of the group.
            AlreadyExistsError: it exists with other settings.
        """
        names.check_entity_name("reader group", group)
        group_id = new_uuid(self._context.entropy) if config.group_id == NO_GROUP_ID else config.group_id
        asked = dataclasses.replace(config, group_id=group_id, generation=0)
        await self._require_streams(group, asked)
        stored = await self._context.controller.create_reader_group(self.scope, group, asked)
        if stored.generation > 0 and stored.same_settings(asked):
            return False
        synchronizer = await GroupSynchronizer.open(self._context, self.scope, group)
        await synchronizer.fetch()
        created = False
        if not synchronizer.has_state:
            first = dataclasses.replace(asked, group_id=stored.group_id, generation=stored.generation)
            created = await synchronizer.initialize(await self._first_record(group, first, ours=group_id))
        state = synchronizer.state.config
        if stored.same_settings(asked) and state.same_settings(asked):
            return created
        if state.generation != stored.generation or not state.same_settings(asked):
            raise AlreadyExistsError(f"reader group {self.scope}/{group} exists with another configuration")
        # The first state has the asked settings, the controller those of an interrupted creation.
        await ReaderGroup(self._context, self.scope, group, synchronizer).reset(asked)
        return True

    async def _require_streams(self, group: str, config: ReaderGroupConfig) -> None:
        """Raise NotFoundError for an unknown stream before the controller makes a group, unless the group exists."""
        try:
            await initial_record(self._context, config)
        except NotFoundError as error:
            try:
                await self._context.controller.reader_group_config(self.scope, group)
            except NoSuchReaderGroupError:
                raise error from None

    async def _first_record(self, group: str, config: ReaderGroupConfig, *, ours: uuid.UUID) -> r.Init:
        """Return the first state. When a stream was deleted meanwhile, delete the group if this call made it."""
        try:
            return await initial_record(self._context, config)
        except NotFoundError:
            if config.group_id == ours:
                with contextlib.suppress(TailraceError):  # what is left has no state, and a later creation uses it
                    await self._context.controller.delete_reader_group(self.scope, group, config.group_id)
            raise

    async def open(self, group: str) -> ReaderGroup:
        """Return a handle of an existing group. Raises NoSuchReaderGroupError."""
        synchronizer = await GroupSynchronizer.open(self._context, self.scope, group)
        await synchronizer.fetch()
        if not synchronizer.has_state:
            raise NoSuchReaderGroupError(f"reader group {self.scope}/{group} is not initialised")
        return ReaderGroup(self._context, self.scope, group, synchronizer)

    async def delete(self, group: str) -> None:
        """Delete a group. Raises NoSuchReaderGroupError."""
        stored = await self._context.controller.reader_group_config(self.scope, group)
        await self._context.controller.delete_reader_group(self.scope, group, stored.group_id)

    async def list(self) -> list[str]:
        """Return the names of the scope's groups, including those of Java clients. Raises NoSuchScopeError."""
        prefix = names.READER_GROUP_PREFIX
        streams = self._context.controller.list_streams(self.scope)
        return [stream.stream.removeprefix(prefix) async for stream in streams if stream.stream.startswith(prefix)]


async def initial_record(context: ClientContext, config: ReaderGroupConfig, *, without_deleted: bool = False) -> r.Init:
    """Return the first state of a group: each stream's segments at its start cut or head.

    `without_deleted` leaves out streams that do not exist. See
    docs/protocol/reader-group-state.md#creating-and-resetting-groups. Raises NotFoundError.
    """
    starting: dict[tuple[str, KeyRange | None], int] = {}
    for scoped, cut in config.starting.items():
        stream = StreamName.parse(scoped)
        try:
            positions = cut.positions if cut else await context.controller.head_segments(stream)
        except NotFoundError:
            if not without_deleted:
                raise
            continue
        for identifier, offset in positions.items():
            starting[stream.segment(identifier), None] = offset
    ends: dict[str, int] = {}
    for scoped, cut in config.ending.items():
        stream = StreamName.parse(scoped)
        for identifier, offset in (cut.positions if cut else {}).items():
            ends[stream.segment(identifier)] = UNLIMITED_OFFSET if offset == -1 else offset
    return r.Init(config, starting, ends)


class ReaderGroup:
    """A handle to watch and control a reader group. Several tasks may use it at the same time."""

    def __init__(self, context: ClientContext, scope: str, group: str, synchronizer: GroupSynchronizer) -> None:
        self.scope = scope
        self.group = group
        self._context = context
        self._synchronizer = synchronizer
        self._silent: str | None = None
        """The last silent checkpoint of this handle that was not seen complete."""

    async def state(self) -> GroupState:
        """Fetch and return the present state, which is read-only."""
        await self._synchronizer.fetch()
        return self._synchronizer.state

    async def online_readers(self) -> list[str]:
        """Return the readers that are online."""
        return (await self.state()).online_readers

    async def positions(self) -> dict[str, StreamCut]:
        """Return the group's position by stream, by its readers' last reports (a few seconds old)."""
        return await complete_cuts(self._context, positions_of(await self.state()))

    async def reader_offline(self, reader: str, position: r.Position | None = None) -> None:
        """Declare a reader offline: other readers take over its segments at `position` or its last checkpoint."""

        def leave(state: GroupState) -> list[r.Update]:
            return [r.RemoveReader(reader, position.positions if position else {})] if state.is_online(reader) else []

        await self._synchronizer.fetch()
        await self._synchronizer.update(leave)

    async def compact(self) -> bool:
        """Compact the state's records into one; return False when a reader wrote first. Readers compact too."""
        await self._synchronizer.fetch()
        return await self._synchronizer.compact()

    # -- checkpoints --------------------------------------------------------------------------------------------

    async def checkpoint(self, name: str, *, deadline_s: float) -> r.Checkpoint:
        """Create a named checkpoint: all readers get a checkpoint event, and their positions form the checkpoint.

        Raises:
            OverloadedError: too many checkpoints are open. DeadlineError: a reader did not answer in time.
            IllegalStateError: the checkpoint was cancelled, or the name is in use.
        """

        def create(state: GroupState) -> list[r.Update]:
            if name in state.checkpoints:
                raise IllegalStateError(f"checkpoint {name} exists already")
            if not policy.may_checkpoint(state):
                waiting = state.outstanding_checkpoints()
                raise OverloadedError(
                    f"{len(waiting)} checkpoints are not complete yet, which is the maximum: {names.some_of(waiting)}"
                )
            return [r.CreateCheckpoint(name)]

        await self._synchronizer.fetch()
        await self._synchronizer.update(create)
        cuts = await self._await_checkpoint(name, deadline_s)
        if cuts is None:
            raise IllegalStateError(f"checkpoint {name} was cancelled, or removed before its positions were read")
        return r.Checkpoint(name, cuts)

    async def stream_cuts(self, *, deadline_s: float) -> dict[str, StreamCut]:
        """Return a consistent cut of the events returned to readers, without a checkpoint event.

        Raises:
            DeadlineError: a reader did not answer in time. The next call waits for the same cut: the other readers have
            answered with their positions of then.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + deadline_s
        while True:
            name = await self._silent_checkpoint()
            cuts = await self._await_checkpoint(name, ends_at_s - loop.time())
            if self._silent == name:
                self._silent = None
            if cuts is not None:
                return cuts

    async def _silent_checkpoint(self) -> str:
        """Return the silent checkpoint that a reader has yet to answer, else a new one: they hold up automatic ones."""
        due = self._silent
        if due is None or (await self.state()).is_complete(due):
            self._silent = due = base64.b64encode(self._context.entropy.token(32)).decode() + r.SILENT_MARK
            await self._synchronizer.update_unconditionally([r.CreateCheckpoint(due)])
        return due

    async def _await_checkpoint(self, name: str, deadline_s: float) -> dict[str, StreamCut] | None:
        """Return the positions of a complete checkpoint; None when it was cancelled or removed before it was complete.

        A later complete checkpoint removes it, perhaps between two fetches. So every state in between is examined,
        while no compaction hides it.
        """
        complete: list[dict[str, int]] = []

        def look(state: GroupState) -> None:
            if not complete and name in state.positions and state.is_complete(name):
                complete.append(dict(state.positions[name]))

        with self._synchronizer.watched(look):
            look(await self.state())
            await self._until_complete(name, deadline_s)
        if not complete:
            return None
        result = await complete_cuts(self._context, complete[0])
        await self._synchronizer.update_unconditionally([r.ClearCheckpointsBefore(name)])
        return result

    async def _until_complete(self, name: str, deadline_s: float) -> None:
        """Wait until all readers have answered a checkpoint. Raises DeadlineError."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + deadline_s
        backoff = Backoff(self._context.entropy, maximum_s=limits.READER_GROUP_POLL_S)
        while not (state := await self.state()).is_complete(name):
            if loop.time() >= ends_at_s:
                what = "the cut" if r.is_silent(name) else f"checkpoint {name}"
                raise DeadlineError(
                    f"{what} is not complete after {deadline_s:g} s: readers answer it in their read calls, and these"
                    f" have not: {names.some_of(state.due[name])}"
                )
            await asyncio.sleep(min(backoff.next_delay_s(), max(0.0, ends_at_s - loop.time())))

    async def cancel_outstanding_checkpoints(self) -> None:
        """Cancel checkpoints that are not complete, and the cut that `stream_cuts` of this handle waits or waited for.

        Clients before 0.13 cannot read this record.
        """
        passing = str(new_uuid(self._context.entropy))

        def cancel(state: GroupState) -> list[r.Update]:
            if self._silent is not None and not state.is_complete(self._silent):
                # The record does not cancel silent ones, so one that is cancelled in the same batch clears it.
                first = r.CreateCheckpoint(passing)
                return [first, r.ClearCheckpointsBefore(passing), r.RemoveOutstandingCheckpoints()]
            return [r.RemoveOutstandingCheckpoints()] if state.outstanding_checkpoints() else []

        await self._synchronizer.fetch()
        await self._synchronizer.update(cancel)

    async def publish_cuts(self, cuts: Mapping[StreamName, StreamCut]) -> None:
        """Publish the cut up to which the group has consumed, for retention MANUAL.

        Raises:
            BadRequestError: a cut belongs to another stream, and nothing was published; or the controller refuses it.
        """
        _require_own(cuts)
        config = (await self.state()).config
        for stream, cut in cuts.items():
            await self._context.controller.update_subscriber_cut(
                stream, f"{self.scope}/{self.group}", config.group_id, config.generation, cut.positions
            )

    # -- reset --------------------------------------------------------------------------------------------------

    async def reset(self, config: ReaderGroupConfig | None = None) -> None:
        """Reset the group to `config`, or to its last checkpoint. Readers must be created again.

        Without `config` the group leaves streams that were deleted.

        Raises:
            NoSuchReaderGroupError. NotFoundError: a stream that the group is to read from its head does not exist, or,
            without `config`, all of its streams are deleted; nothing has changed. WriteConflictError: too many
            concurrent resets.
        """
        for _ in range(limits.READER_GROUP_RESETS_MAX):
            state = await self.state()
            current = state.config  # another task that uses this handle may change the state meanwhile
            try:
                await self._reset_once(current, config or await _from_last_checkpoint(self._context, state))
                return
            except WriteConflictError:
                if await self.finish_reset() == current.generation:
                    raise  # no other reset explains the refusal
        raise WriteConflictError(f"reader group {self.scope}/{self.group} was reset by other clients too often; retry")

    async def finish_reset(self) -> int:
        """Write the controller's configuration to the state if that is older: another client left its reset.

        Return the generation of the state. Raises NoSuchReaderGroupError.
        """
        stored = await self._context.controller.reader_group_config(self.scope, self.group)
        state = await self.state()
        if stored.generation <= state.config.generation:
            return state.config.generation
        initial = await initial_record(self._context, stored, without_deleted=True)
        await self._synchronizer.update(
            lambda latest: [initial] if latest.config.generation < stored.generation else []
        )
        return stored.generation

    async def _reset_once(self, current: ReaderGroupConfig, wanted: ReaderGroupConfig) -> None:
        fresh = dataclasses.replace(wanted, group_id=current.group_id, generation=current.generation)

        def announce(latest: GroupState) -> list[r.Update]:
            if latest.config != current:
                raise WriteConflictError("the configuration was changed by another client")
            return [r.UpdatingConfig(True)]

        first = await initial_record(self._context, fresh)  # before anything changes: a stream may be missing
        await self._synchronizer.update(announce)
        generation = await self._context.controller.update_reader_group(self.scope, self.group, fresh)
        initial = dataclasses.replace(first, config=dataclasses.replace(fresh, generation=generation))
        await self._synchronizer.update(lambda latest: [initial] if latest.config.generation < generation else [])


async def existing_streams(context: ClientContext, config: ReaderGroupConfig) -> list[StreamName]:
    """Return the streams of a group that were not deleted. Raises NoSuchStreamError when there is none."""

    async def exists(stream: StreamName) -> bool:
        try:
            await context.controller.current_segments(stream)
        except NotFoundError:
            return False
        return True

    streams = [StreamName.parse(scoped) for scoped in config.starting]
    answers = await gather_bounded(streams, exists)
    found = [stream for stream, there in zip(streams, answers, strict=True) if there]
    if not found:
        raise NoSuchStreamError(f"all streams of the group are deleted: {', '.join(sorted(config.starting))}")
    return found


async def _from_last_checkpoint(context: ClientContext, state: GroupState) -> ReaderGroupConfig:
    """Return the present configuration without deleted streams, with the last checkpoint as start if there is one.

    A stream that it lacks was finished before it, so nothing of it is read again.
    """
    config = state.config
    starting: dict[str, StreamCut | None] = {}
    ending: dict[str, StreamCut | None] = {}
    has_checkpoint = bool(state.last_checkpoint or state.end_of_data)
    cuts = await complete_cuts(context, state.last_checkpoint or {}) if has_checkpoint else {}
    for stream in await existing_streams(context, config):
        scoped = str(stream)
        if scoped in config.ending:
            ending[scoped] = config.ending[scoped]
        if has_checkpoint:
            starting[scoped] = cuts.get(scoped) or config.ending.get(scoped) or await tail_cut(context, stream)
        else:
            starting[scoped] = config.starting[scoped]
    return dataclasses.replace(config, starting=starting, ending=ending)
