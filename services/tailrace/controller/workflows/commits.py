"""Run commit passes, also those that roll over a scale (docs/controller.md#commits-that-roll-over-a-scale).

One pass of a stream runs at a time, so all segments merge transactions in the same order. Each step can be repeated, by
any controller: a transaction's segment that is missing counts as merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import duplicate
from tailrace.controller.metadata.records import Record, Rolling, SealedRecord, StreamRecord
from tailrace.controller.workflows.commit_batches import after_refusals, finish_batch, names_of, take_batch
from tailrace.controller.workflows.context import segment_names
from tailrace.controller.workflows.scale import seal_segments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.controller.metadata.model import Epoch
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext


async def commit_pass(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
    """Take a batch, or go on with the one that is taken; return False when a workflow of the stream must end first."""
    if not root.commit_batch:
        return await take_batch(context, key, root)
    if root.rolling is None:
        await _merge_into_active(context, key, root)
    elif root.active_epoch == root.rolling.old_epoch:
        await _merge_into_duplicate(context, key, root, root.rolling)
    else:
        await _seal_old(context, key, root, root.rolling)
    return True


async def _merge_into_active(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> None:
    position, refused = await _merge(context, key, root, await context.store.active_epoch(key, root))
    await finish_batch(context, key, root, position, refused)


async def _merge_into_duplicate(context: WorkflowContext, key: StreamKey, root: StreamRecord, rolling: Rolling) -> None:
    """Create the segments of both new epochs, merge the batch into the first one's, and make the second one active.

    The first one's segments are sealed before anybody can learn of them.
    """
    merged, renewed = await _new_epochs(context, key, root, rolling)
    segments = (*merged.segments, *renewed.segments)
    await context.segments.create(segment_names(key, segments), root.config)
    _, refused = await _merge(context, key, root, merged)
    await seal_segments(context, key, tuple(segment.identifier for segment in merged.segments))

    def decide(now: StreamRecord | None, _: Snapshot) -> Change[None]:
        if now is None or now.rolling != rolling or now.active_epoch != rolling.old_epoch:
            return Change(None)
        done = msgspec.structs.replace(rolling, refused=tuple(sorted(refused)))
        shown = msgspec.structs.replace(now, active_epoch=renewed.epoch, rolling=done)
        puts: dict[bytes, Record] = {
            key.root: shown,
            key.epoch(now.incarnation, merged.epoch): merged,
            key.epoch(now.incarnation, renewed.epoch): renewed,
        }
        return Change(None, puts)

    await context.store.change(key, (), decide)


async def _new_epochs(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, rolling: Rolling
) -> tuple[Epoch, Epoch]:
    """Return the duplicate of the transactions' epoch, and that of the active one."""
    now_ms = context.clock.now_ms()
    began = await context.store.epoch(key, root, rolling.transaction_epoch)
    active = await context.store.active_epoch(key, root)
    return duplicate(began, rolling.merged_epoch, now_ms), duplicate(active, rolling.new_epoch, now_ms)


async def _seal_old(context: WorkflowContext, key: StreamKey, root: StreamRecord, rolling: Rolling) -> None:
    """Seal the segments that were active before the pass: readers go on to those that it merged into."""
    old = await _seal_epoch(context, key, root, rolling.old_epoch)
    merged = await _seal_epoch(context, key, root, rolling.merged_epoch)

    def sealed(ended: StreamRecord) -> Mapping[bytes, Record]:
        now_ms = context.clock.now_ms()
        before = ended.sealed_bytes + sum(old.values())
        total = before + sum(merged.values())
        first = SealedRecord(rolling.merged_epoch, now_ms, old, before)
        second = SealedRecord(rolling.new_epoch, now_ms, merged, total)
        return {
            key.root: msgspec.structs.replace(ended, sealed_bytes=total),
            key.sealed(ended.incarnation, first.epoch): first,
            key.sealed(ended.incarnation, second.epoch): second,
        }

    await finish_batch(context, key, root, merged, rolling.refused, sealed)


async def _seal_epoch(context: WorkflowContext, key: StreamKey, root: StreamRecord, number: int) -> dict[int, int]:
    epoch = await context.store.epoch(key, root, number)
    return await seal_segments(context, key, tuple(segment.identifier for segment in epoch.segments))


async def _merge(
    context: WorkflowContext, key: StreamKey, root: StreamRecord, epoch: Epoch
) -> tuple[dict[int, int], frozenset[bytes]]:
    """Merge the batch into the segments of an epoch; return their lengths, and the transactions to abort."""
    names = await names_of(key, epoch, root.commit_batch)
    sources: dict[str, list[str]] = {}
    for pairs in names.values():
        for target, source in pairs:
            sources.setdefault(target, []).append(source)
    merged = await context.segments.merge(list(sources.items()))
    refused = await after_refusals(context, key, names, merged)
    ordered = sorted(epoch.segments, key=lambda segment: segment.number)
    lengths = zip((segment.identifier for segment in ordered), (item.length for item in merged), strict=True)
    return dict(sorted(lengths)), refused
