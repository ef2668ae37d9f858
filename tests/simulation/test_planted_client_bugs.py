"""The client workload finds bugs of the kinds that clients of such systems have had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sim.violations import Violation
from sim.workloads.cluster import ClusterWorkload
from tailrace.client.blocks import Run
from tailrace.client.groupstate import records as r
from tailrace.client.groupstate.state import GroupState
from tailrace.client.membership import GroupMember
from tailrace.client.reader import EventReader
from tailrace.client.segmentwriter import SegmentWriter

SEEDS_MAX = 150

pytestmark = pytest.mark.timeout(300)


def expect_violation() -> None:
    """Run seeds until one breaks a promise."""
    for seed in range(SEEDS_MAX):
        try:
            ClusterWorkload(seed).run()
        except (Violation, TimeoutError):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find the planted bug")


def test_sending_again_under_new_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up = SegmentWriter._set_up

    async def forgetful(self: SegmentWriter) -> None:
        """Ignores what the segment has stored already."""
        acknowledge = self._acknowledge
        monkeypatch.setattr(self, "_acknowledge", lambda number: setattr(self, "_number", max(self._number, number)))
        try:
            await set_up(self)
        finally:
            monkeypatch.setattr(self, "_acknowledge", acknowledge)
        for block in self._pending:
            block.last_number = 0

    monkeypatch.setattr(SegmentWriter, "_set_up", forgetful)
    expect_violation()


def test_rerouting_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    take_back = SegmentWriter.take_back

    def reversed_order(self: SegmentWriter) -> list[tuple[Run, list[bytes]]]:
        """The last events first."""
        return take_back(self)[::-1]

    monkeypatch.setattr(SegmentWriter, "take_back", reversed_order)
    expect_violation()


def test_forgetting_the_position_of_a_reader_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_reader = GroupState._remove_reader
    monkeypatch.setattr(GroupState, "_remove_reader", lambda self, reader, _: remove_reader(self, reader, {}))
    expect_violation()


def test_reading_a_merged_segment_before_all_that_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = GroupState._complete_segment

    def hasty(self: GroupState, update: r.SegmentCompleted) -> None:
        """One predecessor is enough."""
        complete(self, update)
        for segment in list(self.future):
            if segment in update.successors:
                del self.future[segment]
                self.unassigned[segment] = 0

    monkeypatch.setattr(GroupState, "_complete_segment", hasty)
    expect_violation()


def test_keeping_a_segment_that_was_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = EventReader._drop

    async def greedy(self: EventReader, segment: str) -> None:
        """Stops reading, but only after what is here already."""
        source = self._inputs.get(segment)
        if source is None or not source.ready:
            await drop(self, segment)

    release = GroupMember.release_one

    async def eager(self: GroupMember, positions: dict[str, int]) -> str | None:
        """Gives a segment away at every chance."""
        self._timers.release_s = 0.0
        return await release(self, positions)

    monkeypatch.setattr(EventReader, "_drop", greedy)
    monkeypatch.setattr(GroupMember, "release_one", eager)
    expect_violation()


def test_the_workload_is_silent_without_a_bug() -> None:
    workloads: Sequence[Any] = [ClusterWorkload(seed) for seed in range(3)]
    for workload in workloads:
        workload.run()
