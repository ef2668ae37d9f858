"""The decision of what an object log holds, against a model of what its owner can have stored."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import DataLossError
from tailrace.log.frame_index import Extent, FrameIndex
from tailrace.log.frames import EpochRange, FrameHeader, FrameKind, StartRecord
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_recovery import ObjectScan, StartedEpoch, decide

KEYS = LogKeys(3)


def header(kind: FrameKind, sequence: int, acknowledged_through: int, log_start: int) -> FrameHeader:
    return FrameHeader(kind, 3, 5, bytes(16), sequence, acknowledged_through, log_start, 0, 0, 512, 0, 0, 0)


def started(record: StartRecord, log_start: int) -> StartedEpoch:
    return StartedEpoch(header(FrameKind.START, record.first_sequence, record.first_sequence - 1, log_start), record)


def scan(epoch: int, stored: dict[int, FrameHeader], first: int, last: int | None) -> ObjectScan:
    """What reading those objects shows."""
    found = ObjectScan(epoch, first)
    while found.next_sequence in stored and (last is None or found.next_sequence <= last):
        found.accept(stored[found.next_sequence])
    for sequence in sorted(stored):
        if sequence > found.next_sequence:
            found.note(stored[sequence])
    return found


@given(st.data())
def test_own_frames_count_up_to_the_first_gap_unless_it_was_acknowledged(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 5))
    acknowledged = data.draw(st.integers(first - 1, first + 20))  # known to the owner
    above = data.draw(st.sets(st.integers(acknowledged + 1, acknowledged + 10)))  # stored, not acknowledged
    headers = {}
    for sequence in [*range(first, acknowledged + 1), *sorted(above)]:
        # What was known when the frame was written: at most what is known in the end.
        known = data.draw(st.integers(first - 1, min(acknowledged, sequence - 1)))
        headers[sequence] = header(FrameKind.DATA, sequence, known, 0)
    lost = data.draw(st.none() | st.sampled_from(sorted(headers))) if headers else None
    if lost is not None:
        del headers[lost]
    own = scan(5, headers, first, None)
    known = max([first - 1, *(found.acknowledged_through for found in headers.values())])
    record = StartRecord(first, 0, ())
    if own.next_sequence <= known:
        with pytest.raises(DataLossError, match=KEYS.frame(5, own.next_sequence)):
            decide(KEYS, started(record, first), None, own, [])
        assert lost == own.next_sequence, "nothing but a loss is called one"
        return
    decision = decide(KEYS, started(record, first), None, own, [])
    assert decision.next_sequence == own.next_sequence
    assert decision.previous_epoch == 5
    if lost is None:
        assert decision.next_sequence > acknowledged
    assert all(sequence in headers for sequence in range(first, decision.next_sequence))


@given(st.integers(0, 12), st.integers(0, 12))
def test_history_counts_as_listed_and_not_below_the_log_start(log_start: int, missing: int) -> None:
    """Epoch 2 has frames 0 to 4, epoch 4 frames 5 to 9, the newest one 10 and 11; one of the first ten is gone."""
    record = StartRecord(10, 4, (EpochRange(2, 0, 4), EpochRange(4, 5, 9)))
    log_start = min(log_start, 12)
    mark = header(FrameKind.MARK, 12, 11, log_start)
    own = scan(5, {sequence: header(FrameKind.DATA, sequence, 9, 0) for sequence in (10, 11)}, max(10, log_start), None)
    older = []
    for entry in record.history:
        if entry.last >= log_start:
            rest = range(max(entry.first, log_start), entry.last + 1)
            stored = {sequence: header(FrameKind.DATA, sequence, 0, 0) for sequence in rest if sequence != missing}
            older.append(scan(entry.epoch, stored, rest.start, entry.last))
    if log_start <= missing < 10:
        with pytest.raises(DataLossError, match=f"frame {missing} is missing"):
            decide(KEYS, started(record, 0), mark, own, older)
        return
    decision = decide(KEYS, started(record, 0), mark, own, older)
    assert (decision.log_start, decision.next_sequence) == (log_start, 12)
    counted = [sequence for entry in decision.history for sequence in range(entry.first, entry.last + 1)]
    assert counted == list(range(log_start, 12))


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_map_of_frames_forgets_from_below(first: int, second: int) -> None:
    """Epoch 1 has frames 3 to 9, epoch 4 frames 10 to 14, the owner 15 to 19; each is as long as its sequence."""
    earlier = [Extent(1, 3, array("I", range(3, 10))), Extent(4, 10, array("I", range(10, 15)))]
    frames = FrameIndex(earlier, 6, 15)
    frames.own.lengths.extend(range(15, 20))
    for below in (first, second):
        frames.forget_below(min(below, 20))
    start = max(3, min(max(first, second), 20))
    assert [sequence for _, sequence, _ in frames.places(0, 100)] == list(range(start, 20))
    assert frames.length_bytes(0, 100) == sum(range(start, 20))
    for sequence in range(25):
        epoch = 1 if sequence < 10 else 4 if sequence < 15 else 6
        assert frames.epoch_of(sequence) == (epoch if start <= sequence < 20 else None)
    frames.own.lengths.append(20)
    assert frames.epoch_of(20) == 6
