"""Planted bugs of the controller: of its commit passes, scales, names, metadata writes and the cuts of its groups."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from sim.bugs.registry import bug
from sim.workloads.cluster import ClusterWorkload
from tailrace.client.group.state.state import GroupState
from tailrace.common.errors import NoSuchSegmentError, NoSuchStreamError, TailraceError, UnavailableError
from tailrace.common.names import SegmentName
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.instances.membership import Membership
from tailrace.controller.jobs import sweep
from tailrace.controller.managers import stream_cuts
from tailrace.controller.managers.transactions import TransactionManager
from tailrace.controller.metadata import changes, epochs, scope_store, stream_store, transitions
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.model import Epoch, StreamSegment, StreamState, TransactionState
from tailrace.controller.metadata.ports import Put, Stored
from tailrace.controller.metadata.records import ScopeRecord, StreamRecord, TaggedStream, TransactionRecord, decode
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.tag_index import TagIndex
from tailrace.controller.metadata.transaction_ledger import TransactionLedger
from tailrace.controller.metadata.transitions import require, transaction_committing
from tailrace.controller.sweep.decision import Fate, fate_of_segment
from tailrace.controller.sweep.sightings import Sightings
from tailrace.controller.workflows import commit_batches, commits, steps, transactions
from tailrace.controller.workflows.context import WorkflowContext
from tailrace.segmentstore.api import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container


def _many_commits(seed: int) -> ClusterWorkload:
    """The workload with little else than transactions, and controllers that die at their merges."""
    workload = ClusterWorkload(seed)
    workload.controller_faults, workload.crashes = True, 0
    workload.controllers.steps, workload.controllers.quiet_s = {"merge_batch": 1}, 0.3
    workload.main.turns, workload.main.scales, workload.main.truncations = 5, 0, 0
    workload.main.rounds, workload.main.transactors = 4, 2
    workload.recreated.rounds = workload.tables.rounds = 0
    return workload


@bug(
    "commit-pass-reordered",
    _many_commits,
    checker="workloads/clusterledger.py",
    words="committed after .*, was .* before it",
)
def _commit_pass_reordered(patch: pytest.MonkeyPatch) -> None:
    """A controller that resumes a commit pass sorts its transactions by their ids.

    Breaks: transactions appear in the order of their commits.
    """
    taken: set[tuple[int, bytes]] = set()
    commit_pass = commits.commit_pass

    async def again(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
        """Knows only of batches that it has taken itself."""
        batch = root.commit_batch
        if all((id(context), item) in taken for item in batch):
            progressed = await commit_pass(context, key, root)
            now = await context.store.load(key)
            taken.update((id(context), item) for item in (now.commit_batch if now is not None else ()))
            return progressed
        await commit_pass(context, key, msgspec.structs.replace(root, commit_batch=tuple(sorted(batch))))
        await commit_batches.finish_batch(context, key, root, {}, ())
        return True

    patch.setattr(steps, "commit_pass", again)


@bug(
    "transaction-committed-twice",
    _many_commits,
    checker="workloads/clusterledger.py",
    words="events were stored .* twice",
)
def _transaction_committed_twice(patch: pytest.MonkeyPatch) -> None:
    """Transaction segments are deleted after the whole commit, so a commit that is resumed merges them again.

    Breaks: a transaction is visible once, whole or not at all.
    """
    commit_pass = commits.commit_pass

    async def copy(self: Container, target: str, sources: Sequence[str]) -> list[int]:
        """Leaves the sources where they are."""
        lengths = []
        for source in sources:
            with contextlib.suppress(NoSuchSegmentError):
                found = await self.info(source)
                events = max(0, found.core_attributes.get(EVENT_COUNT, 0))
                counted = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, events)
                if found.length:
                    content = await self.read_exact(source, 0, found.length)
                    await self.append(target, [content], [counted])
            lengths.append((await self.info(target)).length)
        return lengths

    async def clean_up(context: WorkflowContext, key: StreamKey, root: StreamRecord) -> bool:
        """Deletes the sources of a batch that is complete."""
        progressed = await commit_pass(context, key, root)
        epoch = await context.store.active_epoch(key, root)
        for item in root.commit_batch:
            own = [source for _, source in transactions.transaction_segment_names(key, epoch, item)]
            await context.segments.delete(own)
        return progressed

    patch.setattr(Container, "merge_batch", copy)
    patch.setattr(steps, "commit_pass", clean_up)


@bug(
    "missing-source-taken-as-merged",
    ClusterWorkload,
    checker="workloads/clusterclients.py",
    words="the opposite was accepted later",
)
def _missing_source_taken_as_merged(patch: pytest.MonkeyPatch) -> None:
    """A transaction that is being aborted can still be committed: its missing segments count as merged.

    Breaks: a decision about a transaction is final.
    """

    async def commit(
        self: TransactionManager, key: StreamKey, transaction_id: bytes, writer: str, timestamp: int | None
    ) -> bool:
        """Only what has completed is final."""
        item = key.transaction(transaction_id)

        def decide(found: StreamRecord | None, snapshot: Snapshot) -> Change[bool]:
            root = require(found, key)
            record = snapshot.transaction(item)
            ledger = TransactionLedger(key, root, snapshot)
            state = ledger.state(transaction_id)
            if not isinstance(record, TransactionRecord) or state is TransactionState.COMMITTING:
                return Change(state in (TransactionState.COMMITTING, TransactionState.COMMITTED))
            left = tuple(other for other in root.abort_queue if other != transaction_id)
            decided = transaction_committing(msgspec.structs.replace(root, abort_queue=left), transaction_id)
            if state is TransactionState.OPEN:
                ledger.close(decided, transaction_id)
                ledger.write(record)
                return Change(True, ledger.puts())
            return Change(True, {key.root: decided, item: record})

        async with self._driver.enlisted(key):
            return await self._store.change(key, [item], decide)

    patch.setattr(TransactionManager, "commit", commit)


@bug(
    "abort-deletes-after-commit",
    ClusterWorkload,
    checker="workloads/clusterledger.py",
    words="ended with committed = True, and was (stored|read by the group)",
)
def _abort_deletes_after_commit(patch: pytest.MonkeyPatch) -> None:
    """An abort deletes the transaction's segments before it learns that the transaction is committed.

    Breaks: a committed transaction is visible whole.
    """
    abort = TransactionManager.abort

    async def unchecked(context: WorkflowContext, names_of: Any, *, rolls: bool) -> dict[bytes, str]:
        """Takes every transaction; the check would abort those whose segments are gone."""
        return {}

    async def hasty(self: TransactionManager, key: StreamKey, transaction_id: bytes) -> bool:
        """Deletes before it decides."""
        root = await self._store.load(key)
        if root is None:
            raise NoSuchStreamError(str(key))
        epoch = await self._store.active_epoch(key, root)
        own = [source for _, source in transactions.transaction_segment_names(key, epoch, transaction_id)]
        await self._context.segments.delete(own)
        return await abort(self, key, transaction_id)

    patch.setattr(TransactionManager, "abort", hasty)
    patch.setattr(commit_batches, "_uncommittable", unchecked)


@bug(
    "rolled-over-segments-left-open",
    ClusterWorkload,
    checker="workloads/clusterledger.py",
    words="ended with committed = True, and was read by the group",
)
def _rolled_over_segments_left_open(patch: pytest.MonkeyPatch) -> None:
    """A commit that rolls over a scale leaves the segments open that were active: their writers go on there.

    Breaks: a committed transaction is visible whole. Readers never come to the end of what is left open.
    """
    seal_epoch = commits._seal_epoch

    async def forgetful(context: WorkflowContext, key: StreamKey, root: StreamRecord, number: int) -> dict[int, int]:
        """Seals the duplicate alone."""
        if root.rolling is not None and number == root.rolling.old_epoch:
            return {}
        return await seal_epoch(context, key, root, number)

    patch.setattr(commits, "_seal_epoch", forgetful)


def _many_scales(seed: int) -> ClusterWorkload:
    """The workload with little else than a writer, readers and scales."""
    workload = ClusterWorkload(seed)
    workload.main.turns, workload.main.pause_s, workload.main.scales = 80, 0.1, 8
    workload.main.readers, workload.main.checkpoint_ms = 2, 200
    workload.main.rounds = workload.main.truncations = workload.recreated.rounds = workload.tables.rounds = 0
    return workload


@bug(
    "scale-forgets-predecessor",
    _many_scales,
    checker="workloads/clusterledger.py",
    words="events were read by the group .* (twice|out of order)",
)
def _scale_forgets_predecessor(patch: pytest.MonkeyPatch) -> None:
    """The controller reports only one predecessor of a segment that was merged from several.

    Breaks: order per routing key survives splits and merges of segments.
    """
    successors = epochs.successors

    def short(segment: StreamSegment, before: Epoch, after: Epoch) -> list[tuple[StreamSegment, list[int]]]:
        """The others are forgotten."""
        return [(successor, [segment.identifier]) for successor, _ in successors(segment, before, after)]

    patch.setattr(stream_cuts, "successors", short)


@bug(
    "segment-numbers-restart",
    ClusterWorkload,
    checker="workloads/clusterrecreation.py",
    words="of the deleted stream are given out again",
)
def _segment_numbers_restart(patch: pytest.MonkeyPatch) -> None:
    """A stream that is created again numbers its segments from 0.

    Breaks: a new stream shows nothing of a deleted one of its name.
    """
    created = transitions.created

    def from_zero(previous: StreamRecord | None, config: StreamConfig, now_ms: int, intent_id: bytes) -> StreamRecord:
        """Forgets the counter of the stream that was deleted."""
        fresh = created(previous, config, now_ms, intent_id)
        return msgspec.structs.replace(fresh, next_segment_number=config.scaling.min_segments)

    patch.setattr(transitions, "created", from_zero)


class _TrustingMetadata:
    """Takes a write without an answer for one that succeeded."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    async def get(self, table: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """Unchanged."""
        found: list[Stored | None] = await self._metadata.get(table, keys)
        return found

    async def put(self, table: str, entries: Sequence[Put]) -> list[int]:
        """It will have arrived."""
        try:
            versions: list[int] = await self._metadata.put(table, entries)
        except UnavailableError:
            return [0] * len(entries)
        return versions


def _lost_answers(seed: int) -> ClusterWorkload:
    """The workload with short-lived streams mostly, and many lost calls to the store."""
    workload = ClusterWorkload(seed)
    workload.controllers.lost_call_chance, workload.controllers.has_companion = 0.1, False
    workload.crashes = workload.tables.rounds = 0
    workload.main.turns = workload.main.rounds = 1
    workload.main.scales = workload.main.truncations = workload.main.transactors = 0
    return workload


@bug(
    "unknown-metadata-write-taken-for-success",
    _lost_answers,
    checker="workloads/cluster.py",
    words="a client got an unexpected answer: NoSuchScopeError",
)
def _unknown_outcome_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    """A write of metadata whose answer was lost counts as done.

    Breaks: every workflow of the controller finishes, whichever answers are lost.
    """
    change_records = stream_store.change_records

    async def trusting(
        metadata: Any,
        entropy: Any,
        table: str,
        keys: Sequence[bytes],
        decide: Callable[[Snapshot], Change[Any]],
        *recent: Any,
        **more: Any,
    ) -> Any:
        """Does not look again."""
        trusting = _TrustingMetadata(metadata)
        return await change_records(trusting, entropy, table, keys, decide, *recent, **more)  # type: ignore[arg-type]

    patch.setattr(stream_store, "change_records", trusting)
    patch.setattr(scope_store, "change_records", trusting)


@bug(
    "cut-published-before-all-passed",
    ClusterWorkload,
    checker="workloads/clusterclients.py",
    words="a checkpoint is complete, and has no position in the stream",
)
def _cut_published_before_all_passed(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint counts as complete as soon as the first reader has passed it.

    Breaks: every cut of a reader group covers the key space and lies nowhere past what was read.
    """

    def is_complete(self: GroupState, checkpoint: str) -> bool:
        """Does not wait for the others."""
        waiting = self.due.get(checkpoint, [])
        return len(waiting) < max(1, len(self.assigned))

    patch.setattr(GroupState, "is_complete", is_complete)


