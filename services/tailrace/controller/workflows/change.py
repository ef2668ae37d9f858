"""Update, truncate and seal a stream (docs/protocol/controller.md#streams)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import WriteConflictError
from tailrace.common.stream_cut import without_future
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import epoch_span, wholly_before
from tailrace.controller.metadata.model import ScaleReason, StreamState
from tailrace.controller.metadata.policies import ranges_for_policy
from tailrace.controller.metadata.transitions import finished, scaling
from tailrace.controller.workflows import listing, retained
from tailrace.controller.workflows.context import segment_name, segment_names
from tailrace.controller.workflows.scale import record_sealed, seal_segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.metadata.records import Intent, StreamRecord, TruncateIntent
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.segments import Progress


async def update(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Apply the configuration to tags and segments; continue as a scale when it needs other segments."""
    await listing.add(context, key, root)
    await retained.note(context, key, root)
    epoch = await context.store.active_epoch(key, root)
    await _set_policy(context, key, root)
    ranges = ranges_for_policy(root.config.scaling, epoch)
    scale_id = root.intent.intent_id if root.intent is not None else b""

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.intent != root.intent:
            return Change(None)
        if ranges is None:
            return Change(None, {key.root: finished(now, StreamState.ACTIVE)})
        sealed = [segment.identifier for segment in epoch.segments]
        return Change(None, {key.root: scaling(now, epoch, sealed, ranges, scale_id, ScaleReason.POLICY)})

    await context.store.change(key, (), decide)


async def _set_policy(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    """Give the root's scaling policy to the active segments.

    Segments take any policy, also one that comes late: a controller that was paused here may write over a later one. So
    the root is read again afterwards, and what it has by then is written.
    """
    for _ in range(limits.METADATA_CONFLICTS_MAX):
        epoch = await context.store.active_epoch(key, root)
        await context.segments.update_policy(segment_names(key, epoch.segments), root.config)
        now = await context.store.load(key)
        if now is None or now.incarnation != root.incarnation or now.config.scaling == root.config.scaling:
            return
        root = now
    raise WriteConflictError(f"the scaling policy of {key} was changed again and again while it was written")


async def truncate(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, intent: TruncateIntent, progress: Progress
) -> None:
    """Truncate the segments of the root's cut, and then delete those that lie wholly before it, a part in each step.

    The segments of the next parts are remembered: to find them, all epochs that the truncation spans are read.
    """
    cut = without_future(root.truncation or {})
    if not progress.ahead:
        left = [*cut, *await segments_gone(context, key, root, intent, cut)][progress.position :]
        progress.ahead, progress.end = left[: limits.TRUNCATED_SEGMENTS_AHEAD_MAX], progress.position + len(left)
    part = progress.ahead[: limits.WORKFLOW_STEP_SEGMENTS_MAX]
    await context.segments.truncate([(segment_name(key, each), cut[each]) for each in part if each in cut])
    await context.segments.delete([segment_name(key, each) for each in part if each not in cut])
    progress.position += len(part)
    progress.ahead = progress.ahead[len(part) :]
    if progress.position >= progress.end:
        await _finish(context, key, intent)


async def segments_gone(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, intent: TruncateIntent, cut: Mapping[int, int]
) -> list[int]:
    """Return the segments that a truncation at the cut deletes, by id."""
    first = 0 if intent.previous is None else epoch_span(intent.previous)[0]
    segments = await context.store.segments(key, root, range(first, epoch_span(cut)[1] + 1))
    await asyncio.sleep(0)  # each half takes some 20 ms for two epochs of 10,000 segments
    return [segment.identifier for segment in wholly_before(cut, segments)]


async def seal(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Seal the active segments; return False while transactions have not completed."""
    if root.has_transactions:
        return False
    epoch = await context.store.active_epoch(key, root)
    sizes = await seal_segments(context, key, tuple(segment.identifier for segment in epoch.segments))
    await record_sealed(context, key, root, root.active_epoch + 1, sizes, StreamState.SEALED)
    return True


async def _finish(context: WorkflowContext, key: StreamKey, intent: Intent) -> None:
    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.intent != intent:
            return Change(None)
        return Change(None, {key.root: finished(now, StreamState.ACTIVE)})

    await context.store.change(key, (), decide)
