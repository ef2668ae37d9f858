"""Begin changes of a stream under its root's version, then wait for their workflows.

See docs/protocol/controller.md#streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.common.errors import (
    BadRequestError,
    NoSuchScopeError,
    NoSuchStreamError,
    NotTheOwnerError,
    StreamNotSealedError,
    StreamSealedError,
    WorkflowBusyError,
    WriteConflictError,
)
from tailrace.common.stream_cut import without_future
from tailrace.common.stream_policies import StreamConfig
from tailrace.controller.metadata.changes import Change, Snapshot
from tailrace.controller.metadata.epochs import is_behind, scale_keeps_ranges
from tailrace.controller.metadata.model import Epoch, ScaleReason, StreamState
from tailrace.controller.metadata.policies import segments_max
from tailrace.controller.metadata.records import (
    CreateIntent,
    DeleteIntent,
    ScaleIntent,
    SealIntent,
    StreamRecord,
    TruncateIntent,
    UpdateIntent,
)
from tailrace.controller.metadata.transaction_ledger import aborting_all, shard_keys
from tailrace.controller.metadata.transitions import (
    created,
    deleting,
    new_stream,
    next_incarnation,
    require,
    scaling,
    sealing,
    tombstone,
    truncating,
    updating,
)
from tailrace.controller.workflows.context import segment_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_policies import ScalingPolicy
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.metadata.stream_store import StreamKey
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver

_SEALED = (StreamState.SEALING, StreamState.SEALED, StreamState.DELETING)

Decision = Callable[[StreamRecord], StreamRecord]


class ScalePreconditionError(BadRequestError):
    """A scale names a segment that is not active, leaves fewer segments than the policy's minimum, or was decided by
    a scaling policy that the stream does not have any more.
    """


class OtherIncarnationError(WriteConflictError):
    """A creation was to create another incarnation of the stream than the next one."""


class _EpochChangedError(Exception):
    """Another change gave the stream a new epoch between the look at its segments and the decision."""


class StreamManager:
    """Create, change and delete streams. Every method but `scale` returns when its workflow has ended."""

    def __init__(self, context: WorkflowContext, driver: StreamDriver, cuts: CutReader) -> None:
        self._context = context
        self._driver = driver
        self._cuts = cuts

    async def load(self, key: StreamKey) -> StreamRecord:
        """Return the root of a stream that exists. Raises NoSuchStreamError."""
        return require(await self._context.store.load(key), key)

    async def create(self, key: StreamKey, config: StreamConfig, incarnation: int | None = None) -> bool:
        """Create a stream; return False when it exists. Waits for a running creation of the same stream.

        With `incarnation` it creates only that one: a late call does not create a stream again that was deleted since.

        Raises:
            NoSuchScopeError. OtherIncarnationError: the stream was created and deleted, or not so often.
        """
        scopes = self._context.scopes
        if incarnation is None:
            await scopes.presume(key.scope)  # its workflow looks for the scope
        else:
            await scopes.require(key.scope)  # no incarnation is used up in a scope that is gone
        async with self._driver.enlisted(key):
            ours, root = await self._begin_create(key, config, incarnation)
        intent = root.intent
        if not isinstance(intent, CreateIntent):
            await scopes.require(key.scope)
            return False
        while isinstance(intent, CreateIntent):  # it begins again where segments were there before (ADR 0062)
            await self._driver.wait(key, intent.intent_id)
            after = await self._context.store.latest(key)
            if after is None or after.state is StreamState.DELETED:
                raise NoSuchScopeError(f"scope {key.scope} is being deleted")
            intent = after.intent
        return ours or root.config == config

    async def _begin_create(
        self, key: StreamKey, config: StreamConfig, incarnation: int | None
    ) -> tuple[bool, StreamRecord]:
        """Persist the intent to create; returns whether it is this call's, and the root that is stored now."""
        intent_id = self._context.new_id()

        def decide(root: StreamRecord | None, _: Snapshot) -> Change[tuple[bool, StreamRecord]]:
            if root is not None and root.state is not StreamState.DELETED:
                return Change((False, root))
            following = next_incarnation(root)
            if incarnation is not None and incarnation != following:
                raise OtherIncarnationError(f"stream {key}: its next incarnation is {following}, not {incarnation}")
            puts = new_stream(key, root, config, self._context.clock.now_ms(), intent_id)
            fresh = puts[key.root]
            assert isinstance(fresh, StreamRecord)
            return Change((True, fresh), puts)

        # Most streams are new: the write fails, and the root is read, where it exists.
        is_first = incarnation is None or incarnation == next_incarnation(None)
        presumed = self._context.store.presumed_missing(key) if is_first else None
        return await self._context.store.change(key, (), decide, first=presumed)

    async def update(self, key: StreamKey, config: StreamConfig) -> None:
        """Replace the configuration, and scale when the policy needs other segments.

        Raises:
            NoSuchStreamError, StreamSealedError, WorkflowBusyError (another update is running).
        """
        intent_id = self._context.new_id()
        incarnation = (await self.load(key)).incarnation

        def decide(root: StreamRecord) -> StreamRecord:
            _refuse_other(root, key, incarnation)
            _refuse_sealed(root, key)
            if isinstance(root.intent, UpdateIntent):
                raise WorkflowBusyError(f"stream {key} is being updated")
            return updating(root, config, intent_id)

        await self._change(key, intent_id, decide)

    async def truncate(self, key: StreamKey, cut: Mapping[int, int]) -> None:
        """Move the head of the stream to the cut.

        Raises:
            BadRequestError: the cut is not a position in the stream, or lies before the head or beyond a segment's end.
            NoSuchStreamError, StreamSealedError, WorkflowBusyError (another truncation is running).
        """
        intent_id = self._context.new_id()
        root = await self.load(key)
        _refuse_sealed(root, key)
        await self.check_truncation(key, root, cut)

        def decide(now: StreamRecord) -> StreamRecord:
            _refuse_sealed(now, key)
            if isinstance(now.intent, TruncateIntent):
                raise WorkflowBusyError(f"stream {key} is being truncated")
            if now.incarnation != root.incarnation:
                raise BadRequestError("cut belongs to a deleted stream of the same name")
            if now.truncation is not None and now.truncation != root.truncation:
                raise WorkflowBusyError(f"stream {key} was truncated by another call; retry")
            return truncating(now, without_future(cut), intent_id)

        await self._change(key, intent_id, decide)

    async def check_truncation(self, key: StreamKey, root: StreamRecord, cut: Mapping[int, int]) -> None:
        """Raise BadRequestError unless the stream can be truncated at the cut."""
        await self._cuts.check(key, root, cut)
        if root.truncation is not None:
            known = await self._cuts.segments(key, root, cut, root.truncation)
            if is_behind(cut, root.truncation, known):
                raise BadRequestError("cut lies before the head of the stream")
        reached = without_future(cut)
        names = [segment_name(key, identifier) for identifier in reached]
        for (identifier, offset), length in zip(
            reached.items(), await self._context.segments.lengths(names), strict=True
        ):
            if offset > length:
                raise BadRequestError(f"cut has offset {offset} for segment {identifier}, which has {length} bytes")

    async def seal(self, key: StreamKey, incarnation: int | None = None, owner: str | None = None) -> None:
        """Abort open transactions and seal the stream. Succeeds when it is sealed. Raises NoSuchStreamError.

        With `incarnation` only the stream of that incarnation. With `owner` only while it is the stream's owner, else
        NotTheOwnerError.
        """
        intent_id = self._context.new_id()
        meant = (await self.load(key)).incarnation if incarnation is None else incarnation

        def decide(root: StreamRecord) -> StreamRecord:
            return sealing(root, intent_id)

        def is_done(root: StreamRecord) -> bool:
            _refuse_other(root, key, meant)
            _refuse_of_other(root, key, owner)
            return _sealed_already(root)

        async with self._driver.enlisted(key):
            while True:
                root, waits_for = await self._decide(key, decide, is_done, shard_keys(key))
                if waits_for is None:
                    break
                await self._driver.wait(key, waits_for)
        if isinstance(root.intent, SealIntent):
            await self._driver.wait(key, root.intent.intent_id)

    async def delete(self, key: StreamKey, incarnation: int | None = None, owner: str | None = None) -> None:
        """Delete a sealed stream with its mark stream. Raises NoSuchStreamError, StreamNotSealedError.

        With `incarnation` only the stream of that incarnation. With `owner` only while it is the stream's owner, else
        NotTheOwnerError.
        """
        intent_id = self._context.new_id()
        meant = (await self.load(key)).incarnation if incarnation is None else incarnation

        def decide(root: StreamRecord) -> StreamRecord:
            if root.state is not StreamState.SEALED:
                raise StreamNotSealedError(f"stream {key} is not sealed")
            return deleting(root, intent_id)

        def is_done(root: StreamRecord) -> bool:
            _refuse_other(root, key, meant)
            _refuse_of_other(root, key, owner)
            return isinstance(root.intent, DeleteIntent)

        async with self._driver.enlisted(key):
            root, waits_for = await self._decide(key, decide, is_done)
        busy_with = waits_for or (root.intent.intent_id if root.intent is not None else None)
        if busy_with is not None:
            await self._driver.wait(key, busy_with)

    async def remove(self, key: StreamKey, root: StreamRecord) -> None:
        """Delete the stream of that root, sealed or not, when its creation has ended. It may be deleted already."""
        if isinstance(root.intent, CreateIntent):
            await self._driver.wait(key, root.intent.intent_id)
        with contextlib.suppress(NoSuchStreamError):
            await self.seal(key, root.incarnation)
            await self.delete(key, root.incarnation)

    async def forgo(self, key: StreamKey, incarnation: int) -> None:
        """Leave out that incarnation, unless it was created: a creation of it that comes late creates nothing."""

        def decide(root: StreamRecord | None, _: Snapshot) -> Change[None]:
            if next_incarnation(root) != incarnation or (root is not None and root.state is not StreamState.DELETED):
                return Change(None)
            return Change(None, {key.root: tombstone(created(root, StreamConfig(), now_ms, intent_id))})

        intent_id, now_ms = self._context.new_id(), self._context.clock.now_ms()
        await self._context.store.change(key, (), decide)

    async def scale(
        self,
        key: StreamKey,
        sealed: Sequence[int],
        ranges: Sequence[KeyRange],
        decided_by: ScalingPolicy | None = None,
    ) -> ScaleIntent:
        """Decide a scale and return it; its workflow runs afterwards (docs/protocol/controller.md#streams, ``scale``).

        With `decided_by` it is by rates, and only while that is the stream's scaling policy: a policy of before scales
        nothing.

        Raises:
            ScalePreconditionError: a segment is not active, too few segments remain, or the stream has another policy
            than `decided_by`. BadRequestError: the ranges do not cover exactly those of the sealed segments.
            WorkflowBusyError: another scale is running. NoSuchStreamError, StreamSealedError.
        """
        intent_id = self._context.new_id()
        reason = ScaleReason.MANUAL if decided_by is None else ScaleReason.RATE
        async with self._driver.enlisted(key):
            while True:
                root = await self.load(key)
                epoch = await self._context.store.active_epoch(key, root)

                def decide(now: StreamRecord, epoch: Epoch = epoch) -> StreamRecord:
                    _refuse_sealed(now, key)
                    if decided_by is not None and now.config.scaling != decided_by:
                        raise ScalePreconditionError(f"stream {key} has another scaling policy than the scale is by")
                    if isinstance(now.intent, ScaleIntent):
                        raise WorkflowBusyError(f"stream {key} is being scaled")
                    if now.active_epoch != epoch.epoch:
                        raise _EpochChangedError
                    _check_scale(now, epoch, sealed, ranges, segments_max(*key))
                    return scaling(now, epoch, sealed, ranges, intent_id, reason)

                try:
                    root, waits_for = await self._decide(key, decide)
                except _EpochChangedError:
                    continue  # another change ended meanwhile: what is active now decides
                if waits_for is None and isinstance(root.intent, ScaleIntent):
                    return root.intent
                if waits_for is not None:
                    await self._driver.wait(key, waits_for)

    # -- decisions

    async def _change(self, key: StreamKey, intent_id: bytes, decide: Decision) -> None:
        """Wait for other workflows, persist the intent of `decide`, and wait for its workflow."""
        async with self._driver.enlisted(key):
            while True:
                _, waits_for = await self._decide(key, decide)
                if waits_for is None:
                    break
                await self._driver.wait(key, waits_for)
        await self._driver.wait(key, intent_id)

    async def _decide(
        self,
        key: StreamKey,
        decide: Decision,
        is_done: Callable[[StreamRecord], bool] = lambda root: False,
        keys: Sequence[bytes] = (),
    ) -> tuple[StreamRecord, bytes | None]:
        """Persist a decision; return the new root and None, or the present root and the intent to wait for.

        `decide` is called in both cases, so that it refuses a request without a wait. `keys` names records that the
        change needs beside the root.
        """

        def change(found: StreamRecord | None, snapshot: Snapshot) -> Change[tuple[StreamRecord, bytes | None]]:
            root = require(found, key)
            if is_done(root):
                return Change((root, None))
            decided = decide(root)
            if root.intent is not None:
                return Change((root, root.intent.intent_id))
            if root.rolling is not None and isinstance(decided.intent, ScaleIntent):
                return Change((root, root.rolling.intent_id))  # both would number the next epoch
            if isinstance(decided.intent, SealIntent):
                decided, shards = aborting_all(key, decided, snapshot)
                return Change((decided, None), {**shards, key.root: decided})
            return Change((decided, None), {key.root: decided})

        return await self._context.store.change(key, keys, change)