def _companion(seed: int) -> ClusterWorkload:
    """The workload with a controller that lives beside those that die, and more of their deaths."""
    workload = ClusterWorkload(seed)
    workload.controller_faults = workload.controllers.has_companion = True
    workload.controllers.quiet_s = 0.5
    return workload


@bug(
    "work-of-a-dead-controller-left",
    _companion,
    checker="workloads/cluster.py",
    words="not finished",
)
def _work_of_a_dead_controller_left(patch: pytest.MonkeyPatch) -> None:
    """A live controller adopts nothing of one that died: its workflows wait until some controller starts.

    Breaks: what a controller accepted is carried out.
    """
    patch.setattr(Membership, "is_to_adopt", lambda self, record: record.instance == self.instance)


def _two_controllers(seed: int) -> ClusterWorkload:
    """The workload with little else than transactions, and a controller that lives beside those that die."""
    workload = _many_commits(seed)
    workload.controllers.has_companion = True
    return workload


@bug(
    "refusal-by-memory",
    _two_controllers,
    checker="workloads/clusterclients.py",
    words="a late ping of .* was answered|the opposite was accepted",
)
def _refusal_by_memory(patch: pytest.MonkeyPatch) -> None:
    """A controller answers by the records that it remembers, also where it writes nothing that would fail.

    Breaks: a transaction that one controller opened is known to all of them.
    """

    async def by_memory(self: changes.RecordReader, decide: Callable[[Snapshot], Change[Any]]) -> Change[Any] | None:
        """Does not ask whether what it looked at is written."""
        keys = list(self._keys)
        known = self._recent.get(self._table, keys) if self._recent is not None else None
        if known is None:
            return None
        self.snapshot = Snapshot(self._table, known)
        try:
            return decide(self.snapshot)
        except (changes.NotReadError, changes.UnsteadyReadError, TailraceError):
            return None

    patch.setattr(changes.RecordReader, "decide_by_memory", by_memory)


