"""Scale a stream: create segments, make their epoch active, seal the old segments.

See docs/protocol/server.md#scale-workflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import next_epoch
from tailrace.controller.metadata.model import StreamState
from tailrace.controller.metadata.records import Record, ScaleIntent, SealedRecord, StreamRecord
from tailrace.controller.metadata.transitions import finished
from tailrace.controller.workflows import leftovers
from tailrace.controller.workflows.context import segment_name, segment_names

if TYPE_CHECKING:
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def scale(context: WorkflowContext, key: StreamKey, root: StreamRecord, intent: ScaleIntent) -> None:
    """Run one step of a scale. Open transactions stay open: their commits roll over it."""
    if root.active_epoch != intent.old_epoch:
        await _seal_replaced(context, key, root, intent)
        return
    used = await context.segments.create(segment_names(key, intent.created), root.config)
    if used:
        await leftovers.renumber(context, key, intent, used)
        return
    await _show_epoch(context, key, root, intent)


async def _show_epoch(context: WorkflowContext, key: StreamKey, root: StreamRecord, intent: ScaleIntent) -> None:
    current = await context.store.epoch(key, root, intent.old_epoch)
    epoch = next_epoch(current, intent.sealed, intent.created, context.clock.now_ms(), intent.reason)

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.intent != intent or now.active_epoch != intent.old_epoch or now.commit_batch:
            return Change(None)  # a commit pass that merges into the segments to replace ends first
        shown = msgspec.structs.replace(now, active_epoch=epoch.epoch)
        puts: dict[bytes, Record] = {key.root: shown, key.epoch(now.incarnation, epoch.epoch): epoch}
        return Change(None, puts)

    await context.store.change(key, (), decide)


async def _seal_replaced(context: WorkflowContext, key: StreamKey, root: StreamRecord, intent: ScaleIntent) -> None:
    sizes = await seal_segments(context, key, intent.sealed)
    await record_sealed(context, key, root, intent.old_epoch + 1, sizes, StreamState.ACTIVE)


async def seal_segments(context: WorkflowContext, key: StreamKey, identifiers: tuple[int, ...]) -> dict[int, int]:
    """Seal segments; return their final lengths by id."""
    lengths = await context.segments.seal([segment_name(key, identifier) for identifier in identifiers])
    return dict(sorted(zip(identifiers, lengths, strict=True)))


async def record_sealed(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, epoch: int, sizes: dict[int, int], state: StreamState
) -> None:
    """Persist the sealed sizes and the sum of all sealed bytes, and end the workflow (docs/design.md#controller)."""

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.intent != root.intent:
            return Change(None)
        total = now.sealed_bytes + sum(sizes.values())
        record = SealedRecord(epoch, context.clock.now_ms(), sizes, total)
        ended = msgspec.structs.replace(finished(now, state), sealed_bytes=total)
        puts: dict[bytes, Record] = {key.root: ended, key.sealed(now.incarnation, epoch): record}
        return Change(None, puts)

    await context.store.change(key, (), decide)
