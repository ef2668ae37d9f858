"""The state of a reader group under any sequence of legal updates, and the rules by which readers share segments."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.client.group.state import policy
from tailrace.client.group.state import records as r
from tailrace.client.group.state.codec import decode_record, encode_batch, encode_initial
from tailrace.client.group.state.state import DISTANCE_UNKNOWN, GroupState, compact, initial_state, replay
from tailrace.client.model import ReaderGroupConfig
from tailrace.common.errors import IllegalStateError
from tailrace.common.ranges import KeyRange

CONFIG = ReaderGroupConfig()
READERS = ["r1", "r2", "r3"]


def segment(number: int, epoch: int = 0) -> str:
    return f"s/t/{number}.#epoch.{epoch}"


A, B, C, D, E = segment(0), segment(1), segment(2, 1), segment(3, 1), segment(4, 2)


def fresh(**offsets: int) -> GroupState:
    return initial_state(r.Init(CONFIG, {(segment(int(name[1:])), None): at for name, at in offsets.items()}, {}))


class Group(RuleBasedStateMachine):
    """Readers that obey the preconditions; every update goes through the codec into two copies of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.state = fresh(n0=0, n1=0, n2=0)
        self.copy = fresh(n0=0, n1=0, n2=0)
        self.epoch = 0
        self.live = {segment(0), segment(1), segment(2)}
        self.numbers = 3

    def write(self, *updates: r.Update) -> None:
        replay(self.state, updates)
        replay(self.copy, decode_record(encode_batch(updates))[1])

    @rule(reader=st.sampled_from(READERS))
    def join(self, reader: str) -> None:
        if not self.state.is_online(reader):
            self.write(r.AddReader(reader))

    @rule(reader=st.sampled_from(READERS), known=st.booleans())
    def leave(self, reader: str, known: bool) -> None:
        owned = self.state.assigned.get(reader, {})
        self.write(r.RemoveReader(reader, {name: at + 1 for name, at in owned.items()} if known else {}))

    @rule(reader=st.sampled_from(READERS))
    def acquire(self, reader: str) -> None:
        wanted = policy.segments_to_acquire(self.state, reader)
        assert bool(wanted) == (
            self.state.is_online(reader) and bool(self.state.unassigned) and self.state.due_for(reader) is None
        )
        if wanted:
            self.write(*(r.AcquireSegment(reader, name) for name in wanted), r.UpdateDistanceToTail(reader, 5))

    @rule(reader=st.sampled_from(READERS))
    def release(self, reader: str) -> None:
        name = policy.segment_to_release(self.state, reader)
        if name is not None:
            assert len(self.state.assigned[reader]) > 1
            self.write(r.ReleaseSegment(reader, name, 7))
            assert self.state.unassigned[name] == 7

    @rule(reader=st.sampled_from(READERS), splits=st.integers(1, 3))
    def complete(self, reader: str, splits: int) -> None:
        owned = self.state.assigned.get(reader)
        if not owned or self.state.due_for(reader) is not None:
            return
        name = next(iter(owned))
        self.epoch += 1
        identifier = int(name.split("/")[2].split(".")[0]) | int(name.rsplit(".", 1)[1]) << 32
        successors = {segment(self.numbers + i, self.epoch): [identifier] for i in range(splits)}
        self.numbers += splits
        self.live = (self.live - {name}) | set(successors)
        self.write(r.SegmentCompleted(reader, name, successors, {s: KeyRange(0, 1) for s in successors}))

    @rule(name=st.sampled_from(["a", "b", "c_SILENT_"]))
    def create(self, name: str) -> None:
        if name not in self.state.positions:
            self.write(r.CreateCheckpoint(name))

    @precondition(lambda self: any(self.state.due.values()))
    @rule(reader=st.sampled_from(READERS), offset=st.integers(-1, 100))
    def answer(self, reader: str, offset: int) -> None:
        name = self.state.due_for(reader)
        if name is None:
            return
        owned = dict.fromkeys(self.state.assigned[reader], offset)
        self.write(r.CheckpointReader(name, reader, owned))
        if not r.is_silent(name):
            assert all(at == offset for at in self.state.assigned[reader].values())

    @rule(name=st.sampled_from(["a", "b", "c_SILENT_"]))
    def clear(self, name: str) -> None:
        self.write(r.ClearCheckpointsBefore(name))

    @rule()
    def compact_one(self) -> None:
        initial, updates = decode_record(encode_initial(compact(self.copy)) + bytes(100))
        assert initial
        self.copy = replay(None, updates)
        self.state.apply(updates[0])

    @invariant()
    def every_segment_has_exactly_one_place(self) -> None:
        places = [*self.state.unassigned, *self.state.future]
        places += [name for owned in self.state.assigned.values() for name in owned]
        assert len(places) == len(set(places))
        assert set(places) == self.live

    @invariant()
    def both_copies_are_equal(self) -> None:
        assert self.state == self.copy

    @invariant()
    def complete_checkpoints_cover_all_segments_of_their_time(self) -> None:
        for name, readers in self.state.due.items():
            assert readers
            assert set(readers) <= set(self.state.assigned)
            assert name in self.state.positions


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    "update",
    [
        r.AddReader("r1"),
        r.AcquireSegment("r1", C),
        r.AcquireSegment("unknown", B),
        r.ReleaseSegment("r1", B, 0),
        r.ReleaseSegment("unknown", A, 0),
        r.SegmentCompleted("r1", B, {}),
        r.CheckpointReader("cp", "r2", {}),
        r.CheckpointReader("cp", "r1", {A: 1}),
    ],
    ids=lambda update: f"{type(update).__name__}",
)
def test_updates_that_would_poison_the_group_are_refused(update: r.Update) -> None:
    state = fresh(n0=0, n1=0)
    first: list[r.Update] = [r.AddReader("r1"), r.AcquireSegment("r1", A), r.AddReader("r3")]
    answered: list[r.Update] = [r.CreateCheckpoint("cp"), r.CheckpointReader("cp", "r1", {A: 1})]
    replay(state, [*first, *answered])
    with pytest.raises(IllegalStateError):
        state.apply(update)


