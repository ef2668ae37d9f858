"""Writers that learn of scales as clients do: the notes of a correct writer are taken, and cover its events."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.epoch_histories import EpochHistory, histories_with_cuts, offsets_by_range
from tailrace.common.names import segment_id
from tailrace.common.ranges import KeyRange
from tailrace.controller.metadata import epochs as algebra
from tailrace.controller.metadata.model import StreamSegment

KEYS = [each / 64 for each in range(64)]


@dataclass
class Writer:
    """A writer as `client.writer.event_writer` routes: it follows a scale only for the keys that it writes."""

    history: EpochHistory
    lengths: dict[int, int]
    routes: list[tuple[KeyRange, int]] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    events: list[tuple[float, int, int]] = field(default_factory=list)
    """Key, segment, and the offset behind it."""

    def start(self) -> None:
        """Begin, perhaps again: what it was acknowledged is not known any more."""
        self.routes = [(segment.key_range, segment.identifier) for segment in self.history.last.segments]
        self.acknowledged = {}

    def write(self, key: float) -> None:
        """Append an event."""
        while self.history.last.find(identifier := self.route(key)) is None:
            self.replace(identifier)
        self.lengths[identifier] = self.acknowledged[identifier] = self.lengths.get(identifier, 0) + 1
        self.events.append((key, identifier, self.lengths[identifier]))

    def route(self, key: float) -> int:
        """The segment of a key, as far as the writer knows."""
        return next(identifier for key_range, identifier in self.routes if key_range.contains(key))

    def replace(self, identifier: int) -> None:
        """Follow the successors of a sealed segment, for its own keys."""
        segment = self.history.segments[identifier]
        before, after = next(
            (before, after)
            for before, after in itertools.pairwise(self.history.epochs)
            if before.find(identifier) is not None and after.find(identifier) is None
        )
        followers = [successor for successor, _ in algebra.successors(segment, before, after)]
        self.routes = [
            part
            for key_range, owner in self.routes
            for part in ([(key_range, owner)] if owner != identifier else clipped(key_range, followers))
        ]
        self.acknowledged.pop(identifier, None)


def clipped(key_range: KeyRange, followers: list[StreamSegment]) -> list[tuple[KeyRange, int]]:
    """The parts of a range that each successor owns."""
    return [
        (KeyRange(max(key_range.low, each.low), min(key_range.high, each.high)), each.identifier)
        for each in followers
        if each.key_range.overlaps(key_range)
    ]


@given(st.data())
def test_every_note_of_a_correct_writer_is_taken_and_covers_its_events(data: st.DataObject) -> None:
    history = EpochHistory([algebra.first_epoch(data.draw(st.integers(1, 3)), 0, 0)], 10)
    writer = Writer(history, {})
    writer.start()
    noted: dict[int, int] = {}
    covered = 0
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["scale", "write", "write", "write", "restart"])):
            case "scale":
                history.scale(data.draw(st.integers(0, 20)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
            case "write":
                for key in data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)):
                    writer.write(key)
            case "restart":
                writer.start()
        if not writer.acknowledged:
            continue
        assert not algebra.goes_back(writer.acknowledged, noted, history.segments)
        noted = algebra.joined(writer.acknowledged, noted, history.segments)
        covered = len(writer.events)
    for key, identifier, end in writer.events[:covered]:
        at = [segment for each in noted if (segment := history.segments[each]).key_range.contains(key)]
        furthest = max(at, key=lambda segment: segment.epoch)
        written = history.segments[identifier]
        assert (furthest.epoch, noted[furthest.identifier]) >= (written.epoch, end)


@given(histories_with_cuts(count=2), st.data())
def test_a_joined_position_is_the_further_one_for_each_key(
    drawn: tuple[EpochHistory, list[dict[int, int]]], data: st.DataObject
) -> None:
    history, cuts = drawn
    first, second = (
        {each: cut[each] for each in data.draw(st.sets(st.sampled_from(sorted(cut)), min_size=1))} for cut in cuts
    )
    joined = algebra.joined(second, first, history.segments)
    mine, theirs, found = (offsets_by_range(cut, history) for cut in (second, first, {}))
    for part in mine.keys() | theirs.keys():
        found[part] = max(cut[part] for cut in (mine, theirs) if part in cut)
    furthest: dict[tuple[float, float], tuple[int, int]] = {}
    for each, offset in joined.items():  # segments of a position may share keys
        for part, reached in offsets_by_range({each: offset}, history).items():
            furthest[part] = max(reached, furthest.get(part, reached))
    assert furthest == found
    assert algebra.joined(second, joined, history.segments) == joined, "a call that is made again changes nothing"
    assert not algebra.goes_back(joined, second, history.segments)
    assert not algebra.goes_back(joined, first, history.segments)


@given(histories_with_cuts(count=2))
def test_whole_positions_go_back_where_they_reach_a_segment_no_more(
    drawn: tuple[EpochHistory, list[dict[int, int]]],
) -> None:
    history, (first, second) = drawn
    at = offsets_by_range(first, history)

    def reaches(identifier: int, offset: int) -> bool:
        segment = history.segments[identifier]
        parts = [part for part in at if segment.low <= part[0] and part[1] <= segment.high]
        return any(at[part] >= (segment.epoch, offset) for part in parts)

    expected = not all(reaches(identifier, offset) for identifier, offset in second.items())
    assert algebra.goes_back(first, second, history.segments) == expected


@pytest.mark.parametrize(
    ("position", "goes_back", "joined"),
    [
        ({2: 10}, False, {2: 10}),
        ({1: 50, 2: 10}, False, {2: 10}),
        ({1: 50, 2: 9}, True, {2: 10}),
        ({1: 50}, True, {2: 10}),
        ({1: 50, 3: 4}, False, {2: 10, 3: 4}),
        ({3: 4, 4: 0}, False, {3: 4, 4: 0}),
    ],
)
def test_positions_after_a_merge_and_a_split(position: dict[int, int], goes_back: bool, joined: dict[int, int]) -> None:
    """Segments 0 and 1 are merged into 2, which is split into 3 and 4; the writer was in 2 at 10."""
    history = EpochHistory([algebra.first_epoch(2, 0, 0)], 2)
    history.scale(0, 2, 1)
    history.scale(0, 1, 2)
    ids = [segment_id(number, epoch) for number, epoch in enumerate((0, 0, 1, 2, 2))]
    named, last = {ids[each]: offset for each, offset in position.items()}, {ids[2]: 10}
    assert algebra.goes_back(named, last, history.segments) is goes_back
    assert algebra.joined(named, last, history.segments) == {ids[each]: offset for each, offset in joined.items()}
