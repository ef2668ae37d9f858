"""Restores one container: from its log in the store, or from its newest snapshot into a new log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, DataError, DataLossError, NotFoundError
from tailrace.kernel import BlockCache
from tailrace.log.closed_object import ClosedObjectLog
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.arena_pool import ArenaPool
from tailrace.segmentstore.container.committer import Committer
from tailrace.segmentstore.container.operation_processor import OperationProcessor
from tailrace.segmentstore.container.recovery import Recovery
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.restore.report import RestoredContainer
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName
from tailrace.storage.chunks import stored_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.common.ports import Clock, Entropy
    from tailrace.log.port import DurableLog
    from tailrace.segmentstore.metadata.segment import Segment
    from tailrace.segmentstore.restore.survey import Survey
    from tailrace.storage.port import ObjectStore


async def look_at_log(
    store: ObjectStore, survey: Survey, advance: Callable[[int], None]
) -> tuple[RestoredContainer, ClosedObjectLog]:
    """Read a container whose log is in the store. The log stays unchanged: the next owner recovers from it.

    The result reports a log that cannot be recovered, or that has lost an epoch whose owner wrote objects.
    UnavailableError: the store does not answer.
    """
    log = ClosedObjectLog(store, survey.container, advance, opened_epoch=survey.opened_epoch)
    result = RestoredContainer(survey.container, "log")
    state = ContainerState(survey.container)
    cache = CacheManager(BlockCache(limits.VERIFY_CACHE_BYTES))
    try:
        await log.open()
        await Recovery(log, state, cache).run()
        _check_objects(state, survey, "its log")
    except DataError as error:
        result.problem = f"it cannot be recovered: {error}"
    result.epoch, result.sequence = log.last_claim, state.committed_sequence
    result.add_segments(state)
    return result, log


def lost_log(survey: Survey) -> RestoredContainer:
    """Report a container whose log is missing in the store, where those of others are.

    Its snapshot is left alone: a log in the folder would not be read, and a restored snapshot would stop the owner of
    a log that is brought back.
    """
    problem = f"log/{survey.container}/ is missing in Tier 2, where other containers have their logs: bring it back"
    return RestoredContainer(survey.container, "log", problem=problem)


async def newest_state(
    store: ObjectStore, cluster_id: bytes, survey: Survey
) -> tuple[RestoredContainer, ContainerState | None]:
    """Return the state of a container whose log is lost, as of its newest snapshot; None: the store holds nothing.

    The epoch and the operation numbers of the new log are ones that the lost log cannot have used.

    Raises:
        DataLossError: objects exist without a snapshot, or the newest snapshot names an object that is missing or cut
            off.
        CorruptionError, FormatVersionError: the newest snapshot cannot be read; the text names the object.
    """
    epoch = survey.greatest_epoch + limits.RESTORE_EPOCH_GAP
    if not survey.snapshots:
        if survey.objects:
            raise DataLossError(
                f"container {survey.container}: Tier 2 holds {len(survey.objects):,} objects of it and no snapshot"
            )
        return RestoredContainer(survey.container, "nothing"), None
    key = survey.snapshots[-1].key(survey.container)
    try:
        snapshot = Snapshot.decode(key, await store.get(key))
    except NotFoundError as error:
        raise DataLossError(f"object {key} was listed and is missing now") from error
    if snapshot.cluster_id != cluster_id:
        raise CorruptionError(f"object {key}", f"written by another cluster, {snapshot.cluster_id.hex()}")
    state = snapshot.load(key, next_sequence=survey.greatest_sequence + limits.RESTORE_SEQUENCE_GAP)
    _check_objects(state, survey, f"object {key}")
    state.epoch = epoch
    result = RestoredContainer(survey.container, "snapshot", epoch, snapshot.sequence, snapshot.time_ms)
    for object_key, length_bytes in survey.objects.items():
        if object_key not in state.object_uses and object_key not in state.pending_deletes:
            result.newer_objects += 1
            result.newer_bytes += length_bytes
    result.add_segments(state)
    return result, state


def _check_objects(state: ContainerState, survey: Survey, what: str) -> None:
    """Raise DataLossError unless all objects that a state names are listed and long enough. Bytes are not read."""
    for key in state.object_uses:
        if key not in survey.objects:
            raise DataLossError(f"{what} names object {key}, which does not exist")
    for segment in state.segments.values():
        for ref in (*segment.chunks, *segment.index_pages):
            missing = ref.data_offset + stored_length(ref.length) - survey.objects[ref.object_key]
            if missing > 0:
                raise DataLossError(f"{what} names object {ref.object_key}, which ends {missing} bytes early")


async def write_log(log: DurableLog, state: ContainerState, clock: Clock, nonce: bytes) -> None:
    """Begin a log with a checkpoint of a state; durable when this returns. DiskFullError, FencedError."""
    state.reset_staged()
    body, as_of, next_sequence = checkpoint.encode(state), state.committed_sequence, state.next_sequence
    await log.open(state.epoch, nonce)
    try:
        cache = CacheManager(BlockCache(limits.VERIFY_CACHE_BYTES))
        committer = Committer(state, cache, clock, _nothing)
        pipeline = OperationProcessor(
            log, ArenaPool(), next_sequence, committer.commit_frame, lambda error: _stop(pipeline, error)
        )
        await asyncio.gather(
            pipeline.stage_control(ops.Recovered(state.epoch, next_sequence)),
            pipeline.stage_control(ops.Checkpoint(as_of, body)),
        )
    finally:
        await log.close()


def _stop(pipeline: OperationProcessor, error: Exception) -> None:
    pipeline.stop(error)


def _nothing(_: Segment) -> None:
    """Do nothing: no reader waits for commits here."""


def snapshot_name(state: ContainerState, entropy: Entropy) -> SnapshotName:
    """Return a name for the snapshot of a restored state: it sorts behind all others of the container."""
    return SnapshotName(state.epoch, state.committed_sequence, entropy.token(6).hex())


async def store_snapshot(
    store: ObjectStore, cluster_id: bytes, state: ContainerState, clock: Clock, name: SnapshotName
) -> None:
    """Store the restored state as the newest snapshot: a live owner of the lost log finds it and stops.

    Raises:
        UnavailableError: the store does not answer; it is unknown whether it has the snapshot.
    """
    key = name.key(state.container_id)
    body = checkpoint.encode(state)
    snapshot = Snapshot(cluster_id, state.container_id, state.epoch, state.committed_sequence, clock.now_ms(), body, ())
    await store.put(key, snapshot.encode(key))
