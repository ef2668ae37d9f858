"""A checkpoint that is encoded in steps is that of the moment at which it began, whatever commits between them."""

from __future__ import annotations

import random
from itertools import count

import pytest

from tailrace.common import limits
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.checkpoint_encoding import CheckpointEncoding
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.segmentstore.metadata.state import ContainerState

KEYS = [bytes([number]) * 16 for number in range(6)]
SEGMENTS = 20


class Commits:
    """Random operations that fit the state."""

    def __init__(self, state: ContainerState, rng: random.Random) -> None:
        self.state = state
        self.random = rng
        self.numbers = count(1)
        self.kinds = dict[str, int]()

    def commit(self) -> None:
        """Commit one operation."""
        segments = list(self.state.segments.values())
        make = self.random.choice(
            [self.append, self.append, self.update, self.seal, self.truncate, self.merge, self.delete]
            + [self.flush, self.flush, self.index, self.swap, self.move, self.deleted]
            + [self.create] * (8 if len(segments) < SEGMENTS else 1)
        )
        operation = make(self.random.choice(segments)) if segments else self.create(None)
        if operation is not None:
            kind = type(operation).__name__
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            self.state.apply(self.state.next_sequence, operation)

    def values(self) -> list[tuple[bytes, int]]:
        """Some values of attributes."""
        return [(key, self.random.randrange(100)) for key in self.random.sample(KEYS, self.random.randrange(4))]

    def create(self, _: object) -> ops.Operation:
        """A segment."""
        name = f"scope/stream-{next(self.numbers)}/0.#epoch.0"
        return ops.Create(self.state.next_sequence, name, SegmentKind.STREAM, 0, 5, self.values())

    def append(self, segment: Segment) -> ops.Operation:
        """Some bytes."""
        data = memoryview(bytes(self.random.randrange(1, 20)))
        return ops.Append(segment.segment_id, segment.length, 0, self.values(), data)

    def update(self, segment: Segment) -> ops.Operation:
        """Values of attributes."""
        return ops.UpdateAttributes(segment.segment_id, self.values())

    def seal(self, segment: Segment) -> ops.Operation:
        """An end."""
        return ops.Seal(segment.segment_id, 7)

    def truncate(self, segment: Segment) -> ops.Operation:
        """A new start."""
        return ops.Truncate(segment.segment_id, self.random.randint(segment.start_offset, segment.length))

    def merge(self, source: Segment) -> ops.Operation | None:
        """Into another segment."""
        targets = [each for each in self.state.segments.values() if each is not source]
        if not targets or source.start_offset:
            return None
        target = self.random.choice(targets)
        ids = target.segment_id, source.segment_id
        return ops.Merge(*ids, target.length, source.length, 8, self.values())

    def delete(self, segment: Segment) -> ops.Operation:
        """A segment goes."""
        return ops.Delete(segment.segment_id)

    def flush(self, segment: Segment) -> ops.Operation | None:
        """The first bytes that Tier 2 lacks."""
        gap = next(segment.chunks.gaps(segment.start_offset, segment.length), None)
        if gap is None:
            return None
        return ops.AddChunks([(segment.segment_id, self.ref(gap[0], gap[1]))], [f"orphan-{next(self.numbers)}"])

    def ref(self, start: int, end: int) -> ChunkRef:
        """A reference to a new object."""
        return ChunkRef(f"object-{next(self.numbers)}", 0, start, end - start)

    def index(self, segment: Segment) -> ops.Operation:
        """A root of the index that holds all updates."""
        start, page = segment.index.length, 30
        root = ops.IndexRoot(start, page, segment.index.start_offset, start + page, page, self.state.committed_sequence)
        return ops.CommitIndex(segment.segment_id, root, [self.ref(start, start + page)])

    def swap(self, segment: Segment) -> ops.Operation | None:
        """One reference for another."""
        refs = list(segment.chunks)
        if not refs:
            return None
        old = self.random.choice(refs)
        return ops.SwapChunks(segment.segment_id, [old], [self.ref(old.segment_offset, old.end)])

    def move(self, segment: Segment) -> ops.Operation | None:
        """A reference to what is left of a chunk."""
        refs = list(segment.chunks)
        if not refs:
            return None
        old = self.random.choice(refs)
        start = max(old.segment_offset, min(segment.start_offset, old.end - 1))
        return ops.MoveChunks([ops.ChunkMove(segment.segment_id, old, self.ref(start, old.end))])

    def deleted(self, _: object) -> ops.Operation | None:
        """An object is gone."""
        keys = list(self.state.pending_deletes)
        return ops.ObjectsDeleted([self.random.choice(keys)]) if keys else None


@pytest.mark.parametrize("items_per_turn", [1, 3, 10])
def test_what_commits_between_the_steps_is_not_in_it(monkeypatch: pytest.MonkeyPatch, items_per_turn: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    monkeypatch.setattr(limits, "CHECKPOINT_ITEMS_PER_TURN", items_per_turn)
    commits = Commits(ContainerState(7), random.Random(seed))
    while len(commits.state.segments) < SEGMENTS or len(commits.kinds) < 12:
        commits.commit()
    commits.kinds.clear()
    for _ in range(30):
        expected = checkpoint.encode(commits.state)
        as_of = commits.state.committed_sequence
        with CheckpointEncoding(commits.state) as encoding:
            for _ in encoding.steps():
                commits.commit()
                commits.state.forget_merged(0, 3)
        assert encoding.body() == expected
        assert encoding.as_of_sequence == as_of < commits.state.committed_sequence
        assert not commits.state.encodings
        while len(commits.state.segments) < SEGMENTS:
            commits.commit()
        checkpoint.load(ContainerState(7), as_of, expected, "here")
    assert {"Append", "Merge", "Delete", "AddChunks", "CommitIndex", "Truncate"} <= set(commits.kinds)


def test_two_encodings_at_a_time_are_of_their_own_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_ITEMS_PER_TURN", 1)
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    commits = Commits(ContainerState(7), random.Random(seed))
    while len(commits.state.segments) < SEGMENTS:
        commits.commit()
    first = checkpoint.encode(commits.state)
    with CheckpointEncoding(commits.state) as one:
        for _ in range(3):
            next(one.steps(), None)
            commits.commit()
        while len(commits.state.segments) < SEGMENTS:
            commits.commit()
        second = checkpoint.encode(commits.state)
        with CheckpointEncoding(commits.state) as other:
            for _ in range(200):
                next(one.steps(), None)
                next(other.steps(), None)
                commits.commit()
            assert (one.body(), other.body()) == (first, second)


def test_no_step_encodes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of one segment with many attributes and chunks, whether it changes meanwhile or not."""
    monkeypatch.setattr(limits, "CHECKPOINT_ITEMS_PER_TURN", 10)
    state = ContainerState(7)
    for number in (1, 2):
        attributes = [(bytes(14) + key.to_bytes(2, "big"), key) for key in range(500)]
        state.apply(number, ops.Create(number, f"scope/stream/{number}", SegmentKind.STREAM, 0, 0, attributes))
        for chunk in range(700):
            state.segments[number].chunks.add(ChunkRef(f"object-{number}-{chunk}", 0, chunk, 1))
    expected = checkpoint.encode(state)
    with CheckpointEncoding(state) as encoding:
        steps = 0
        for _ in encoding.steps():
            steps += 1
            state.apply(state.next_sequence, ops.UpdateAttributes(2, [(bytes(16), steps)]))
    assert steps >= 2 * (500 + 700) // 10
    assert encoding.body() == expected
