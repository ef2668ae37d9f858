"""Which segments the sweep may delete: in random histories of a stream, never one that a record names or will name."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.names import parse_segment_name, qualified_segment_name, segment_id, transaction_segment_name
from tailrace.common.stream_policies import ScalingPolicy, StreamConfig
from tailrace.controller.metadata.epochs import duplicate, next_epoch
from tailrace.controller.metadata.model import Epoch, ScaleReason, StreamState, TransactionState
from tailrace.controller.metadata.records import Rolling, ScaleIntent, StreamRecord
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.controller.metadata.transitions import (
    commit_batch_done,
    commit_batch_taken,
    deleting,
    finished,
    may_take_commits,
    new_stream,
    renumbered,
    scaling,
    tombstone,
    transaction_aborting,
    transaction_committing,
    transaction_opened,
)
from tailrace.controller.sweep.decision import Fate, fate_of_segment, fate_of_transaction, name_by_controller
from tailrace.controller.sweep.sightings import Sightings
from tailrace.controller.workflows.transactions import make_transaction_id, transaction_epoch

STRAY = st.tuples(st.integers(0, 8), st.integers(0, 4))
KEY = StreamKey("scope", "stream")
GONE = (Fate.DELETE, Fate.DELETE_IF_EMPTY)


@dataclass
class History:
    """The records of one name, changed by the controller's own transitions, and all segments that were ever named."""

    rng: random.Random
    root: StreamRecord | None = None
    epochs: dict[int, Epoch] = field(default_factory=dict)
    opened: list[bytes] = field(default_factory=list)
    """Open transactions, which are in records of their own."""
    ended: dict[bytes, TransactionState] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)

    def named(self) -> set[str]:
        """The segments that the records name now, or that a step creates before they do."""
        root = self.root
        if root is None or root.state in (StreamState.DELETED, StreamState.DELETING):
            return set()
        ids = {each.identifier for epoch in self.epochs.values() for each in epoch.segments}
        if isinstance(root.intent, ScaleIntent):
            ids |= {each.identifier for each in root.intent.created}
        for epoch in self._duplicates():
            ids |= {each.identifier for each in epoch.segments}
        found = {qualified_segment_name(*KEY, each) for each in ids}
        for item in (*self.opened, *root.commit_queue, *root.commit_batch, *root.abort_queue):
            found |= self._segments_of(item)
        return found

    def step(self) -> None:
        """One change that is allowed now."""
        root = self.root
        if root is None or root.state is StreamState.DELETED:
            config = StreamConfig(ScalingPolicy.fixed(self.rng.randint(1, 3)))
            puts = new_stream(KEY, root, config, 0, b"intent")
            (created,) = (each for each in puts.values() if isinstance(each, StreamRecord))
            (epoch,) = (each for each in puts.values() if isinstance(each, Epoch))
            self.root, self.epochs, self.opened, self.ended = created, {0: epoch}, [], {}
        elif root.state is StreamState.CREATING and self.rng.random() < 0.2:  # segments of a lost life are there
            puts = renumbered(KEY, root, self.epochs[0], 0, b"again")
            (self.root,) = (each for each in puts.values() if isinstance(each, StreamRecord))
            self.epochs = {0: next(each for each in puts.values() if isinstance(each, Epoch))}
        elif root.state is StreamState.CREATING:
            self.root = finished(root, self.rng.choice([StreamState.ACTIVE, StreamState.ACTIVE, StreamState.DELETED]))
            if self.root.state is StreamState.DELETED:
                self.root = tombstone(root)
        elif root.state is StreamState.DELETING:
            self.root = tombstone(root)
        elif isinstance(root.intent, ScaleIntent):
            self._scale(root, root.intent)
        else:
            self.rng.choice([self._begin_scale, self._open, self._open, self._end, self._pass, self._delete])(root)
        self.created |= self.named()

    def _scale(self, root: StreamRecord, intent: ScaleIntent) -> None:
        if root.active_epoch == intent.old_epoch:
            epoch = next_epoch(self.epochs[intent.old_epoch], intent.sealed, intent.created, 0)
            self.epochs[epoch.epoch] = epoch
            root = msgspec.structs.replace(root, active_epoch=epoch.epoch)
        self.root = root if self.rng.random() < 0.3 else finished(root, StreamState.ACTIVE)

    def _begin_scale(self, root: StreamRecord) -> None:
        if root.rolling is None:
            epoch = self.epochs[root.active_epoch]
            chosen = self.rng.choice(epoch.segments)
            self.root = scaling(root, epoch, [chosen.identifier], [chosen.key_range], b"scale", ScaleReason.MANUAL)

    def _open(self, root: StreamRecord) -> None:
        self.opened.append(make_transaction_id(root.active_epoch, root.transaction_counter))
        self.root = transaction_opened(root)

    def _end(self, root: StreamRecord) -> None:
        if self.opened:
            chosen = self.opened.pop(self.rng.randrange(len(self.opened)))
            self.root = self.rng.choice([transaction_committing, transaction_aborting])(root, chosen)

    def _pass(self, root: StreamRecord) -> None:
        if root.abort_queue:
            self.ended.update(dict.fromkeys(root.abort_queue, TransactionState.ABORTED))
            self.root = msgspec.structs.replace(root, abort_queue=())
        elif root.commit_batch:
            for epoch in self._duplicates():
                self.epochs[epoch.epoch] = epoch
                root = msgspec.structs.replace(root, active_epoch=epoch.epoch)
            self.ended.update(dict.fromkeys(root.commit_batch, TransactionState.COMMITTED))
            self.root = commit_batch_done(root)
        elif root.commit_queue:
            began = self.epochs[transaction_epoch(root.commit_queue[0])].reference
            rolls = began != self.epochs[root.active_epoch].reference
            if may_take_commits(root, rolls=rolls):
                rolling = Rolling(b"rolling", root.active_epoch, began) if rolls else None
                self.root = commit_batch_taken(root, root.commit_queue[:1], (), rolling)

    def _delete(self, root: StreamRecord) -> None:
        if self.rng.random() < 0.2:
            self.root = deleting(root, b"delete")

    def _duplicates(self) -> list[Epoch]:
        root = self.root
        if root is None or root.rolling is None or root.active_epoch != root.rolling.old_epoch:
            return []
        first = duplicate(self.epochs[root.rolling.transaction_epoch], root.rolling.merged_epoch, 0)
        return [first, duplicate(self.epochs[root.active_epoch], root.rolling.new_epoch, 0)]

    def _segments_of(self, transaction_id: bytes) -> set[str]:
        began = transaction_epoch(transaction_id)
        numbers = [each.number for each in self.epochs[began].segments]
        parents = [qualified_segment_name(*KEY, segment_id(number, began)) for number in numbers]
        return {transaction_segment_name(parent, uuid.UUID(bytes=transaction_id)) for parent in parents}

    def fate(self, segment: str) -> Fate:
        """What the sweep decides by the records of now."""
        name, root = name_by_controller(segment), self.root
        assert name is not None
        exists = root is not None and root.state not in (
            StreamState.CREATING,
            StreamState.DELETING,
            StreamState.DELETED,
        )
        first = self.epochs[0] if exists else None
        if not name.suffix:
            own = self.epochs.get(name.identifier >> 32) if exists else None
            return fate_of_segment(name, root, first, own)
        item = bytes.fromhex(name.suffix[-32:])
        assert root is not None
        state = self.ended.get(item)
        if exists and item in (*root.commit_queue, *root.commit_batch):
            state = TransactionState.COMMITTING
        elif exists and item in self.opened:
            state = TransactionState.OPEN
        elif exists and item in root.abort_queue:
            state = TransactionState.ABORTING
        return fate_of_transaction(name, root, first, state)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60), strays=st.lists(STRAY, max_size=6))
