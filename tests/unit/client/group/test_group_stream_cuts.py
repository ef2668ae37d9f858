"""Cuts of what a group has read cover the key space, whatever part of a scale was read."""

from __future__ import annotations

import itertools
import random

from tailrace.client.group.state.records import ENDED_OFFSET
from tailrace.client.group.stream_cuts import first_gap, without_gaps
from tailrace.common.names import segment_epoch
from tailrace.common.ranges import KeyRange
from tailrace.controller.metadata.epochs import check_cut
from tailrace.controller.metadata.model import StreamSegment

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


def test_a_cut_moves_back_where_it_is_before_and_after_a_segment_that_was_read() -> None:
    """As after a transaction that rolls over a scale: it puts a copy of the epoch before behind the active one."""
    thirds = [KeyRange(0.0, 1 / 3), KeyRange(1 / 3, 2 / 3), KeyRange(2 / 3, 1.0)]
    quarters = [KeyRange(n / 4, (n + 1) / 4) for n in range(4)]
    segments = {
        **dict(enumerate(thirds)),
        **{E + 3 + n: own for n, own in enumerate(quarters)},
        **{2 * E + n: own for n, own in enumerate(thirds)},
        **{3 * E + 3 + n: own for n, own in enumerate(quarters)},
    }
    # The last third of epoch 2 was read, and the middle one waits for a quarter.
    cut = without_gaps({E + 3: 7, E + 4: 7, 3 * E + 6: 0}, segments)
    assert cut == {E + 3: 7, E + 4: 7, E + 5: ENDED_OFFSET, E + 6: ENDED_OFFSET}


def test_a_gap_stays_while_the_epoch_that_fills_it_is_missing() -> None:
    assert without_gaps({1: 7}, {0: KeyRange(0.0, 0.5), 1: KeyRange(0.5, 1.0)}) == {1: 7}


def test_every_position_of_readers_gets_a_cut_that_lies_nowhere_past_it(test_seed: int) -> None:
    rng = random.Random(test_seed)
    for _ in range(300):
        segments = scales(rng)
        read = some_progress(rng, segments)
        cut = without_gaps(dict.fromkeys(read, 1), segments)
        assert first_gap({item: segments[item] for item in cut}) is None
        # As a controller checks what is to be truncated or published, which knows no end of a segment as an offset.
        known = {item: StreamSegment(item, *own) for item, own in segments.items()}
        check_cut(dict.fromkeys(cut, 1), known)
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
        if rng.random() < 0.3:  # all of them at once, as by a transaction that rolls over a scale
            edges = sorted({0.0, 1.0, *(rng.choice([0.25, 1 / 3, 0.5, 2 / 3, 0.75]) for _ in range(3))})
            active = {epoch * E + number + n: KeyRange(*own) for n, own in enumerate(itertools.pairwise(edges))}
            segments.update(active)
            number += len(active)
            continue
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
