"""Register the reader groups whose positions hold back a stream's retention.

See docs/protocol/controller.md#groups-and-subscribers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.common import limits
from tailrace.common.errors import NoSuchStreamError, OverloadedError
from tailrace.controller.metadata.records import StreamRecord, Subscriber, SubscribersRecord
from tailrace.controller.metadata.stream_store import Change, Snapshot, StreamKey
from tailrace.controller.metadata.transitions import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.controller.workflows.context import WorkflowContext


async def subscribers(context: WorkflowContext, key: StreamKey) -> dict[str, Subscriber]:
    """Return all subscribers by ``scope/group``. Raises NoSuchStreamError."""
    snapshot = await context.store.read(key, [key.root, key.subscribers])
    require(snapshot.get(StreamRecord, key.root), key)
    record = snapshot.get(SubscribersRecord, key.subscribers)
    return record.subscribers if record is not None else {}


class TooManySubscribersError(OverloadedError):
    """A stream has as many subscribers as it may have."""


async def require_room(context: WorkflowContext, key: StreamKey, name: str) -> None:
    """Raise TooManySubscribersError unless the stream can take that subscriber. A deleted stream takes any."""
    try:
        found = await subscribers(context, key)
    except NoSuchStreamError:
        return
    _require_room(key, name, found)


def _require_room(key: StreamKey, name: str, found: Mapping[str, Subscriber]) -> None:
    if name not in found and len(found) >= limits.SUBSCRIBERS_PER_STREAM_MAX:
        raise TooManySubscribersError(
            f"stream {key} has {limits.SUBSCRIBERS_PER_STREAM_MAX} subscribers already, which is the maximum"
        )


async def subscribe(context: WorkflowContext, key: StreamKey, name: str, group_id: str, generation: int) -> None:
    """Register a group and keep the cut that it published under the same id. Does nothing for a deleted stream.

    Raises:
        TooManySubscribersError.
    """

    def edit(found: dict[str, Subscriber]) -> dict[str, Subscriber]:
        before = found.get(name)
        if before is not None and before.group_id == group_id and before.generation > generation:
            return found  # this step was paused while the group was updated again
        _require_room(key, name, found)
        if before is not None and before.group_id == group_id:
            return {**found, name: msgspec.structs.replace(before, generation=generation)}
        return {**found, name: Subscriber(group_id, generation)}

    await _edit_if_there(context, key, edit)


async def unsubscribe(
    context: WorkflowContext, key: StreamKey, name: str, group_id: str, generation: int | None = None
) -> None:
    """Remove the group of that id. Does nothing when it is missing or a group of its name has another id.

    With `generation` a subscription of a later generation stays, too.
    """

    def leaves(own: Subscriber) -> bool:
        return own.group_id == group_id and (generation is None or own.generation <= generation)

    def edit(found: dict[str, Subscriber]) -> dict[str, Subscriber]:
        return {other: own for other, own in found.items() if other != name or not leaves(own)}

    await _edit_if_there(context, key, edit)


async def _edit_if_there(
    context: WorkflowContext, key: StreamKey, edit: Callable[[dict[str, Subscriber]], dict[str, Subscriber]]
) -> None:
    try:
        await edit_subscribers(context, key, edit)
    except NoSuchStreamError:
        return


async def edit_subscribers(
    context: WorkflowContext, key: StreamKey, edit: Callable[[dict[str, Subscriber]], dict[str, Subscriber]]
) -> None:
    """Change the subscribers with `edit`. Raises NoSuchStreamError and the errors of `edit`."""

    def decide(root: StreamRecord | None, snapshot: Snapshot) -> Change[None]:
        known = require(root, key)
        record = snapshot.get(SubscribersRecord, key.subscribers)
        before = record.subscribers if record is not None else {}
        after = dict(sorted(edit(before).items()))
        if after == before:
            return Change(None)
        # Also under the root's version: else a deleted stream could leave its subscribers to the next of its name.
        return Change(None, {key.root: known, key.subscribers: SubscribersRecord(after)})

    await context.store.change(key, [key.subscribers], decide)