def _refuse_sealed(root: StreamRecord, key: StreamKey) -> None:
    if root.state in _SEALED:
        raise StreamSealedError(f"stream {key} is sealed")


def _refuse_other(root: StreamRecord, key: StreamKey, incarnation: int) -> None:
    """Refuse a late call when the stream was deleted and created again after the call began."""
    if root.incarnation != incarnation:
        raise NoSuchStreamError(f"stream {key} was deleted and created again")


def _refuse_of_other(root: StreamRecord, key: StreamKey, owner: str | None) -> None:
    """Check the owner inside the compare-and-swap of the decision: the owner may change at any time (ADR 0014)."""
    if owner is not None and root.owner != owner:
        raise NotTheOwnerError(str(key), root.owner)


def _sealed_already(root: StreamRecord) -> bool:
    return root.state in _SEALED


def _check_scale(
    root: StreamRecord, epoch: Epoch, sealed: Sequence[int], ranges: Sequence[KeyRange], most: int
) -> None:
    if len(dict.fromkeys(sealed)) != len(sealed):
        raise BadRequestError("sealedSegments names a segment twice")
    active = {segment.identifier: segment for segment in epoch.segments}
    replaced = [active[identifier] for identifier in sealed if identifier in active]
    if len(replaced) != len(sealed):
        raise ScalePreconditionError(f"sealedSegments names a segment that is not active in epoch {epoch.epoch}")
    if not scale_keeps_ranges(replaced, ranges):
        raise BadRequestError("newKeyRanges do not cover exactly the ranges of sealedSegments")
    count = len(epoch.segments) - len(sealed) + len(ranges)
    if count > max(most, len(epoch.segments)):
        raise ScalePreconditionError(f"the scale leaves {count} segments; a stream has {most} at most")
    if count < root.config.scaling.min_segments:
        raise ScalePreconditionError(
            f"the scale leaves fewer than {root.config.scaling.min_segments} segments, the policy's minimum"
        )
