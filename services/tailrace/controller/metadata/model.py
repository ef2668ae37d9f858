"""What the controller knows of a stream beside its configuration: immutable values (design §10, controller §5).

The persisted records of `tailrace.controller.metadata.records` are made of these, so a field may be added with a
default, but none may change its meaning.
"""

from __future__ import annotations

import enum

import msgspec

from tailrace.common import names
from tailrace.common.ranges import KeyRange


class StreamState(enum.StrEnum):
    """Life of a stream. CREATING and DELETED look like a missing stream from outside."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    SCALING = "scaling"
    TRUNCATING = "truncating"
    SEALING = "sealing"
    SEALED = "sealed"
    DELETING = "deleting"
    DELETED = "deleted"


EXISTING_STATES = frozenset(StreamState) - {StreamState.CREATING, StreamState.DELETED}
WRITABLE_STATES = frozenset({StreamState.ACTIVE, StreamState.UPDATING, StreamState.SCALING, StreamState.TRUNCATING})


class StreamSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment and the part of the key space that it owns."""

    identifier: int
    low: float
    high: float

    @property
    def key_range(self) -> KeyRange:
        """Owned part of [0, 1)."""
        return KeyRange(self.low, self.high)

    @property
    def number(self) -> int:
        """Number half of the id."""
        return names.segment_number(self.identifier)

    @property
    def epoch(self) -> int:
        """Epoch in which the segment was created."""
        return names.segment_epoch(self.identifier)


class Epoch(msgspec.Struct, frozen=True):
    """The segments that are active together between two scales; never changed once written.

    ``segments`` are sorted by key range and partition [0, 1). ``splits`` and ``merges`` count what the scale that made
    the epoch did (rest §"ScaleMetadata").
    """

    epoch: int
    created_ms: int
    segments: tuple[StreamSegment, ...]
    splits: int = 0
    merges: int = 0
    reference_epoch: int = -1

    @property
    def reference(self) -> int:
        """The epoch whose key ranges this one repeats; itself when it repeats none (server §3)."""
        return self.epoch if self.reference_epoch < 0 else self.reference_epoch

    def find(self, identifier: int) -> StreamSegment | None:
        """The segment of that id, if it is active in this epoch."""
        return next((segment for segment in self.segments if segment.identifier == identifier), None)


class TransactionState(enum.StrEnum):
    """Life of a transaction; COMMITTING and ABORTING are decided and cannot turn back."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
