"""The state of one writer on one connection, and its appends (docs/protocol/wire.md#appends)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.segmentstore.api import NULL_ATTRIBUTE, AppendRequest

if TYPE_CHECKING:
    from tailrace.segmentstore.api import SegmentContainer


@dataclass(slots=True)
class WriterAppend(AppendRequest):
    """An append that a container processes, with the fields of its acknowledgement."""

    writer: WriterState | None = None
    sequence: int = 0
    event_number: int = 0
    request_id: int = -1


class WriterState:
    """A (segment, writer) pair that was set up on a connection.

    ``last_stored`` is the event number of the latest append passed to the container, ``last_acked`` that of the latest
    committed one, ``ack_sent`` the last one sent to the client. ``container`` is None until the setup has its reply. A
    ``broken`` writer had a failure: its later appends are dropped until the client sets it up again.
    """

    __slots__ = (
        "ack_length",
        "ack_request_id",
        "ack_sent",
        "ack_waiting",
        "broken",
        "container",
        "failures",
        "last_acked",
        "last_stored",
        "outstanding",
        "scope",
        "segment",
        "sequence",
        "writer_id",
    )

    def __init__(self, segment: str, scope: str, writer_id: bytes) -> None:
        self.segment = segment
        self.scope = scope
        self.writer_id = writer_id
        self.container: SegmentContainer | None = None
        self.last_stored = self.last_acked = self.ack_sent = NULL_ATTRIBUTE
        self.ack_request_id = -1
        self.ack_length = -1
        self.ack_waiting = False
        self.broken = False
        self.sequence = 0
        self.outstanding: dict[int, WriterAppend] = {}
        self.failures: list[tuple[WriterAppend, Exception]] = []

    def set_up(self, container: SegmentContainer, last_event_number: int) -> None:
        """Record the setup's outcome: appends may follow."""
        self.container = container
        self.last_stored = self.last_acked = self.ack_sent = last_event_number

    def failed(self, append: WriterAppend, error: Exception) -> None:
        """Record a failure. An append that fails at submission may do so before earlier ones complete."""
        self.failures.append((append, error))
        self.failures.sort(key=lambda failure: failure[0].sequence)

    def next_failure(self) -> tuple[WriterAppend, Exception] | None:
        """Return the earliest failure, once every append before it is settled.

        See docs/protocol/wire.md#append-failures.
        """
        if not self.failures:
            return None
        oldest = next(iter(self.outstanding), None)
        if oldest is not None and oldest < self.failures[0][0].sequence:
            return None
        return self.failures.pop(0)
