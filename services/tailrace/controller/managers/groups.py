"""Create, update and delete reader groups: scope entry, state stream, subscriptions.

See docs/protocol/controller.md#groups-and-subscribers, docs/protocol/naming.md#revisioned-streams.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import structlog

from tailrace.common import limits, names
from tailrace.common.errors import (
    BadRequestError,
    ConditionFailedError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    WriteConflictError,
)
from tailrace.common.stream_policies import StreamConfig, StreamDataRetention
from tailrace.controller.managers.streams import OtherIncarnationError
from tailrace.controller.managers.subscribers import TooManySubscribersError, require_room, subscribe, unsubscribe
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import is_behind
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import ReaderGroupRecord
from tailrace.controller.metadata.scope_store import READER_GROUPS
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transitions import next_incarnation
from tailrace.controller.workflows.entities import READER_GROUP, Entity, EntityDriver

if TYPE_CHECKING:
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.managers.streams import StreamManager
    from tailrace.controller.metadata.epochs import Cut
    from tailrace.controller.metadata.records import StreamRecord
    from tailrace.controller.workflows.context import WorkflowContext


_LOG = structlog.get_logger(__name__)


class GroupMismatchError(ConditionFailedError):
    """The id or generation of a reader group differs from the stored one."""


def state_stream(scope: str, group: str) -> StreamKey:
    """Return the stream that holds a group's shared state."""
    return StreamKey(scope, names.READER_GROUP_PREFIX + group)


def streams_of(record: ReaderGroupRecord) -> list[StreamKey]:
    """Return the streams that a group reads."""
    return [StreamKey(scope, stream) for scope, stream, _ in record.starting_cuts]


def _subscribed_to(record: ReaderGroupRecord) -> dict[StreamKey, Cut]:
    """Return the streams whose retention a group holds back, and where it begins; empty: at the head."""
    if record.retention is StreamDataRetention.NONE:
        return {}
    return {StreamKey(scope, stream): cut for scope, stream, cut in record.starting_cuts}