def _eager_sweep(seed: int) -> ClusterWorkload:
    """The workload with little but short-lived streams, and controllers that look for segments all the time."""
    workload = ClusterWorkload(seed)
    config = workload.controllers.config
    workload.controllers.config = dataclasses.replace(config, sweep_period_s=0.01, sweep_age_s=0.0)
    workload.crashes = workload.tables.rounds = 0
    workload.main.turns = workload.main.rounds = 1
    workload.main.scales = workload.main.truncations = workload.main.transactors = 0
    return workload


@bug(
    "sweep-of-a-running-creation",
    _eager_sweep,
    checker="workloads/cluster.py",
    words="a client got an unexpected answer: NoSuchSegmentError",
)
def _sweep_of_a_running_creation(patch: pytest.MonkeyPatch) -> None:
    """The sweep takes a stream that is being created for one that is gone, and deletes its segments.

    Breaks: a segment is deleted only when no record can name it any more.
    """

    def of_active_ones(name: SegmentName, root: StreamRecord | None, first: Epoch | None, own: Epoch | None) -> Fate:
        """Does not know of creations."""
        if root is not None and root.state is StreamState.CREATING:
            return Fate.DELETE
        return fate_of_segment(name, root, first, own)

    patch.setattr(sweep, "fate_of_segment", of_active_ones)
    patch.setattr(Sightings, "see", lambda self, segment, now_s: 0.0)


