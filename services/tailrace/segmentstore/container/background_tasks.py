"""A container's background tasks: flush, delete, sweep, compact, reclaim, snapshot, checkpoint, confirm ownership."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrace.common import limits
from tailrace.common.errors import OverloadedError
from tailrace.segmentstore.background.attribute_writer import AttributePorts, AttributeWriter
from tailrace.segmentstore.background.chunk_compaction import ChunkCompaction
from tailrace.segmentstore.background.deletions import Deletions
from tailrace.segmentstore.background.orphan_sweep import OrphanSweep
from tailrace.segmentstore.background.reclamation import Reclamation
from tailrace.segmentstore.background.snapshotter import SnapshotPorts, Snapshotter
from tailrace.segmentstore.background.storage_writer import FlushPorts, StorageWriter
from tailrace.segmentstore.background.transient_sweep import TransientSweep
from tailrace.segmentstore.container.checkpointer import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tailrace.segmentstore.container.core import ContainerCore, ContainerStorage


class BackgroundTasks:
    """Makes the tasks of one container, gives each what it needs, and starts them. ``delete`` deletes a segment."""

    def __init__(
        self, core: ContainerCore, storage: ContainerStorage, delete: Callable[[str], Awaitable[None]]
    ) -> None:
        ports, tier2 = core.ports, storage.tier2
        self._core = core
        self._flushes_asked_for: set[asyncio.Task[None]] = set()
        self.checkpointer = Checkpointer(core)
        self.snapshotter = Snapshotter(
            SnapshotPorts(
                state=core.state,
                epoch=core.epoch,
                store=ports.store,
                tier2=tier2,
                cache=ports.cache,
                clock=ports.clock,
                entropy=ports.entropy,
                cluster_id=ports.cluster_id,
                upload_slots=ports.upload_slots,
                commit=core.commit_control,
                confirm_owner=core.confirm_owner,
            )
        )
        self.writer = StorageWriter(
            FlushPorts(
                state=core.state,
                queue=core.flush_queue,
                reader=storage.reader,
                tier2=tier2,
                upload_slots=ports.upload_slots,
                commit=core.commit_control,
                checkpoint_if_due=self.checkpointer.run_if_due,
                wants_flush=self.checkpointer.wants_flush,
                evict_values=storage.attributes.evict,
            )
        )
        self.deletions = Deletions(
            core.state, tier2, commit=core.commit_control, may_delete=self.snapshotter.may_delete
        )
        self.attribute_writer = AttributeWriter(
            AttributePorts(
                state=core.state,
                queue=core.flush_queue,
                attributes=storage.attributes,
                index_slots=ports.index_slots,
                upload_slots=ports.upload_slots,
                commit=core.commit_control,
            )
        )
        self.sweep = OrphanSweep(core.state, tier2, commit=core.commit_control, may_work=core.may_do_maintenance)
        self.transients = TransientSweep(core.state, delete)
        self.compaction = ChunkCompaction(
            core.state,
            tier2,
            commit=core.commit_control,
            upload_slots=ports.upload_slots,
            may_work=core.may_do_maintenance,
        )
        self.reclamation = Reclamation(
            core.state,
            tier2,
            commit=core.commit_control,
            upload_slots=ports.upload_slots,
            may_work=core.may_do_maintenance,
        )

    def start(self) -> None:
        """Start the tasks of a container that recovered, with what recovery found to be flushed."""
        core = self._core
        for segment in list(core.state.segments.values()):
            if segment.pending or segment.dirty:
                core.flush_queue.appended(segment)
        if core.log.epochs_at_opening >= limits.LOG_EPOCHS_PER_CHECKPOINT:
            core.flush_queue.flush_now()  # owners stop before they flush: their operations would hold the log
        core.spawn(self.writer.run())
        core.spawn(self.attribute_writer.run())
        core.spawn(self.deletions.run())
        core.spawn(self.sweep.run())
        core.spawn(self.transients.run())
        core.spawn(self.compaction.run())
        core.spawn(self.reclamation.run())
        core.spawn(core.ownership.run())
        core.spawn(self.snapshotter.run())

    @property
    def last_error(self) -> str:
        """Return why the last flush or deletion failed; empty when none did."""
        return self.writer.last_error or self.attribute_writer.last_error or self.deletions.last_error

    async def flush_to_storage(self) -> None:
        """See `SegmentContainer.flush_to_storage`."""
        await self._run_flush(self._flush_and_checkpoint)

    async def flush_ahead(self) -> None:
        """Move what is staged by now to Tier 2, without a checkpoint: what a later `flush_to_storage` need not."""
        await self._run_flush(self._flush)

    async def _run_flush(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        core = self._core
        core.check_running()
        await core.barrier()
        asked_for = self._flushes_asked_for
        if len(asked_for) >= limits.FLUSHES_ASKED_FOR_MAX:
            raise OverloadedError(f"container {core.container_id} already runs {len(asked_for)} flushes; retry")
        # A task of the container's own: if a flush ended with its caller between the staging and the commit of an
        # index root, the next flush would write the same range of the index again.
        flush = core.spawn_for_caller(work())
        asked_for.add(flush)
        flush.add_done_callback(asked_for.discard)
        await asyncio.wait([flush])
        if flush.cancelled():
            raise core.stopped_error()
        flush.result()

    async def _flush(self) -> None:
        await self.writer.flush_all(self._core.log.next_sequence - 1)
        await self.attribute_writer.flush_due()

    async def _flush_and_checkpoint(self) -> None:
        await self._flush()
        await self.checkpointer.run_if_due(force=True)
        await self.snapshotter.take()
