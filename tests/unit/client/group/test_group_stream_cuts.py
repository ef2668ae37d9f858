"""Cuts of what a group has read cover the key space, whatever part of a scale was read."""

from __future__ import annotations

import itertools
import random

from tailrace.client.group.state.records import ENDED_OFFSET
from tailrace.client.group.stream_cuts import first_gap, without_gaps
from tailrace.common.names import segment_epoch
from tailrace.common.ranges import KeyRange, covers_exactly

E = 1 << 32


def test_a_predecessor_that_was_read_fills_the_gap_until_what_follows_can_be_read() -> None:
    segments = {0: KeyRange(0.0, 0.5), 1: KeyRange(0.5, 1.0), E + 2: KeyRange(0.0, 1.0)}
    assert without_gaps({1: 7}, segments) == {0: ENDED_OFFSET, 1: 7}


def test_a_cut_moves_back_where_a_later_segment_shares_keys() -> None:
    segments = {
        0: KeyRange(0.0, 0.6),
        1: KeyRange(0.6, 1.0),
        E + 2: KeyRange(0.0, 0.4),
        E + 3: KeyRange(0.4, 1.0),
    }
    assert without_gaps({1: 7, E + 2: 5}, segments) == {0: ENDED_OFFSET, 1: 7}


def test_a_gap_stays_while_the_epoch_that_fills_it_is_missing() -> None:
    assert without_gaps({1: 7}, {0: KeyRange(0.0, 0.5), 1: KeyRange(0.5, 1.0)}) == {1: 7}


def test_every_position_of_readers_gets_a_cut_that_lies_nowhere_past_it(test_seed: int) -> None:
    rng = random.Random(test_seed)
    for _ in range(300):
        segments = scales(rng)
        read = some_progress(rng, segments)
        cut = without_gaps(dict.fromkeys(read, 1), segments)
        assert first_gap({item: segments[item] for item in cut}) is None
        assert covers_exactly([segments[item] for item in cut])
        for item, offset in cut.items():
            if item not in read:
                assert offset == ENDED_OFFSET
            for other in read:
                past = segment_epoch(item) > segment_epoch(other) and segments[item].overlaps(segments[other])
                assert not past, (item, read, segments)


def scales(rng: random.Random) -> dict[int, KeyRange]:
    """The segments of some epochs with random edges."""
    active = {0: KeyRange(0.0, 1.0)}
    segments = dict(active)
    number = 1
    for epoch in range(1, rng.randint(2, 7)):
        owned = sorted(active.items(), key=lambda item: item[1])
        first = rng.randrange(len(owned))
        sealed = owned[first : first + rng.randint(1, 3)]
        low, high = sealed[0][1].low, sealed[-1][1].high
        edges = sorted({low, high, *(rng.uniform(low, high) for _ in range(rng.randint(0, 2)))})
        for identifier, _ in sealed:
            del active[identifier]
        for start, end in itertools.pairwise(edges):
            active[epoch * E + number] = segments[epoch * E + number] = KeyRange(start, end)
            number += 1
    return segments


def some_progress(rng: random.Random, segments: dict[int, KeyRange]) -> set[int]:
    """What readers own after they completed some segments, each successor once all its predecessors are completed."""
    last = max(map(segment_epoch, segments))
    completed: set[int] = set()

    def before(identifier: int) -> list[int]:
        return [
            other
            for other, own in segments.items()
            if segment_epoch(other) < segment_epoch(identifier) and own.overlaps(segments[identifier])
        ]

    while True:
        reached = {item for item in segments if item not in completed and set(before(item)) <= completed}
        open_to_end = [item for item in sorted(reached) if segment_epoch(item) < last and _is_replaced(item, segments)]
        if not open_to_end or rng.random() < 0.2:
            return reached
        completed.add(rng.choice(open_to_end))


def _is_replaced(identifier: int, segments: dict[int, KeyRange]) -> bool:
    own = segments[identifier]
    return any(segment_epoch(other) > segment_epoch(identifier) and own.overlaps(segments[other]) for other in segments)
