"""Cuts move over scales of any shape: groups of segments that replace each other, and long histories in parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tailrace.common import limits
from tailrace.common.ranges import KeyRange, split_range
from tailrace.controller.managers.retention_places import _parts
from tailrace.controller.metadata.epochs import duplicate, first_epoch, new_segments, next_epoch
from tailrace.controller.metadata.model import Epoch, StreamSegment
from tailrace.controller.retention.forward import forward, replaced

Groups = Iterator[tuple[list[StreamSegment], list[StreamSegment]]]


def history(chance: random.Random, count: int = 6) -> list[Epoch]:
    """Epochs by splits, merges of neighbours, and commits that duplicate all segments."""
    epochs = [first_epoch(chance.randint(1, 8), 0, 0)]
    number = 10
    for epoch in range(1, count):
        before = epochs[-1]
        if chance.random() < 0.3:
            epochs.append(duplicate(before, epoch, 0))
            continue
        first = chance.randrange(len(before.segments))
        old = before.segments[first : first + chance.randint(1, 3)]
        made = new_segments(split_range(KeyRange(old[0].low, old[-1].high), chance.randint(1, 4)), number, epoch)
        number += len(made)
        epochs.append(next_epoch(before, [each.identifier for each in old], made, 0))
    return epochs


def by_definition(before: Epoch, after: Epoch) -> Groups:
    """The smallest groups that replace each other: between two keys where segments of both end."""
    kept = {each.identifier for each in before.segments} & {each.identifier for each in after.segments}
    gone = [each for each in before.segments if each.identifier not in kept]
    made = [each for each in after.segments if each.identifier not in kept]
    low = 0.0
    for high in sorted({each.high for each in gone} & {each.high for each in made}):
        group = [each for each in gone if low <= each.low and each.high <= high]
        yield group, [each for each in made if low <= each.low and each.high <= high]
        low = high


def test_segments_replace_each_other_in_the_smallest_groups(test_seed: int) -> None:
    chance = random.Random(test_seed)
    groups = 0
    for _ in range(500):
        epochs = history(chance)
        for before, after in itertools.pairwise(epochs):
            found = list(replaced(before, after))
            assert found == list(by_definition(before, after))
            groups += len(found)
    assert groups > 2000


@pytest.mark.parametrize("at_once", [1, 2, 7, 20, 10_000])
def test_a_long_history_in_parts_moves_a_cut_as_far(
    test_seed: int, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(limits, "EPOCH_SEGMENTS_AT_ONCE", at_once)
    chance = random.Random(test_seed)
    moved = 0
    for _ in range(200):
        epochs = history(chance, chance.randint(1, 8))
        sizes = {each.identifier: 10 for epoch in epochs[:-1] for each in epoch.segments}
        cut = {each.identifier: chance.choice((5, 10, 10, 10)) for each in epochs[0].segments}
        parts: Sequence[Sequence[Epoch]] = list(_parts(epochs))
        assert [each for part in parts for each in part[:-1]] == epochs[:-1]
        assert parts[-1][-1] == epochs[-1]
        expected = forward(cut, epochs, sizes)
        moved += expected != cut
        for part in parts:
            cut = forward(cut, part, sizes)
        assert cut == expected
    assert moved > 50
