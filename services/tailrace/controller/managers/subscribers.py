"""Register the reader groups whose positions hold back a stream's retention.

See docs/protocol/controller.md#groups-and-subscribers, docs/formats/controller.md#subscribers.

Each subscriber has a record of its own, and one record of the stream names them all. A group that publishes its cut
writes its own record alone. Every other change is also under the version of the index, and one that may create the
index under that of the root: else a deleted stream could leave its subscribers to the next of its name.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tailrace.common import limits
from tailrace.common.errors import NoSuchStreamError, OverloadedError, WriteConflictError
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import (
    IndexedSubscriber,
    Record,
    StreamRecord,
    Subscriber,
    SubscribersRecord,
)
from tailrace.controller.metadata.transitions import require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from tailrace.controller.metadata.epochs import Cut
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext

T = TypeVar("T")


class TooManySubscribersError(OverloadedError):
    """A stream has as many subscribers as it may have."""


class PublishResult(enum.Enum):
    """The outcome of publishing a cut."""

    PUBLISHED = "published"
    NOT_SUBSCRIBED = "not subscribed"
    OTHER_GENERATION = "other generation"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class _Found:
    """The subscribers as one snapshot shows them, with one of them in full."""

    key: StreamKey
    incarnation: int
    name: str
    index: dict[str, IndexedSubscriber]
    earlier: dict[str, Subscriber]
    """All of them, while they are still in one record."""
    own: Subscriber | None
    version: int
    """Of the record that holds the one in full."""

    def puts(self, own: Subscriber | None) -> dict[bytes, Record]:
        """Return the index with that subscriber in place of the one found, and every record that is missing."""
        index = dict(self.index)
        records: dict[bytes, Record] = {
            self.key.subscriber(self.incarnation, name): each
            for name, each in self.earlier.items()
            if name != self.name
        }
        if own is None:
            index.pop(self.name, None)
        else:
            index[self.name] = IndexedSubscriber(own.group_id, bool(own.cut))
            records[self.key.subscriber(self.incarnation, self.name)] = own
        return {self.key.subscribers: SubscribersRecord(index=dict(sorted(index.items()))), **records}


def _index(snapshot: Snapshot, key: StreamKey) -> tuple[dict[str, IndexedSubscriber], dict[str, Subscriber]]:
    record = snapshot.get(SubscribersRecord, key.subscribers) or SubscribersRecord()
    if record.index is not None:
        return record.index, {}
    earlier = record.subscribers
    return {name: IndexedSubscriber(each.group_id, bool(each.cut)) for name, each in earlier.items()}, earlier


# ---- reading


async def subscriber_names(context: WorkflowContext, key: StreamKey) -> list[str]:
    """Return the ``scope/group`` of all subscribers, sorted. Raises NoSuchStreamError."""
    snapshot = await context.store.read(key, [key.root, key.subscribers])
    require(snapshot.get(StreamRecord, key.root), key)
    return sorted(_index(snapshot, key)[0])


async def subscriber(context: WorkflowContext, key: StreamKey, name: str) -> Subscriber | None:
    """Return one subscriber; None when it is missing. Raises NoSuchStreamError."""
    root = require(await context.store.load(key), key)
    item = key.subscriber(root.incarnation, name)
    own = (await context.store.read(key, [item])).get(Subscriber, item)
    if own is not None:
        return own
    return _index(await context.store.read(key, [key.subscribers]), key)[1].get(name)


async def subscribers(context: WorkflowContext, key: StreamKey) -> AsyncIterator[tuple[str, Subscriber]]:
    """Yield each subscriber with its ``scope/group``, sorted; a few are in memory at a time.

    Raises:
        NoSuchStreamError.
    """
    snapshot = await context.store.read(key, [key.root, key.subscribers])
    root = require(snapshot.get(StreamRecord, key.root), key)
    async for found in subscribers_in(context, key, root.incarnation, snapshot):
        yield found


async def subscribers_in(
    context: WorkflowContext, key: StreamKey, incarnation: int, snapshot: Snapshot
) -> AsyncIterator[tuple[str, Subscriber]]:
    """Yield what `subscribers` does, of those that the index in a snapshot names; without them nothing is read."""
    index, earlier = _index(snapshot, key)
    if earlier:
        for name in sorted(earlier):
            yield name, earlier[name]
        return
    async for found in read_subscribers(context, key, incarnation, sorted(index)):
        yield found


async def read_subscribers(
    context: WorkflowContext, key: StreamKey, incarnation: int, names: Sequence[str]
) -> AsyncIterator[tuple[str, Subscriber]]:
    """Yield the subscribers of those names, without those that have left meanwhile; a few are in memory at a time."""
    for start in range(0, len(names), limits.SUBSCRIBERS_PER_READ_MAX):
        items = {
            name: key.subscriber(incarnation, name) for name in names[start : start + limits.SUBSCRIBERS_PER_READ_MAX]
        }
        snapshot = await context.store.read(key, list(items.values()))
        for name, item in items.items():
            own = snapshot.get(Subscriber, item)
            if own is not None:
                yield name, own


# ---- changing


async def require_room(context: WorkflowContext, key: StreamKey, name: str) -> None:
    """Raise TooManySubscribersError unless the stream can take that subscriber. A deleted stream takes any."""
    try:
        found = await subscriber_names(context, key)
    except NoSuchStreamError:
        return
    _require_room(key, name, found)


def _require_room(key: StreamKey, name: str, found: Collection[str]) -> None:
    if name not in found and len(found) >= limits.SUBSCRIBERS_PER_STREAM_MAX:
        raise TooManySubscribersError(
            f"stream {key} has {limits.SUBSCRIBERS_PER_STREAM_MAX} subscribers already, which is the maximum"
        )


async def subscribe(
    context: WorkflowContext,
    key: StreamKey,
    name: str,
    group_id: str,
    generation: int,
    require_current: Callable[[], Awaitable[None]],
    position: Callable[[StreamRecord, Cut], Awaitable[Cut]],
) -> None:
    """Register a group and keep the cut that it published under the same id. Does nothing for a deleted stream.

    `require_current` raises when the group is not the one any more that this step is for. It is asked between the read
    of another subscription of the name and the write in its place: that may be of a group that was created again.
    `position` returns where the group stands that published the given cut in an earlier generation: it was reset since,
    perhaps to a place before that cut, and reads on from there.

    Raises:
        TooManySubscribersError. WriteConflictError: the subscription changed again and again. Errors of
        `require_current`, with nothing written.
    """
    checked: int | None = None
    cut: Cut | None = None

    def decide(root: StreamRecord, found: _Found) -> Change[_Found | None]:
        before = found.own
        if before is not None and before.group_id == group_id and before.generation > generation:
            return Change(None)  # this step was paused while the group was updated again
        _require_room(key, name, found.index)
        own = Subscriber(group_id, generation)
        if before is not None and before.group_id == group_id:
            own = msgspec.structs.replace(before, generation=generation)
        if own == before and name in found.index:
            return Change(None)
        if before is not None and found.version != checked:
            return Change(found)
        if cut is not None:
            own = msgspec.structs.replace(own, cut=dict(cut))
        return Change(None, {key.root: root, **found.puts(own)})

    for _ in range(limits.METADATA_CONFLICTS_MAX):
        root = await _open_root(context, key)
        if root is None:
            return
        seen = await _change(context, key, root.incarnation, name, decide, None)
        if seen is None:
            return
        await require_current()
        before, cut = seen.own, None
        if before is not None and before.group_id == group_id and before.generation < generation and before.cut:
            cut = await position(root, before.cut)
        checked = seen.version
    raise WriteConflictError(f"the subscription of {name} to {key} changed again and again; retry")


async def unsubscribe(
    context: WorkflowContext, key: StreamKey, name: str, group_id: str, generation: int | None = None
) -> None:
    """Remove the group of that id. Does nothing when it is missing or a group of its name has another id.

    With `generation` a subscription of a later generation stays, too. The record goes first, then its name: a record
    that no index names would stay for ever.
    """

    def stays(own: Subscriber) -> bool:
        return own.group_id != group_id or (generation is not None and own.generation > generation)

    def drop(root: StreamRecord, found: _Found) -> Change[bool]:
        if name not in found.index or (found.own is not None and stays(found.own)):
            return Change(True)
        if found.own is not None and not found.earlier:
            return Change(False)  # its record is still there, or there again
        return Change(True, {key.root: root, **found.puts(None)})

    for _ in range(limits.METADATA_CONFLICTS_MAX):
        root = await _open_root(context, key)
        if root is None or await _change(context, key, root.incarnation, name, drop, True):
            return
        item = key.subscriber(root.incarnation, name)
        snapshot = await context.store.read(key, [item])
        own = snapshot.get(Subscriber, item)
        if own is not None and not stays(own):
            with contextlib.suppress(WriteConflictError):  # the group subscribed again: the next look decides
                await context.store.metadata.remove(key.table, [(item, snapshot.version(item))])
    raise WriteConflictError(f"{name} subscribed to {key} again and again while its subscription was removed")


async def publish(
    context: WorkflowContext, key: StreamKey, name: str, before: Subscriber | None, after: Subscriber, *, behind: bool
) -> PublishResult:
    """Store the cut of `after`. `behind` says that it lies before the cut of `before`, which was read.

    Raises:
        NoSuchStreamError. WriteConflictError: the group published another cut at the same time.
    """
    root = require(await context.store.load(key), key)
    item = key.subscriber(root.incarnation, name)

    def check(own: Subscriber | None) -> PublishResult | Subscriber:
        if own is None or own.group_id != after.group_id:
            return PublishResult.NOT_SUBSCRIBED
        if own.generation != after.generation:
            return PublishResult.OTHER_GENERATION
        if own.cut == after.cut:
            return PublishResult.PUBLISHED  # stored by an earlier attempt of this call whose reply was lost
        if behind:
            return PublishResult.REFUSED
        if own != before:
            raise WriteConflictError(f"{name} published another stream cut at the same time; retry")
        return after

    def again(now: StreamRecord | None, snapshot: Snapshot) -> Change[PublishResult | None]:
        require(now, key)
        own = snapshot.get(Subscriber, item)
        if own is None or not own.cut:
            return Change(None)  # the index says what it has published, or still holds it
        checked = check(own)
        if isinstance(checked, PublishResult):
            return Change(checked)
        return Change(PublishResult.PUBLISHED, {item: checked})

    def first(_: StreamRecord, found: _Found) -> Change[PublishResult]:
        checked = check(found.own)
        if isinstance(checked, PublishResult):
            return Change(checked)
        return Change(PublishResult.PUBLISHED, found.puts(checked))

    result = await context.store.change(key, [item], again)
    if result is not None:
        return result
    return await _change(context, key, root.incarnation, name, first, PublishResult.NOT_SUBSCRIBED)


async def _open_root(context: WorkflowContext, key: StreamKey) -> StreamRecord | None:
    """Return the root of a stream that takes changes of its subscribers; None for one that is or will be deleted."""
    root = await context.store.load(key)
    return root if root is not None and _takes_changes(root) else None


def _takes_changes(root: StreamRecord) -> bool:
    return root.state not in (StreamState.CREATING, StreamState.DELETING, StreamState.DELETED)


async def _change(
    context: WorkflowContext,
    key: StreamKey,
    incarnation: int,
    name: str,
    decide: Callable[[StreamRecord, _Found], Change[T]],
    gone: T,
) -> T:
    """Change one subscriber with the index; return `gone`, with nothing written, for a stream that is deleted."""
    item = key.subscriber(incarnation, name)

    def change(root: StreamRecord | None, snapshot: Snapshot) -> Change[T]:
        if root is None or not _takes_changes(root):
            return Change(gone)
        if root.incarnation != incarnation:
            raise WriteConflictError(f"stream {key} was created again; retry")
        index, earlier = _index(snapshot, key)
        own = earlier.get(name) if earlier else snapshot.get(Subscriber, item)
        version = snapshot.version(key.subscribers if earlier else item)
        return decide(root, _Found(key, incarnation, name, index, earlier, own, version))

    return await context.store.change(key, [key.subscribers, item], change)