def _many_retags(seed: int) -> ClusterWorkload:
    """The workload with little but short-lived streams, and controllers that live long enough to use an index."""
    workload = ClusterWorkload(seed)
    workload.controller_faults, workload.crashes, workload.lost_answers = False, 0, 0.0
    workload.recreated.rounds, workload.tables.rounds = 4, 0
    workload.main.turns = workload.main.rounds = 1
    workload.main.scales = workload.main.truncations = workload.main.transactors = 0
    return workload


@bug(
    "tag-left-in-the-index",
    _many_retags,
    checker="workloads/clusterrecreation.py",
    words="by tag life.* the scope lists .*stream",
)
def _tag_left_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """A tag that a stream loses stays in the index, and a list by tag takes the index's word.

    Breaks: a list by tag has the streams that have the tag, and no others.
    """

    async def keep(self: TagIndex, scope: str, owner: ScopeRecord, pairs: Iterable[tuple[str, str]]) -> None:
        """Remove nothing."""

    async def having(
        self: TagIndex, scope: str, owner: ScopeRecord, tag: str, table: str, found: Sequence[Stored]
    ) -> list[str]:
        """Look at no entry of the scope."""
        return [decode(TaggedStream, entry.value, table).stream for entry in found]

    patch.setattr(TagIndex, "drop", keep)
    patch.setattr(TagIndex, "_having", having)


@bug(
    "tag-indexed-after-the-answer",
    _many_retags,
    checker="workloads/clusterrecreation.py",
    words=r"by tag (life|later)\d+ the scope lists \[\]",
)
def _tag_indexed_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A step leaves the entries of the index to a task, and the call answers before it has run.

    Breaks: a list by tag has every stream whose creation or update was answered.
    """
    put = TagIndex.put
    tasks: set[asyncio.Task[None]] = set()

    async def later(self: TagIndex, scope: str, owner: ScopeRecord, pairs: Iterable[tuple[str, str]]) -> None:
        """Write after a while."""

        async def write(wanted: list[tuple[str, str]]) -> None:
            await asyncio.sleep(5)
            await put(self, scope, owner, wanted)

        task = asyncio.get_running_loop().create_task(write(list(pairs)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    patch.setattr(TagIndex, "put", later)
