"""Which attributes a large index gets next: neighbours, in rounds that end; and what is flushed through by then."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segmentstore.metadata.dirty_attributes import DirtyAttributes

FLUSHES_MAX = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40), st.integers(0, 1)),
        st.tuples(st.just("flush"), st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(1, 4), st.just(0)),
    ),
    max_size=120,
)


def key_of(number: int) -> bytes:
    return number.to_bytes(2, "big")


class Model:
    """Dirty attributes beside a plain map, and beside those of an owner that recovers.

    The latter sees operations and what is flushed through, not what was in a batch.
    """

    def __init__(self) -> None:
        self.dirty, self.replayed = DirtyAttributes(), DirtyAttributes()
        self.waiting: dict[bytes, int] = {}
        self.flushes_seen: dict[bytes, int] = {}
        self.sequence = self.flushed_through = self.most = 0
        self.is_over = True

    def put(self, key: bytes, *, same_operation: bool = False) -> None:
        if not same_operation or self.is_over:  # a flush sees whole operations
            self.sequence, self.is_over = self.sequence + 1, False
        for each in (self.dirty, self.replayed):
            each.put(key, self.sequence)
        if key not in self.waiting:
            self.flushes_seen[key] = 0
        self.waiting[key] = self.sequence
        self.most = max(self.most, len(self.waiting))

    def flush(self, count: int, late: int = 0) -> list[bytes]:
        """Flush some neighbours; of `late` of them the flush learns after another update of them was committed."""
        self.is_over = True
        ahead, first = self.dirty.neighbours(count, FLUSHES_MAX)
        assert (ahead, first) == (sorted(ahead), sorted(first))
        assert not ahead or not first or first[-1] < ahead[0]
        keys = [*ahead, *first]
        assert bool(keys) == bool(self.waiting)
        assert len(keys) == min(count, len(self.waiting))
        if not keys:
            return []
        batch = self.dirty.batch(keys)
        assert batch.items == [(key, self.waiting[key]) for key in keys]
        for key in keys[:late]:
            self.put(key)
        assert batch.flushed_through >= self.flushed_through, "it never goes back"
        self.flushed_through = batch.flushed_through
        for key, sequence in self.waiting.items():
            assert sequence > batch.flushed_through or (key, sequence) in batch.items
        self.dirty.flushed_to(keys[-1])
        self.dirty.settle(batch.flushed_through)
        self.dirty.settle_items(batch.items)
        self.replayed.settle(batch.flushed_through)
        for key, sequence in batch.items:
            if self.waiting[key] == sequence:
                del self.waiting[key]
                del self.flushes_seen[key]
            else:
                self.flushes_seen[key] = 0
        for key in self.flushes_seen:
            self.flushes_seen[key] += 1
        return keys

    def check(self) -> None:
        assert len(self.dirty) == len(self.waiting)
        assert all(key in self.dirty for key in self.waiting)
        assert all(key in self.replayed for key in self.waiting), "a recovery would take it for flushed"
        # A round takes some flushes in byte order, then at least one attribute of those that waited at its start each.
        # An update that appears during one round is flushed by the end of the next.
        assert max(self.flushes_seen.values(), default=0) <= 2 * (FLUSHES_MAX + self.most)


@given(STEPS)
def test_neighbours_against_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    for step, number, more in steps:
        if step == "put":
            model.put(key_of(number), same_operation=bool(more))
        elif step == "flush":
            model.flush(number, more)
        else:  # Tier 2 does not answer: the next flush takes the same ones
            keys = model.dirty.neighbours(number, FLUSHES_MAX)
            assert model.dirty.neighbours(number, FLUSHES_MAX) == keys
        model.check()


def test_flushes_go_round_in_byte_order() -> None:
    model = Model()
    for number in (7, 3, 9, 1, 5, 8):
        model.put(key_of(number))
    assert model.flush(2) == [key_of(1), key_of(3)]
    model.put(key_of(2))  # behind: it waits for the next round
    assert model.flush(3) == [key_of(5), key_of(7), key_of(8)]
    model.put(key_of(6))
    assert model.flush(2) == [key_of(9), key_of(2)], "after the last come the first"
    assert model.flush(5) == [key_of(6)]
    assert model.flush(5) == []
    assert model.flushed_through == model.sequence


def test_attributes_that_keep_appearing_ahead_do_not_keep_an_old_one_waiting() -> None:
    model = Model()
    model.put(key_of(60_000))
    flushes = 0
    while key_of(60_000) in model.waiting:
        for number in range(3 * flushes, 3 * flushes + 3):
            model.put(key_of(number))
        model.flush(3)
        flushes += 1
        assert flushes <= FLUSHES_MAX + 1, "a round takes so many in byte order, then the oldest is next"
    assert flushes == FLUSHES_MAX + 1


def test_attributes_that_keep_appearing_at_the_end_do_not_keep_the_first_ones_waiting() -> None:
    model = Model()
    for number in range(100, 105):
        model.put(key_of(number))
    model.flush(5)
    for number in range(5):  # behind where flushes are
        model.put(key_of(number))
    for flushes in range(2 * (FLUSHES_MAX + 5)):
        model.put(key_of(1000 + flushes))
        model.flush(1)
        model.check()
    assert all(key_of(number) not in model.waiting for number in range(5))


def test_what_waits_since_before_the_chosen_ones_is_not_flushed_through() -> None:
    dirty = DirtyAttributes()
    for sequence, number in enumerate((9, 1, 2, 3), 10):
        dirty.put(key_of(number), sequence)
    batch = dirty.batch([key_of(1), key_of(3), key_of(4)])
    assert batch.items == [(key_of(1), 11), (key_of(3), 13)], "one is gone"
    assert batch.flushed_through == 9
    assert dirty.batch([key_of(9), key_of(1)]).flushed_through == 11
    assert dirty.batch([key_of(number) for number in (1, 2, 3, 9)]).flushed_through == 13


@pytest.mark.parametrize("at_the_end", [0, 1, 3, 4])
def test_few_updates_are_behind_what_was_flushed_through_whatever_part_is_new_keys_at_the_end(at_the_end: int) -> None:
    """What a recovery takes for missing is hardly more than what waited: flushes are filled up from the first ones."""
    model, rng = Model(), random.Random(at_the_end)
    waiting, each, behind = 400, 200, 0
    for number in range(40 * each):
        key = 60_000 + number // 40 if number % 5 < at_the_end else rng.randrange(2000)
        model.put(key_of(key))
        if len(model.waiting) > waiting:
            model.flush(each)
            behind = max(behind, len(model.replayed))
    assert behind <= 1.75 * waiting
