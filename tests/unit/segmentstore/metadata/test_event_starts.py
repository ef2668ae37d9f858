"""Offsets that are said to begin an event are lengths that the segment had, whatever was merged and recovered."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.segmentstore.metadata.event_starts import EventStarts


@dataclass
class Model:
    """A segment, its appends, and all lengths that readers could see."""

    one_event: bool = False
    length: int = 0
    appends: list[int] = field(default_factory=list)
    lengths: set[int] = field(default_factory=lambda: {0})
    starts: EventStarts = field(init=False)

    def __post_init__(self) -> None:
        self.starts = EventStarts(one_event=self.one_event)

    def append(self, length: int) -> None:
        self.appends.append(self.length)
        self.length += length
        self.lengths.add(self.length)

    def merge(self, source: Model) -> None:
        self.starts.merge(source.starts, self.length, source.length)
        self.appends += [self.length + offset for offset in source.appends]
        inner = {0} if source.one_event else source.lengths
        self.lengths |= {self.length + each for each in inner}
        self.length += source.length
        self.lengths.add(self.length)

    def found(self) -> set[int]:
        return {offset for offset in self.appends if self.starts.is_start(offset)}


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "begin", "large", "merge", "recover"]), st.integers(0, 3), st.integers(1, 9)),
    max_size=60,
)


@given(STEPS)
def test_only_lengths_that_the_segment_had_are_starts(steps: list[tuple[str, int, int]]) -> None:
    """Segments 1 to 3 are transactions, or large events, and are merged into segment 0."""
    segments = [Model() for _ in range(4)]
    for kind, number, length in steps:
        segment = segments[number]
        if kind == "append":
            segment.append(length)
        elif kind == "recover":
            for each in segments:
                each.starts.recover(each.length)
        elif number and kind == "merge":
            segments[0].merge(segment)
            segments[number] = Model()
        elif number:
            segments[number] = Model(one_event=kind == "large")
    for segment in segments:
        allowed = {0} if segment.one_event else segment.lengths
        assert segment.found() <= allowed


def test_each_append_is_a_start_until_something_is_in_doubt() -> None:
    segment, large, transaction = Model(), Model(one_event=True), Model()
    for each in (segment, large, transaction):
        for length in (3, 4):
            each.append(length)
    segment.merge(large)
    segment.append(5)
    segment.merge(transaction)
    segment.append(6)
    assert segment.found() == {0, 3, 7, 14, 19, 22, 26}
    assert segment.appends == [0, 3, 7, 10, 14, 19, 22, 26]
    assert large.found() == {0}
    segment.starts.recover(segment.length)
    segment.append(1)
    assert segment.found() == {32}


def test_many_large_events_cost_no_more_memory() -> None:
    segment = Model()
    for _ in range(10 * limits.EVENT_STARTS_INSIDE_MAX):
        large = Model(one_event=True)
        large.append(8)
        large.append(2)
        segment.merge(large)
        assert len(segment.starts._inside) <= limits.EVENT_STARTS_INSIDE_MAX
    segment.append(1)
    assert segment.length - 1 in segment.found() <= segment.lengths
