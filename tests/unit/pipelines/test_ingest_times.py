"""Bounds of the times at which events were written: against a log of what was written when (docs/spark.md#times)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.control.history import TimedCut
from tailrace.client.model import StreamName
from tailrace.common.errors import NoSuchStreamError
from tailrace.common.names import segment_epoch
from tailrace.pipelines.source.ingest_times import RecordedCuts, TimeBound, needed, time_bounds
from tailrace.pipelines.source.plan import Slice

STREAM = StreamName("scope", "stream")
EPOCH = 1 << 32


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[int, list[int]], list[TimedCut], int]:
    """A stream of one to three segments an epoch: the time of each byte by segment, recorded cuts, the present time."""
    time, epoch = 0, 0
    written: dict[int, list[int]] = {0: []}
    active, cuts = [0], []
    for _ in range(draw(st.integers(1, 25))):
        time += draw(st.integers(1, 9))
        match draw(st.sampled_from(["append", "append", "cut", "scale"])):
            case "append":
                written[draw(st.sampled_from(active))] += [time] * draw(st.integers(1, 4))
            case "cut":
                cuts.append(TimedCut(time, {each: len(written[each]) for each in active}))
            case "scale":
                epoch += 1
                sealed = draw(st.sampled_from(active))  # one at least: the new segments have its keys
                kept = [each for each in active if each != sealed and draw(st.booleans())]
                made = [epoch * EPOCH + number + 1 for number in range(draw(st.integers(1, 2)))]
                active = kept + made
                written.update({each: [] for each in made})
    return written, cuts, time


@given(logs(), st.data())
def test_no_byte_is_newer_than_its_bound_and_cuts_are_used(
    log: tuple[dict[int, list[int]], list[TimedCut], int], data: st.DataObject
) -> None:
    written, cuts, now = log
    identifier = data.draw(st.sampled_from(sorted(written)))
    times = written[identifier]
    start = data.draw(st.integers(0, len(times)))
    end = data.draw(st.integers(start, len(times)))
    bounds = time_bounds(Slice(STREAM, identifier, start, end), cuts, now)
    assert [bound.end for bound in bounds] == sorted({bound.end for bound in bounds})
    assert (bounds[-1].end if bounds else start) == end
    for offset in range(start, end):
        found = next(bound for bound in bounds if bound.end > offset)
        first = next((cut.recorded_ms for cut in cuts if cut.recorded_ms >= times[offset]), now)
        assert times[offset] <= found.time_ms
        assert found.time_ms == first or _same_moment(written, cuts, found, first)


def _same_moment(written: dict[int, list[int]], cuts: list[TimedCut], found: TimeBound, first: int) -> bool:
    """Whether a byte was written in the same ms as a cut, and after it: then the next cut is its first one."""
    return any(cut.recorded_ms == first for cut in cuts) and found.time_ms > first


def test_a_segment_that_is_in_no_cut_was_sealed_before_or_made_after_it() -> None:
    cuts = [TimedCut(10, {0: 5}), TimedCut(20, {EPOCH + 1: 7})]
    assert time_bounds(Slice(STREAM, 0, 0, 9), cuts, 99) == (TimeBound(5, 10), TimeBound(9, 20))
    assert time_bounds(Slice(STREAM, EPOCH + 1, 0, 9), cuts, 99) == (TimeBound(7, 20), TimeBound(9, 99))
    assert time_bounds(Slice(STREAM, 2 * EPOCH + 2, 0, 9), cuts, 99) == (TimeBound(9, 99),)
    assert time_bounds(Slice(STREAM, 0, 3, 3), cuts, 99) == ()


async def test_cuts_that_are_known_are_not_asked_for_again() -> None:
    recorded = [TimedCut(10, {0: 1}), TimedCut(20, {0: 2})]
    asked: list[int] = []

    class Controller:
        async def stream_cuts(self, stream: StreamName, from_ms: int = 0, to_ms: int = 0) -> tuple[TimedCut, ...]:
            asked.append(from_ms)
            if stream != STREAM:
                raise NoSuchStreamError("deleted")
            return tuple(cut for cut in recorded if cut.recorded_ms >= from_ms)

    class Context:
        controller = Controller()

    context: Any = Context()
    cuts = RecordedCuts(context)
    assert await cuts.of(STREAM) == tuple(recorded)
    recorded.append(TimedCut(30, {0: 3}))
    assert await cuts.of(STREAM) == tuple(recorded)
    assert asked == [0, 20]
    assert await cuts.of(StreamName("scope", "gone")) == (), "a batch of it may have to be repeated"


@given(logs(), st.data())
def test_a_batch_needs_no_cut_that_is_forgotten(
    log: tuple[dict[int, list[int]], list[TimedCut], int], data: st.DataObject
) -> None:
    """Of what a query reads from a position on, also of segments that follow."""
    written, cuts, now = log
    reached = data.draw(st.sampled_from([TimedCut(0, {0: 0}), *cuts])).positions
    position = {each: data.draw(st.integers(0, end)) for each, end in reached.items()}
    kept = needed(cuts, position)
    assert kept == tuple(cuts)[len(cuts) - len(kept) :]
    assert kept[-1:] == tuple(cuts[-1:]), "later ones are asked for from there on"
    newest = max(segment_epoch(each) for each in position)
    later = {each: 0 for each in written if segment_epoch(each) > newest}
    for identifier, start in {**position, **later}.items():
        piece = Slice(STREAM, identifier, start, len(written[identifier]))
        assert time_bounds(piece, kept, now) == time_bounds(piece, cuts, now)


def test_all_cuts_are_kept_for_a_stream_without_a_position() -> None:
    cuts = [TimedCut(10, {0: 1}), TimedCut(20, {0: 2})]
    assert needed(cuts, {}) == tuple(cuts)
    assert needed([], {0: 5}) == ()
