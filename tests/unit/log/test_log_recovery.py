"""The decision of what a log holds, from scans of its files."""

from __future__ import annotations

from array import array

import pytest

from tailrace.common.errors import CorruptionError, DataLossError
from tailrace.log.frames import Condition, EpochRange, StartRecord
from tailrace.log.recovery import Decision, FileScan, decide


def scan(
    epoch: int,
    first: int,
    count: int,
    *,
    start: StartRecord | None = None,
    acknowledged: int = -1,
    log_start: int = 0,
    end: Condition = Condition.ABSENT,
    strays: int = 0,
    nonce: bytes = b"n",
) -> FileScan:
    """A file with `count` frames from `first` on."""
    return FileScan(
        name=f"{first}-{epoch}",
        epoch=epoch,
        first_sequence=first,
        length_bytes=1 << 20,
        start=start,
        nonce=nonce,
        sectors=array("I", range(1, count + 1)),
        end_offset=(count + 1) * 512,
        end=end,
        reason="damaged" if end is Condition.CORRUPT else "",
        strays=strays,
        greatest_acknowledged=acknowledged,
        greatest_log_start=log_start,
    )


def accepted(decision: Decision) -> list[tuple[str, int, int]]:
    return [(file.scan.name, file.first, file.last) for file in decision.files]


FIRST = StartRecord(0, 0, ())


def test_nothing_is_an_empty_log() -> None:
    decision = decide([])
    assert (decision.next_sequence, decision.log_start, decision.known_epoch, decision.files) == (0, 0, 0, [])


def test_a_log_that_was_opened_for_an_epoch_ends_with_a_start_frame_of_it_or_of_a_later_one() -> None:
    """A file without a START frame is of an attempt to open the log: it does not prove that the log has its epochs."""
    decision = decide([scan(1, 0, 5, start=FIRST, acknowledged=4), scan(3, 5, 0)])
    assert (decision.previous_epoch, decision.known_epoch) == (1, 3)
    for epoch in (0, 1):
        decision.check_opened("log/0", epoch)
    for epoch in (2, 3):
        with pytest.raises(DataLossError, match=f"^log folder log/0 ends with epoch 1, but had one of epoch {epoch}$"):
            decision.check_opened("log/0", epoch)
    with pytest.raises(DataLossError, match=r"^log folder log/0 is empty or missing, but had one of epoch 1$"):
        decide([scan(3, 5, 0)]).check_opened("log/0", 1)


def test_files_of_one_epoch_follow_each_other() -> None:
    decision = decide([scan(1, 5, 3, start=FIRST, acknowledged=6), scan(1, 0, 5, start=FIRST, acknowledged=3)])
    assert accepted(decision) == [("0-1", 0, 4), ("5-1", 5, 7)]
    assert decision.history == (EpochRange(1, 0, 7),)
    assert (decision.next_sequence, decision.acknowledged_through) == (8, 6)


def test_a_gap_above_what_was_acknowledged_drops_the_rest() -> None:
    decision = decide(
        [
            scan(1, 0, 3, start=FIRST, acknowledged=2, end=Condition.TORN, strays=1),
            scan(1, 5, 2, start=FIRST, acknowledged=2),
        ]
    )
    assert accepted(decision) == [("0-1", 0, 2)]
    assert decision.garbage == ["5-1"]
    assert decision.next_sequence == 3


@pytest.mark.parametrize("end", [Condition.TORN, Condition.ABSENT])
def test_a_gap_at_or_below_what_was_acknowledged_is_a_loss(end: Condition) -> None:
    with pytest.raises(DataLossError, match="frame 3"):
        decide([scan(1, 0, 3, start=FIRST, end=end), scan(1, 5, 2, start=FIRST, acknowledged=3)])


def test_a_missing_file_below_the_log_start_was_truncated() -> None:
    decision = decide([scan(1, 5, 3, start=FIRST, acknowledged=6, log_start=6)])
    assert accepted(decision) == [("5-1", 6, 7)]
    assert decision.log_start == 6