def test_what_no_record_names_is_never_named_again(seed: int, steps: int, strays: list[tuple[int, int]]) -> None:
    history = History(random.Random(seed))
    invented = {qualified_segment_name(*KEY, segment_id(*each)) for each in strays}
    for (number, epoch), (counter, _) in itertools.product(strays, strays):
        item = uuid.UUID(bytes=make_transaction_id(epoch, counter))
        invented.add(transaction_segment_name(qualified_segment_name(*KEY, segment_id(number, epoch)), item))
    gone: set[str] = set()
    for _ in range(steps):
        history.step()
        named = history.named()
        assert not named & gone, "a segment that was to be deleted is named"
        now = {each for each in history.created | invented if history.fate(each) in GONE}
        assert not named & now, "a segment with a record is to be deleted"
        gone |= now


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_all_that_a_deleted_stream_named_is_deleted(seed: int, steps: int) -> None:
    history = History(random.Random(seed))
    for _ in range(steps):
        history.step()
    while history.root is None or history.root.state is not StreamState.DELETED:
        if history.root is not None and history.root.intent is None and history.root.state is StreamState.ACTIVE:
            history.root = deleting(history.root, b"delete")
        history.step()
    assert {history.fate(each) for each in history.created} == {Fate.DELETE}
    history.step()
    history.step()
    if history.root.state is StreamState.ACTIVE:
        earlier = history.created - history.named()
        assert {history.fate(each) for each in earlier} <= {Fate.DELETE, Fate.DELETE_IF_EMPTY}


