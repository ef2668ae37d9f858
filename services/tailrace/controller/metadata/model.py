"""Immutable values of a stream beside its configuration: states, segments, epochs.

See docs/design.md#controller, docs/protocol/controller.md#messages.

The records of `tailrace.controller.metadata.records` contain them. A new field needs a default, and no field may
change its meaning.
"""

from __future__ import annotations

import enum

import msgspec

from tailrace.common import names
from tailrace.common.ranges import KeyRange


class StreamState(enum.StrEnum):
    """State of a stream. To clients, CREATING and DELETED streams do not exist."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    SCALING = "scaling"
    TRUNCATING = "truncating"
    SEALING = "sealing"
    SEALED = "sealed"
    DELETING = "deleting"
    DELETED = "deleted"


class TruncationReason(enum.StrEnum):
    """Why a stream is truncated where it is (docs/controller.md#retention)."""

    MANUAL = "Manual"
    MIN_LIMIT = "MinLimit"
    CONSUMPTION = "Consumption"
    MAX_LIMIT = "MaxLimit"


class ScaleReason(enum.StrEnum):
    """Why a stream is scaled (docs/controller.md#automatic-scaling)."""

    MANUAL = "Manual"
    """A call asked for it."""
    POLICY = "Policy"
    """Its policy was updated: to a fixed number, or to a minimum above the number of its segments."""
    RATE = "Rate"
    """The rates of its segments call for it, by its policy."""


EXISTING_STATES = frozenset(StreamState) - {StreamState.CREATING, StreamState.DELETED}
WRITABLE_STATES = frozenset({StreamState.ACTIVE, StreamState.UPDATING, StreamState.SCALING, StreamState.TRUNCATING})


class StreamSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment and the key range that it owns."""

    identifier: int
    low: float
    high: float

    @property
    def key_range(self) -> KeyRange:
        """Return the owned part of [0, 1)."""
        return KeyRange(self.low, self.high)

    @property
    def number(self) -> int:
        """Return the number in the id."""
        return names.segment_number(self.identifier)

    @property
    def epoch(self) -> int:
        """Return the epoch in which the segment was created."""
        return names.segment_epoch(self.identifier)


class Epoch(msgspec.Struct, frozen=True):
    """The segments that are active between two scales. A stored epoch never changes.

    ``segments`` are sorted by key range and partition [0, 1). ``splits`` and ``merges`` count the splits and merges of
    the scale that created the epoch (docs/protocol/rest.md#models). ``reason`` is its `ScaleReason`, "" in epochs of an
    earlier version and in those that no scale created. ``numbers_skipped`` of epoch 0 counts the numbers before its
    first one that the creation left out, because segments of a lost life have some of them (ADR 0062).
    """

    epoch: int
    created_ms: int
    segments: tuple[StreamSegment, ...]
    splits: int = 0
    merges: int = 0
    reference_epoch: int = -1
    reason: str = ""
    numbers_skipped: int = 0

    @property
    def reference(self) -> int:
        """Return the epoch whose key ranges this one repeats, or this epoch (docs/protocol/server.md#transactions)."""
        return self.epoch if self.reference_epoch < 0 else self.reference_epoch

    def find(self, identifier: int) -> StreamSegment | None:
        """Return the segment of that id if it is active in this epoch."""
        return next((segment for segment in self.segments if segment.identifier == identifier), None)


class TransactionState(enum.StrEnum):
    """State of a transaction. COMMITTING and ABORTING are decided and final."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


class RecordedCut(msgspec.Struct, frozen=True, array_like=True):
    """A cut at the tail: its number, when it was made, and the bytes that the stream had received since its beginning.

    See docs/controller.md#retention.
    """

    number: int
    recorded_ms: int
    size_bytes: int