class ReaderGroupManager:
    """Creation, update and deletion of reader groups."""

    def __init__(
        self, context: WorkflowContext, entities: EntityDriver, streams: StreamManager, cuts: CutReader
    ) -> None:
        self._context = context
        self._cuts = cuts
        self._scopes = context.scopes
        self._entities = entities
        self._streams = streams
        entities.register(READER_GROUP, self._step)

    async def load(self, scope: str, group: str, *, leaving: bool = False) -> ReaderGroupRecord:
        """Return the stored configuration; with `leaving` also while the group is being created or deleted.

        Raises:
            NoSuchReaderGroupError.
        """
        record = await self._scopes.get(scope, READER_GROUPS + group, ReaderGroupRecord)
        if record is None or (record.intent in ("create", "delete") and not leaving):
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
        return record

    async def create(self, scope: str, group: str, record: ReaderGroupRecord) -> ReaderGroupRecord:
        """Create a group unless it exists; return the stored configuration. Waits for a deletion of the same name.

        Raises:
            NoSuchScopeError. NoSuchStreamError: a stream to subscribe to does not exist. OverloadedError: a stream has
            too many subscribers. WriteConflictError: the group was deleted again and again while it was created.
        """
        name = READER_GROUPS + group

        async def persist() -> None:
            await self._scopes.require(scope)
            if await self._scopes.get(scope, name, ReaderGroupRecord) is not None:
                return
            for key in _subscribed_to(record):
                await self._streams.load(key)
                await require_room(self._context, key, f"{scope}/{group}")
            state = await self._context.store.load(state_stream(scope, group))
            fresh = msgspec.structs.replace(record, intent="create", state_incarnation=next_incarnation(state))
            await self._scopes.add(scope, name, fresh)

        for _ in range(limits.ENTITY_CREATIONS_MAX):
            await self._entities.perform(Entity(READER_GROUP, scope, group), persist)
            stored = await self._scopes.get(scope, name, ReaderGroupRecord)
            if stored is not None:
                return stored
            await self._scopes.require(scope)
        raise WriteConflictError(f"reader group {scope}/{group} was deleted while it was created; retry")

    async def update(self, scope: str, group: str, record: ReaderGroupRecord) -> int:
        """Replace the configuration; return the new generation.

        Raises:
            NoSuchReaderGroupError. GroupMismatchError: the id or generation differs from the stored one.
        """
        await self.load(scope, group)

        def decide(snapshot: Snapshot, key: bytes) -> Change[int]:
            stored = snapshot.get(ReaderGroupRecord, key)
            if stored is None or stored.intent == "delete":
                raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
            if stored.group_id != record.group_id or stored.generation != record.generation:
                raise GroupMismatchError(f"reader group {scope}/{group} is at generation {stored.generation}")
            before = {*map(str, streams_of(stored)), *stored.unsubscribe}  # the last update may be unfinished
            left = tuple(sorted(before - {*map(str, _subscribed_to(record))}))
            after = msgspec.structs.replace(record, generation=stored.generation + 1, intent="update", unsubscribe=left)
            return Change(after.generation, {key: after})

        async def persist() -> int:
            for key in _subscribed_to(record):
                await require_room(self._context, key, f"{scope}/{group}")
            return await self._scopes.change(scope, READER_GROUPS + group, decide)

        return await self._entities.perform(Entity(READER_GROUP, scope, group), persist)

    async def delete(self, scope: str, group: str, group_id: str | None, *, nested: bool = False) -> None:
        """Delete a group and its state stream; with `group_id` only the group of that id.

        `nested` as in `EntityDriver.perform`.

        Raises:
            NoSuchReaderGroupError: the group does not exist or has another id.
        """
        meant = group_id or (await self.load(scope, group, leaving=True)).group_id

        def decide(snapshot: Snapshot, key: bytes) -> Change[None]:
            stored = snapshot.get(ReaderGroupRecord, key)
            if stored is None or stored.group_id != meant:
                raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
            if stored.intent == "delete":
                return Change(None)
            return Change(None, {key: msgspec.structs.replace(stored, intent="delete")})

        async def persist() -> None:
            await self._scopes.change(scope, READER_GROUPS + group, decide)

        await self._entities.perform(Entity(READER_GROUP, scope, group), persist, nested=nested)

    # -- steps of the workflow; each is idempotent

    async def _step(self, scope: str, group: str) -> None:
        record = await self._scopes.get(scope, READER_GROUPS + group, ReaderGroupRecord)
        if record is None or not record.intent:
            return
        if record.intent == "delete":
            await self._remove(scope, group, record)
            return
        if record.intent == "create":
            config = StreamConfig(rollover_bytes=record.rollover_size_bytes)
            try:
                await self._streams.create(state_stream(scope, group), config, record.state_incarnation)
            except NoSuchScopeError:
                await self._remove(scope, group, record)
                return
            except OtherIncarnationError:
                await self._expect_state_stream(scope, group, record)
                raise  # the step is repeated, with the new expectation
            await self._require_current(scope, group, record)
        subscriber = f"{scope}/{group}"

        async def require_current() -> None:
            await self._require_current(scope, group, record)

        for key, start in _subscribed_to(record).items():
            try:
                await subscribe(
                    self._context,
                    key,
                    subscriber,
                    record.group_id,
                    record.generation,
                    require_current,
                    functools.partial(self._position, key, start),
                )
            except TooManySubscribersError as error:
                if record.intent == "create":
                    await self._remove(scope, group, record)
                    return
                _LOG.error("subscription_refused", group=subscriber, reason=str(error))
            await self._take_back_if_late(scope, group, key, record)
        for name in record.unsubscribe:
            key = StreamKey(*name.split("/", 1))
            await unsubscribe(self._context, key, subscriber, record.group_id, record.generation)
        await self._finish(scope, group, record)

    async def _position(self, key: StreamKey, start: Cut, root: StreamRecord, published: Cut) -> Cut:
        """Return where a group stands that begins at `start` (empty: the head) and has published a cut before that.

        Retention keeps what is behind it, so in doubt it is the earlier one, or the head.
        """
        head = await self._cuts.head(key, root)
        begin = start or head
        try:
            if start:
                await self._cuts.check(key, root, start)
            segments = await self._cuts.segments(key, root, begin, published)
            return begin if is_behind(begin, published, segments) else published
        except BadRequestError:  # no positions of this stream, as after a restore
            return head

    async def _expect_state_stream(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        """Let a group's creation create the next incarnation of its state stream: another one was deleted meanwhile.

        Raises:
            WriteConflictError: the group was deleted since, so this creation is late and creates nothing.
        """
        root = await self._context.store.load(state_stream(scope, group))

        def decide(snapshot: Snapshot, key: bytes) -> Change[None]:
            if snapshot.get(ReaderGroupRecord, key) != record:
                raise WriteConflictError(f"reader group {scope}/{group} was changed by another controller")
            return Change(None, {key: msgspec.structs.replace(record, state_incarnation=next_incarnation(root))})

        await self._scopes.change(scope, READER_GROUPS + group, decide)

    async def _require_current(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        """Raise WriteConflictError when another controller changed the group while this one was paused."""
        if await self._scopes.get(scope, READER_GROUPS + group, ReaderGroupRecord) != record:
            raise WriteConflictError(f"reader group {scope}/{group} was changed by another controller")

    async def _take_back_if_late(self, scope: str, group: str, key: StreamKey, record: ReaderGroupRecord) -> None:
        """Unsubscribe a group that was deleted before this subscription, or updated to read the stream no more.

        It must not hold back retention for ever.
        """
        now = await self._scopes.get(scope, READER_GROUPS + group, ReaderGroupRecord)
        if now is None or now.group_id != record.group_id or now.intent == "delete":
            await unsubscribe(self._context, key, f"{scope}/{group}", record.group_id)
            raise WriteConflictError(f"reader group {scope}/{group} was deleted by another controller")
        if now.generation != record.generation and key not in _subscribed_to(now):
            await unsubscribe(self._context, key, f"{scope}/{group}", record.group_id, record.generation)
            raise WriteConflictError(f"reader group {scope}/{group} was updated by another controller")

    async def _finish(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        def decide(snapshot: Snapshot, key: bytes) -> Change[None]:
            if snapshot.get(ReaderGroupRecord, key) != record:
                return Change(None)
            done = msgspec.structs.replace(record, intent="", unsubscribe=(), state_incarnation=None)
            return Change(None, {key: done})

        await self._scopes.change(scope, READER_GROUPS + group, decide)

    async def _remove(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        left = [*streams_of(record), *(StreamKey(*name.split("/", 1)) for name in record.unsubscribe)]
        for key in left:
            await unsubscribe(self._context, key, f"{scope}/{group}", record.group_id)
        state = state_stream(scope, group)
        if record.state_incarnation is not None:
            await self._streams.forgo(state, record.state_incarnation)  # another controller may be about to create it
        root = await self._context.store.load(state)
        if root is not None and root.state is not StreamState.DELETED:
            await self._require_current(scope, group, record)  # so that is the group's own, not that of a later group
            await self._streams.remove(state, root)
        await self._scopes.remove_exactly(scope, READER_GROUPS + group, record)