def test_a_missing_file_at_the_log_start_is_a_loss() -> None:
    with pytest.raises(DataLossError, match="frame 4"):
        decide([scan(1, 5, 3, start=FIRST, acknowledged=6, log_start=4)])


def test_only_the_listed_frames_of_earlier_epochs_count() -> None:
    newer = StartRecord(4, 1, (EpochRange(1, 0, 3),))
    decision = decide([scan(1, 0, 6, start=FIRST, acknowledged=2), scan(2, 4, 2, start=newer, acknowledged=3)])
    assert accepted(decision) == [("0-1", 0, 3), ("4-2", 4, 5)]
    assert decision.history == (EpochRange(1, 0, 3), EpochRange(2, 4, 5))


def test_leftovers_of_an_earlier_epoch_in_a_file_of_their_own_are_garbage() -> None:
    newer = StartRecord(4, 1, (EpochRange(1, 0, 3),))
    decision = decide([scan(1, 0, 4, start=FIRST), scan(1, 4, 3, start=FIRST), scan(2, 4, 0, start=newer)])
    assert accepted(decision) == [("0-1", 0, 3)]
    assert sorted(decision.garbage) == ["4-1", "4-2"]
    assert decision.previous_epoch == 2


def test_a_missing_listed_frame_is_a_loss() -> None:
    newer = StartRecord(4, 1, (EpochRange(1, 0, 3),))
    with pytest.raises(DataLossError, match="frame 3"):
        decide([scan(1, 0, 3, start=FIRST), scan(2, 4, 2, start=newer)])


def test_an_epoch_without_a_start_never_began() -> None:
    decision = decide([scan(1, 0, 3, start=FIRST, acknowledged=1), scan(2, 3, 0, end=Condition.TORN)])
    assert accepted(decision) == [("0-1", 0, 2)]
    assert decision.known_epoch == 2
    assert decision.garbage == ["3-2"]


def test_frames_behind_a_lost_start_are_a_loss() -> None:
    with pytest.raises(DataLossError, match="START frame is missing"):
        decide([scan(1, 0, 3, start=FIRST), scan(2, 3, 0, strays=1)])


@pytest.mark.parametrize("start", [FIRST, None])
def test_damage_in_the_newest_epoch_is_corruption(start: StartRecord | None) -> None:
    with pytest.raises(CorruptionError, match="0-1 at offset 1536: damaged"):
        decide([scan(1, 0, 2, start=start, end=Condition.CORRUPT)])


def test_damage_where_earlier_frames_are_needed_is_corruption() -> None:
    newer = StartRecord(4, 1, (EpochRange(1, 0, 3),))
    with pytest.raises(CorruptionError, match="0-1"):
        decide([scan(1, 0, 2, start=FIRST, end=Condition.CORRUPT), scan(2, 4, 2, start=newer)])


def test_damage_behind_what_counts_of_an_earlier_epoch_is_nobodys() -> None:
    newer = StartRecord(4, 1, (EpochRange(1, 0, 3),))
    decision = decide([scan(1, 0, 4, start=FIRST, end=Condition.CORRUPT), scan(2, 4, 2, start=newer)])
    assert decision.next_sequence == 6


def test_damage_in_a_mark_is_not_taken_for_a_loss() -> None:
    """Without the mark's log start the truncated frames would be missed."""
    with pytest.raises(CorruptionError):
        decide([scan(1, 5, 3, start=FIRST, acknowledged=6, log_start=0, end=Condition.CORRUPT)])


def test_two_owners_of_one_epoch_are_corruption() -> None:
    with pytest.raises(CorruptionError, match="another owner"):
        decide([scan(1, 0, 3, start=FIRST), scan(1, 3, 3, start=FIRST, nonce=b"m")])


def test_everything_truncated_keeps_the_sequence() -> None:
    newer = StartRecord(9, 1, ())
    decision = decide([scan(2, 9, 0, start=newer, acknowledged=8, log_start=9)])
    assert (decision.next_sequence, decision.log_start, decision.acknowledged_through) == (9, 9, 8)
    assert decision.history == ()
