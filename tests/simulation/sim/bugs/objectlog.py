"""Planted bugs of the log in the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sim.bugs.registry import bug
from sim.workloads.objectlog import ObjectLogWorkload
from tailrace.common.errors import AlreadyExistsError, FencedError
from tailrace.log import object_recovery, object_scan, probe
from tailrace.log.claims import Claim, Claims
from tailrace.log.object import ObjectLog
from tailrace.log.object_cleaner import ObjectCleaner
from tailrace.log.object_recovery import ObjectScan
from tailrace.log.object_requests import ObjectRequests
from tailrace.log.object_scan import ObjectScanner
from tailrace.storage.port import ObjectStore


def _uneven(seed: int) -> ObjectLogWorkload:
    """The network of some owners is bad."""
    workload = ObjectLogWorkload(seed)
    workload.make_uneven()
    return workload


def _lying(seed: int) -> ObjectLogWorkload:
    """The store lies."""
    workload = ObjectLogWorkload(seed)
    workload.lying = True
    return workload


async def _no_look(self: ObjectLog) -> None:
    """Believes without looking at the claims."""
    self._owned_at_s = asyncio.get_running_loop().time()


@bug("acknowledge-without-look", ObjectLogWorkload, checker="workloads/objectlog.py", words="began without it")
def _acknowledge_without_look(patch: pytest.MonkeyPatch) -> None:
    """The object log acknowledges a frame without checking the claims of later owners.

    Breaks: only one owner of a log acknowledges.
    """
    patch.setattr(ObjectLog, "_look", _no_look)


@bug("look-begun-before-puts-completed", _uneven, checker="workloads/objectlog.py", words="began without it")
def _look_begun_before_puts_completed(patch: pytest.MonkeyPatch) -> None:
    """The object log checks the claims before the puts that the check must cover are complete.

    Breaks: only one owner of a log acknowledges.
    """

    async def acknowledge_stored(self: ObjectLog) -> None:
        try:
            while self._stored_through > self._acknowledged_through and self._failure is None:
                await self._look()
                self._acknowledge(self._stored_through)
        finally:
            self._looking = False

    patch.setattr(ObjectLog, "_acknowledge_stored", acknowledge_stored)


@bug(
    "opened-without-look",
    ObjectLogWorkload,
    checker="workloads/objectlog.py",
    words="did not find frame .*, which was acknowledged",
)
def _opened_without_look(patch: pytest.MonkeyPatch) -> None:
    """A log opens before its owner has read its own START frame, while late frames of others still count.

    Breaks: a later owner finds every acknowledged frame.
    """
    original = ObjectLog._look

    async def look(self: ObjectLog) -> None:
        await (original(self) if self._begun else _no_look(self))

    patch.setattr(ObjectLog, "_look", look)


@bug("epoch-reused", ObjectLogWorkload, checker="workloads/objectlog.py", words="has two owners")
def _epoch_reused(patch: pytest.MonkeyPatch) -> None:
    """An owner takes an epoch that is already claimed.

    Breaks: two owners never get the same epoch.
    """

    async def take(self: Claims, epoch: int, nonce: bytes) -> None:
        for number in range(await self.last() + 1, epoch + 1):
            await self._create(Claim(self._keys.container, number, epoch, nonce))
        if await self.last() > epoch:
            raise await self._fenced(epoch)

    patch.setattr(Claims, "take", take)


@bug("lower-epochs-not-claimed", ObjectLogWorkload, checker="workloads/objectlog.py", words="began without it")
def _lower_epochs_not_claimed(patch: pytest.MonkeyPatch) -> None:
    """An owner claims its own epoch and leaves lower epochs free.

    Breaks: only one owner of a log acknowledges.
    """

    async def take(self: Claims, epoch: int, nonce: bytes) -> None:
        claim = Claim(self._keys.container, epoch, epoch, nonce)
        if await self._exists(epoch) or await self._create(claim) != claim:
            raise FencedError(f"epoch {epoch} is taken", epoch)

    patch.setattr(Claims, "take", take)


@bug(
    "read-before-claim",
    ObjectLogWorkload,
    checker="workloads/objectlog.py",
    words="did not find frame .*, which was acknowledged",
)
def _read_before_claim(patch: pytest.MonkeyPatch) -> None:
    """An owner reads the log before it claims its epoch.

    Breaks: a later owner finds every acknowledged frame.
    """
    take, decision = Claims.take, ObjectScanner.decision
    found: dict[int, Any] = {}

    async def read_then_take(self: Claims, epoch: int, nonce: bytes) -> None:
        found[epoch] = await ObjectScanner(self._requests, self._keys).decision(epoch)
        await take(self, epoch, nonce)

    async def what_was_read(self: ObjectScanner, below_epoch: int) -> Any:
        return found.pop(below_epoch) if below_epoch in found else await decision(self, below_epoch)

    patch.setattr(Claims, "take", read_then_take)
    patch.setattr(ObjectScanner, "decision", what_was_read)


@bug(
    "predecessors-prefix-skipped",
    ObjectLogWorkload,
    checker="workloads/objectlog.py",
    words="did not find frame .*, which was acknowledged",
)
def _predecessors_prefix_skipped(patch: pytest.MonkeyPatch) -> None:
    """A new owner skips the frames of the owner before it.

    Breaks: a later owner finds every acknowledged frame.
    """

    async def scan(
        self: ObjectScanner, epoch: int, first: int, last: int | None, nonce: bytes | None, hint: int | None
    ) -> ObjectScan:
        return ObjectScan(epoch, first) if last is None else await original(self, epoch, first, last, nonce, hint)

    original = ObjectScanner._scan
    patch.setattr(ObjectScanner, "_scan", scan)


@bug(
    "missing-frame-taken-for-gap",
    ObjectLogWorkload,
    checker="workloads/objectlog.py",
    words="did not find frame .*, which was acknowledged",
)
def _missing_frame_taken_for_gap(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes a missing acknowledged frame for a gap that was never acknowledged.

    Breaks: a log that lost acknowledged frames is refused, not shortened.
    """

    def decide(keys: Any, top: Any, mark: Any, own: ObjectScan, older: Sequence[ObjectScan]) -> Any:
        own.greatest_acknowledged = -1
        return original(keys, top, mark, own, older)

    original = object_recovery.decide
    patch.setattr(object_scan, "decide", decide)


