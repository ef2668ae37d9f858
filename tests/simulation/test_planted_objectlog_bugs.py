"""The checkers of the object log's workload find what they are for: each test plants a bug and expects a violation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sim.violations import Violation
from sim.workloads.objectlog import ObjectLogWorkload
from tailrace.common.errors import AlreadyExistsError, DataError, FencedError
from tailrace.log import objectrecovery, objectscan, probe
from tailrace.log.claims import Claim, Claims
from tailrace.log.object import ObjectLog
from tailrace.log.objectcalls import ObjectCalls
from tailrace.log.objectcleaner import ObjectCleaner
from tailrace.log.objectrecovery import ObjectScan
from tailrace.log.objectscan import ObjectScanner
from tailrace.storage.port import ObjectStore

SEEDS_MAX = 200


def expect_violation(words: str = "", *, lying: bool = False, uneven: bool = False) -> None:
    """Run seeds until one breaks a promise, in words that show it is the planted one.

    ``lying`` runs only seeds with a store that lies, ``uneven`` only those where the network of some owners is bad.
    """
    for seed in range(SEEDS_MAX):
        workload = ObjectLogWorkload(seed)
        workload.lying = lying
        if uneven:
            workload.make_uneven()
        try:
            workload.run()
        except (Violation, DataError) as error:
            if words in str(error):
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not find the planted bug")


async def _no_look(self: ObjectLog) -> None:
    """Believes without looking at the claims."""
    self._owned_at_s = asyncio.get_running_loop().time()


def test_acknowledging_without_the_look_at_the_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectLog, "_look", _no_look)
    expect_violation("began without it")


def test_a_look_that_began_before_the_puts_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acknowledge_stored(self: ObjectLog) -> None:
        try:
            while self._stored_through > self._acknowledged_through and self._failure is None:
                await self._look()
                self._acknowledge(self._stored_through)
        finally:
            self._looking = False

    monkeypatch.setattr(ObjectLog, "_acknowledge_stored", acknowledge_stored)
    expect_violation("began without it", uneven=True)


def test_a_log_that_is_open_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it found may not be what the next owner finds: late frames of the one before count until START is seen."""
    original = ObjectLog._look

    async def look(self: ObjectLog) -> None:
        await (original(self) if self._begun else _no_look(self))

    monkeypatch.setattr(ObjectLog, "_look", look)
    expect_violation()


def test_an_owner_that_reuses_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(self: Claims, epoch: int, nonce: bytes) -> None:
        for number in range(await self.last() + 1, epoch + 1):
            await self._create(Claim(self._keys.container, number, epoch, nonce))
        if await self.last() > epoch:
            raise await self._fenced(epoch)

    monkeypatch.setattr(Claims, "take", take)
    expect_violation()


def test_an_owner_that_claims_its_own_epoch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(self: Claims, epoch: int, nonce: bytes) -> None:
        claim = Claim(self._keys.container, epoch, epoch, nonce)
        if await self._exists(epoch) or await self._create(claim) != claim:
            raise FencedError(f"epoch {epoch} is taken", epoch)

    monkeypatch.setattr(Claims, "take", take)
    expect_violation()


def test_an_owner_that_reads_before_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    take, decision = Claims.take, ObjectScanner.decision
    found: dict[int, Any] = {}

    async def read_then_take(self: Claims, epoch: int, nonce: bytes) -> None:
        found[epoch] = await ObjectScanner(self._calls, self._keys).decision(epoch)
        await take(self, epoch, nonce)

    async def what_was_read(self: ObjectScanner, below_epoch: int) -> Any:
        return found.pop(below_epoch) if below_epoch in found else await decision(self, below_epoch)

    monkeypatch.setattr(Claims, "take", read_then_take)
    monkeypatch.setattr(ObjectScanner, "decision", what_was_read)
    expect_violation()


def test_a_new_owner_that_skips_the_predecessors_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scan(
        self: ObjectScanner, epoch: int, first: int, last: int | None, nonce: bytes | None, hint: int | None
    ) -> ObjectScan:
        return ObjectScan(epoch, first) if last is None else await original(self, epoch, first, last, nonce, hint)

    original = ObjectScanner._scan
    monkeypatch.setattr(ObjectScanner, "_scan", scan)
    expect_violation()


def test_an_acknowledged_frame_missing_taken_for_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(keys: Any, top: Any, mark: Any, own: ObjectScan, older: Sequence[ObjectScan]) -> Any:
        own.greatest_acknowledged = -1
        return original(keys, top, mark, own, older)

    original = objectrecovery.decide
    monkeypatch.setattr(objectscan, "decide", decide)
    expect_violation()


def test_frames_of_an_older_epoch_that_appear_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the predecessors' frames as far as they go, in place of what the START frame lists."""

    async def scan(
        self: ObjectScanner, epoch: int, first: int, last: int | None, nonce: bytes | None, hint: int | None
    ) -> ObjectScan:
        return await original(self, epoch, first, None, nonce, hint)

    original = ObjectScanner._scan
    monkeypatch.setattr(ObjectScanner, "_scan", scan)
    expect_violation()


def test_deleting_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    async def truncate_marked(self: ObjectLog) -> None:
        self._marked_log_start = self._log_start
        await self._delete_below(self._log_start)
        self._truncating = False

    monkeypatch.setattr(ObjectLog, "_truncate_marked", truncate_marked)
    expect_violation()


def test_a_zombie_that_collects_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes what it does not know of, later epochs included, without a look whether there are any."""

    async def look_until_told(self: ObjectLog) -> None:
        names = await self._calls.persist(lambda: self._calls.list(self._keys))
        own = self._identity.epoch
        others = [name for name in names if name.epoch != own and self._map.epoch_of(name.number) != name.epoch]
        await self._calls.delete([self._keys.of(name) for name in others])

    monkeypatch.setattr(ObjectLog, "_look_until_told", look_until_told)
    expect_violation()


def test_marks_that_cannot_be_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def supersede_marks(self: ObjectCleaner, epoch: int, last: int) -> None:
        await self._calls.delete([self._keys.mark(epoch, number) for number in range(1, last)])

    monkeypatch.setattr(ObjectCleaner, "supersede_marks", supersede_marks)
    expect_violation()


def test_an_unknown_outcome_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(self: ObjectCalls, key: str, frame: Any, attempts: int | None = None) -> None:
        try:
            await self._within(key, self._store.put(key, frame))
        except Exception:
            return

    monkeypatch.setattr(ObjectCalls, "settle", settle)
    expect_violation()


def test_a_probe_that_does_not_try_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object, key: str) -> None:
        """Trusts."""

    monkeypatch.setattr(probe._Probe, "_conditions_hold", nothing)
    monkeypatch.setattr(probe._Probe, "_rivals", nothing)
    expect_violation("was accepted", lying=True)


def test_a_probe_that_reads_only_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put_and_read(self: probe._Probe, key: str) -> None:
        store: ObjectStore = self._store
        await store.put(key, [b"x"])
        if await store.get(key) != b"x":
            raise AlreadyExistsError(key)

    monkeypatch.setattr(probe._Probe, "_reads_follow_writes", put_and_read)
    expect_violation("was accepted", lying=True)
