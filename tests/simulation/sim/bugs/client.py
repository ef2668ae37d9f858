"""Planted bugs of the client: of the kinds that clients of such systems have had."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.workloads.cluster import ClusterWorkload
from tailrace.client.group.membership import GroupMember
from tailrace.client.group.state import records as r
from tailrace.client.group.state.state import GroupState
from tailrace.client.reader.event_reader import EventReader
from tailrace.client.writer.append_blocks import Run
from tailrace.client.writer.segment_writer import SegmentWriter
from tailrace.common import limits


def _scaling(seed: int) -> ClusterWorkload:
    """Writers that are never short of events, in small blocks, and a scale after the other."""
    workload = ClusterWorkload(seed)
    main = workload.main
    main.scales, main.turns, main.pause_s = 8, 80, 0.1
    main.readers, main.rounds, main.truncations = 1, 0, 0
    workload.recreated.rounds = workload.tables.rounds = 0
    workload.knobs[limits, "WRITER_BLOCK_MAX_BYTES"] = 300
    return workload


@bug(
    "events-sent-again-under-new-numbers",
    ClusterWorkload,
    checker="workloads/clusterledger.py",
    words="events were stored .* twice",
)
def _events_sent_again_under_new_numbers(patch: pytest.MonkeyPatch) -> None:
    """A writer that reconnects sends events that are stored already under new event numbers.

    Breaks: a writer that reconnects neither loses nor repeats events.
    """
    set_up = SegmentWriter._set_up

    async def forgetful(self: SegmentWriter) -> None:
        """Ignores what the segment has stored already."""
        acknowledge = self._acknowledge
        patch.setattr(self, "_acknowledge", lambda number: setattr(self, "_number", max(self._number, number)))
        try:
            await set_up(self)
        finally:
            patch.setattr(self, "_acknowledge", acknowledge)
        for block in self._pending:
            block.last_number = 0

    patch.setattr(SegmentWriter, "_set_up", forgetful)


@bug("rerouted-in-wrong-order", _scaling, checker="workloads/clusterledger.py", words="events of .* out of order")
def _rerouted_in_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Events of a sealed segment go to its successors in reverse order.

    Breaks: order per routing key survives splits and merges of segments.
    """
    take_back = SegmentWriter.take_back

    def reversed_order(self: SegmentWriter) -> list[tuple[Run, list[bytes]]]:
        """The last events first."""
        return take_back(self)[::-1]

    patch.setattr(SegmentWriter, "take_back", reversed_order)


@bug(
    "position-of-leaving-reader-forgotten",
    ClusterWorkload,
    checker="workloads/clusterledger.py",
    words="events were read by the group .* twice",
)
def _position_of_leaving_reader_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A reader group loses the position of a reader that leaves.

    Breaks: a reader group reads each event once.
    """
    remove_reader = GroupState._remove_reader
    patch.setattr(GroupState, "_remove_reader", lambda self, reader, _: remove_reader(self, reader, {}))


@bug(
    "merged-segment-read-early",
    _scaling,
    checker="workloads/clusterledger.py",
    words="were read by the group .* (twice|out of order)",
)
def _merged_segment_read_early(patch: pytest.MonkeyPatch) -> None:
    """A reader group reads a merged segment as soon as one of its predecessors was read.

    Breaks: order per routing key survives splits and merges of segments.
    """
    complete = GroupState._complete_segment

    def hasty(self: GroupState, update: r.SegmentCompleted) -> None:
        """One predecessor is enough."""
        complete(self, update)
        for segment in list(self.future):
            if segment in update.successors:
                del self.future[segment]
                self.unassigned[segment] = 0

    patch.setattr(GroupState, "_complete_segment", hasty)


@bug(
    "segment-read-after-release",
    ClusterWorkload,
    checker="workloads/clusterledger.py",
    words="events were read by the group .* twice",
)
def _segment_read_after_release(patch: pytest.MonkeyPatch) -> None:
    """A reader continues to read a segment that it gave to another reader.

    Breaks: a reader group reads each event once.
    """
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

    patch.setattr(EventReader, "_drop", greedy)
    patch.setattr(GroupMember, "release_one", eager)