def test_a_merged_segment_becomes_free_when_all_predecessors_are_completed() -> None:
    state = fresh(n0=0, n1=0)
    replay(state, [r.AddReader("r"), r.AcquireSegment("r", A), r.AcquireSegment("r", B)])
    successors = {E: [0, 1]}
    state.apply(r.SegmentCompleted("r", A, successors, {E: KeyRange(0.0, 1.0)}))
    assert state.future == {E: [1]}
    state.apply(r.SegmentCompleted("r", B, successors, {E: KeyRange(0.0, 1.0)}))
    assert (state.future, state.unassigned, state.last_read[E]) == ({}, {E: 0}, 0)
    assert state.range_of(E) == KeyRange(0.0, 1.0)


def test_a_removed_reader_answers_its_checkpoints_with_its_last_positions() -> None:
    state = fresh(n0=3, n1=4)
    replay(state, [r.AddReader("r"), r.AcquireSegment("r", A), r.CreateCheckpoint("cp")])
    assert not state.is_complete("cp")
    state.apply(r.RemoveReader("r", {A: 30, C: 99}))
    assert state.is_complete("cp")
    assert state.last_checkpoint == {A: 30, B: 4}
    assert state.unassigned == {A: 30, B: 4}
    assert not state.published


def test_checkpoints_without_readers_are_complete_at_once() -> None:
    state = fresh(n0=1)
    state.apply(r.CreateCheckpoint("cp"))
    assert state.is_complete("cp")
    assert state.last_checkpoint is None
    assert state.positions["cp"] == {A: 1}


def test_cancelled_checkpoints_keep_their_names_only() -> None:
    state = fresh(n0=1)
    replay(state, [r.AddReader("r"), r.CreateCheckpoint("a"), r.CreateCheckpoint("b_SILENT_")])
    assert state.outstanding_checkpoints() == ["a"]
    state.apply(r.RemoveOutstandingCheckpoints())
    assert (state.checkpoints, list(state.due), list(state.positions)) == (
        ["a", "b_SILENT_"],
        ["b_SILENT_"],
        ["b_SILENT_"],
    )


def test_an_update_before_the_first_state_is_refused() -> None:
    with pytest.raises(IllegalStateError, match="before its first state"):
        replay(None, [r.AddReader("r")])


def test_distances() -> None:
    state = fresh(n0=0, n1=0)
    state.apply(r.AddReader("r"))
    assert state.distance == {"r": DISTANCE_UNKNOWN}
    state.apply(r.UpdateDistanceToTail("r", 5, {(A, None): 8, (E, None): 1}))
    assert (state.distance, state.last_read) == ({"r": 30000}, {A: 8, B: 0})


@pytest.mark.parametrize(
    ("free", "owned", "readers", "count"),
    [(1, 0, 1, 1), (4, 0, 1, 4), (4, 0, 2, 2), (5, 0, 2, 3), (1, 2, 2, 1), (3, 0, 2, 2), (0, 0, 2, 0), (9, 0, 4, 2)],
)
def test_how_many_segments_a_reader_takes(free: int, owned: int, readers: int, count: int) -> None:
    state = initial_state(r.Init(CONFIG, {(segment(i), None): 0 for i in range(free + owned)}, {}))
    replay(state, [r.AddReader(f"r{i}") for i in range(readers)])
    replay(state, [r.AcquireSegment("r0", segment(i)) for i in range(owned)])
    assert policy.acquire_count(state, "r0") == count


def test_only_a_clearly_overloaded_reader_releases() -> None:
    state = initial_state(r.Init(CONFIG, {(segment(i), None): 0 for i in range(3)}, {}))
    replay(state, [r.AddReader("r1"), *(r.AcquireSegment("r1", segment(i)) for i in range(3))])
    assert policy.segment_to_release(state, "r1") is None
    state.apply(r.AddReader("r2"))
    assert policy.segment_to_release(state, "r1") in state.assigned["r1"]
    assert policy.segment_to_release(state, "r2") is None
    state.apply(r.AcquireSegment("r2", segment(0)) if segment(0) in state.unassigned else r.CreateCheckpoint("x"))
    assert policy.segment_to_release(state, "r1") is None, "not while a checkpoint is due"


def test_the_most_loaded_reader_looks_last_for_more_and_first_for_less() -> None:
    state = initial_state(r.Init(CONFIG, {(segment(i), None): 0 for i in range(3)}, {}))
    replay(state, [r.AddReader("r1"), r.AddReader("r2"), r.AcquireSegment("r1", A), r.AcquireSegment("r1", B)])
    assert (policy.rank(state, "r1"), policy.rank(state, "r2"), policy.rank(state, "r3")) == (0, 1, -1)
    assert (policy.acquire_timer_s(state, "r1"), policy.acquire_timer_s(state, "r2")) == (2.0, 1.0)
    assert (policy.release_timer_s(state, "r1"), policy.release_timer_s(state, "r2")) == (1.0, 2.0)
    assert policy.lag_timer_s(state) == 3.0