@bug("late-frames-of-older-epochs-counted", ObjectLogWorkload, checker="workloads/objectlog.py", words="gaps in")
def _late_frames_of_older_epochs_counted(patch: pytest.MonkeyPatch) -> None:
    """Recovery counts all frames of predecessors, whatever the START frame lists.

    Breaks: every later owner finds the same frames.
    """

    async def scan(
        self: ObjectScanner, epoch: int, first: int, last: int | None, nonce: bytes | None, hint: int | None
    ) -> ObjectScan:
        return await original(self, epoch, first, None, nonce, hint)

    original = ObjectScanner._scan
    patch.setattr(ObjectScanner, "_scan", scan)


@bug(
    "kept-frames-not-verified",
    ObjectLogWorkload,
    checker="workloads/objectlog.py",
    words="was damaged .*, and no owner noticed",
)
def _kept_frames_not_verified(patch: pytest.MonkeyPatch) -> None:
    """A scan takes a frame for sound because its header is sound.

    Breaks: damage is never served.
    """
    patch.setattr(object_scan, "_is_sound", lambda header, data: len(data) == header.frame_length)


@bug(
    "truncated-without-mark",
    ObjectLogWorkload,
    checker="checks/undamaged.py",
    words="opening of the log.* reports DataLossError",
)
def _truncated_without_mark(patch: pytest.MonkeyPatch) -> None:
    """The object log deletes frames before a mark records the new start of the log.

    Breaks: a log without damage always opens.
    """

    async def truncate_marked(self: ObjectLog) -> None:
        self._marked_log_start = self._log_start
        await self._delete_below(self._log_start)
        self._truncating = False

    patch.setattr(ObjectLog, "_truncate_marked", truncate_marked)


@bug(
    "zombie-garbage-collection",
    ObjectLogWorkload,
    checker="checks/undamaged.py",
    words="opening of the log.* reports DataLossError",
)
def _zombie_garbage_collection(patch: pytest.MonkeyPatch) -> None:
    """An owner deletes objects of other epochs without checking for a later owner.

    Breaks: an owner that was replaced deletes nothing that its successor needs.
    """

    async def check_until_answered(self: ObjectLog) -> None:
        names = await self._requests.persist(lambda: self._requests.list(self._keys))
        own = self._identity.epoch
        others = [name for name in names if name.epoch != own and self._index.epoch_of(name.number) != name.epoch]
        await self._requests.delete([self._keys.of(name) for name in others])

    patch.setattr(ObjectLog, "_check_until_answered", check_until_answered)


@bug(
    "newest-mark-unreachable",
    ObjectLogWorkload,
    checker="checks/undamaged.py",
    words="opening of the log.* reports DataLossError",
)
def _newest_mark_unreachable(patch: pytest.MonkeyPatch) -> None:
    """The cleaner deletes the marks that lead to the newest mark.

    Breaks: a log without damage always opens.
    """

    async def supersede_marks(self: ObjectCleaner, epoch: int, last: int) -> None:
        await self._requests.delete([self._keys.mark(epoch, number) for number in range(1, last)])

    patch.setattr(ObjectCleaner, "supersede_marks", supersede_marks)


@bug(
    "unknown-outcome-taken-for-success",
    ObjectLogWorkload,
    checker="checks/undamaged.py",
    words="opening of the log reports DataLossError",
)
def _unknown_outcome_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    """A put whose answer was lost counts as done.

    Breaks: an acknowledged frame is stored.
    """

    async def settle(self: ObjectRequests, key: str, frame: Any, *_: int | None, in_turn: bool = False) -> None:
        try:
            await self._within(key, self._store.put(key, frame))
        except Exception:
            return

    patch.setattr(ObjectRequests, "settle", settle)


@bug(
    "probe-without-conditions",
    _lying,
    checker="workloads/objectlog.py",
    words="was accepted that fails at: ignores conditions",
)
def _probe_without_conditions(patch: pytest.MonkeyPatch) -> None:
    """The probe accepts a store that ignores conditions.

    Breaks: a store that cannot hold a log is refused.
    """

    async def nothing(self: object, key: str) -> None:
        """Trusts."""

    patch.setattr(probe._Probe, "_conditions_hold", nothing)
    patch.setattr(probe._Probe, "_rivals", nothing)


@bug(
    "probe-of-present-objects-only",
    _lying,
    checker="workloads/objectlog.py",
    words="was accepted that fails at: linearizable reads",
)
def _probe_of_present_objects_only(patch: pytest.MonkeyPatch) -> None:
    """The probe accepts a store that remembers that an object was missing.

    Breaks: a store that cannot hold a log is refused.
    """

    async def put_and_read(self: probe._Probe, key: str) -> None:
        store: ObjectStore = self._store
        await store.put(key, [b"x"])
        if await store.get(key) != b"x":
            raise AlreadyExistsError(key)

    patch.setattr(probe._Probe, "_reads_follow_writes", put_and_read)