TRANSACTION = make_transaction_id(3, 7).hex()


@pytest.mark.parametrize(
    "segment",
    [
        "scope/stream/0",
        "stream/0.#epoch.0",
        "scope/stream/01.#epoch.0",
        "scope/stream/0.#epoch.00",
        "_system/_tables/b0",
        "_system/_tables/scope/scope/0123456789012345",
        f"scope/stream/0.#epoch.2#transaction.{TRANSACTION}",
        f"scope/stream/0.#epoch.3#transient.{TRANSACTION}.{TRANSACTION}",
        "anything",
        "",
    ],
)
def test_other_names_are_not_a_controllers(segment: str) -> None:
    assert name_by_controller(segment) is None


@pytest.mark.parametrize(
    "segment",
    ["scope/stream/0.#epoch.0", f"scope/_RGgroup/4.#epoch.3#transaction.{TRANSACTION}", "s/_MARKx/1.#epoch.2"],
)
def test_names_of_a_controller(segment: str) -> None:
    assert name_by_controller(segment) == parse_segment_name(segment)


@pytest.mark.parametrize(
    ("number", "epoch", "fate"),
    [
        (0, 0, Fate.DELETE),
        (1, 0, Fate.DELETE),
        (2, 0, Fate.DELETE_IF_EMPTY),
        (3, 0, Fate.DELETE_IF_EMPTY),
        (700, 0, Fate.DELETE_IF_EMPTY),
        (700, 2, Fate.KEEP),
        (limits.SEGMENT_NUMBERS_SKIPPED + 4, 0, Fate.KEEP),
    ],
)
def test_bytes_that_a_creation_found_in_its_segments_stay(number: int, epoch: int, fate: Fate) -> None:
    """Its names before were 2 and 3; what has a lower number is of an earlier stream."""
    earlier = StreamRecord(0, StreamState.DELETED, StreamConfig(), 0, next_segment_number=2)
    puts = new_stream(KEY, earlier, StreamConfig(ScalingPolicy.fixed(2)), 0, b"intent")
    creating = puts[KEY.root]
    before = puts[KEY.epoch(1, 0)]
    assert isinstance(creating, StreamRecord)
    assert isinstance(before, Epoch)
    again = renumbered(KEY, creating, before, 0, b"again")
    root, first = again[KEY.root], again[KEY.epoch(2, 0)]
    assert isinstance(root, StreamRecord)
    assert isinstance(first, Epoch)
    name = parse_segment_name(qualified_segment_name(*KEY, segment_id(number, epoch)))
    own = first if epoch == 0 else None
    assert fate_of_segment(name, finished(root, StreamState.ACTIVE), first, own) is fate


def test_without_a_record_of_the_stream_all_is_kept() -> None:
    name = parse_segment_name("scope/table_kvtable/0.#epoch.0")
    assert fate_of_segment(name, None, None, None) is Fate.KEEP
    name = parse_segment_name(f"scope/x/0.#epoch.3#transaction.{TRANSACTION}")
    assert fate_of_transaction(name, None, None, None) is Fate.KEEP


def test_sightings_are_bounded_and_begin_again_after_a_look_that_found_a_record() -> None:
    sightings = Sightings(2)
    assert [sightings.see(each, 1.0) for each in ("a", "b", "c")] == [None, None, None]
    assert [sightings.see(each, 5.0) for each in ("a", "b", "c")] == [4.0, 4.0, None]
    assert len(sightings) == 2
    sightings.forget("a")
    assert sightings.see("c", 6.0) is None
    assert sightings.see("a", 6.0) is None
    sightings.keep({"c", "d"})
    assert len(sightings) == 1
    assert sightings.see("c", 7.0) == 1.0
