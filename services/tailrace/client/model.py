"""What users tell the controller and get from it: configurations, segments, transactions (controller §5)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common import names
from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_cut import StreamCut

UNLIMITED = 2**63 - 1
NO_GROUP_ID: Final = uuid.UUID(int=0)


class ScaleType(enum.IntEnum):
    """What a scaling policy watches (numbers of the controller's messages)."""

    FIXED = 0
    BY_RATE_IN_KBYTES = 1
    BY_RATE_IN_EVENTS = 2


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How many segments a stream has; ``target_rate`` per segment and second, in KB or events."""

    kind: ScaleType
    min_segments: int
    target_rate: int = 0
    scale_factor: int = 0

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Always so many segments."""
        return cls(ScaleType.FIXED, segments)

    @classmethod
    def by_events(cls, target_rate: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        """By events a second."""
        return cls(ScaleType.BY_RATE_IN_EVENTS, min_segments, target_rate, scale_factor)

    @classmethod
    def by_kbytes(cls, target_rate: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        """By kilobytes a second."""
        return cls(ScaleType.BY_RATE_IN_KBYTES, min_segments, target_rate, scale_factor)


class RetentionType(enum.IntEnum):
    """What bounds the data kept (numbers of the controller's messages)."""

    TIME = 1
    SIZE = 2


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Data to keep at least and at most, in milliseconds or bytes."""

    kind: RetentionType
    minimum: int
    maximum: int = UNLIMITED

    @classmethod
    def by_time_ms(cls, minimum_ms: int, maximum_ms: int = UNLIMITED) -> RetentionPolicy:
        """Keep by age."""
        return cls(RetentionType.TIME, minimum_ms, maximum_ms)

    @classmethod
    def by_size_bytes(cls, minimum_bytes: int, maximum_bytes: int = UNLIMITED) -> RetentionPolicy:
        """Keep by size."""
        return cls(RetentionType.SIZE, minimum_bytes, maximum_bytes)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Configuration of a stream."""

    scaling: ScalingPolicy = ScalingPolicy(ScaleType.FIXED, 1)
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = 0


class StreamDataRetention(enum.IntEnum):
    """How a group takes part in consumption-based retention (reader-group-state §3.2)."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC_AT_LAST_CHECKPOINT = 2


@dataclass(frozen=True)
class ReaderGroupConfig:
    """Configuration of a reader group; a cut of None is unbounded (head to start from, tail to end at)."""

    automatic_checkpoint_ms: int = 30_000
    group_refresh_ms: int = 3_000
    starting: Mapping[str, StreamCut | None] = field(default_factory=dict)
    ending: Mapping[str, StreamCut | None] = field(default_factory=dict)
    max_outstanding_checkpoints: int = 3
    retention: int = StreamDataRetention.NONE
    generation: int = -1
    group_id: uuid.UUID = NO_GROUP_ID

    def same_settings(self, other: ReaderGroupConfig) -> bool:
        """Equality without generation and id (reader-group-state §3.2)."""
        return self._settings() == other._settings()

    def _settings(self) -> tuple[object, ...]:
        return (
            self.automatic_checkpoint_ms,
            self.group_refresh_ms,
            dict(self.starting),
            dict(self.ending),
            self.max_outstanding_checkpoints,
            self.retention,
        )


class StreamName(NamedTuple):
    """A stream and its scope; written ``scope/stream``."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"

    @classmethod
    def parse(cls, text: str) -> StreamName:
        """Read ``scope/stream``. Raises InvalidNameError, BadRequestError."""
        scope, separator, stream = text.partition("/")
        if not separator:
            raise BadRequestError(f"{text[:80]!r} is not of the form SCOPE/STREAM")
        names.check_scope_name(scope, internal=True)
        names.check_stream_name(stream, internal=True)
        return cls(scope, stream)

    def segment(self, identifier: int) -> str:
        """Full name of one of its segments."""
        return names.qualified_segment_name(self.scope, self.stream, identifier)


def name_of(stream: str | StreamName) -> StreamName:
    """The stream that is meant. Raises BadRequestError, InvalidNameError."""
    return StreamName.parse(stream) if isinstance(stream, str) else stream


class SegmentRange(NamedTuple):
    """A segment and the part of the key space that it owns."""

    identifier: int
    key_range: KeyRange


class Successor(NamedTuple):
    """A segment that follows a sealed one, and all the segments that it follows."""

    segment: SegmentRange
    predecessors: Sequence[int]


class TransactionState(enum.IntEnum):
    """State of a transaction (numbers of the controller's messages)."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class PingStatus(enum.IntEnum):
    """Answer to a transaction's ping (numbers of the controller's messages)."""

    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    SCALE_GRACE_TIME_EXCEEDED = 3
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


class TransactionSegments(NamedTuple):
    """A new transaction: its id and the segments (ids in the transaction's epoch) that its events go to."""

    transaction: uuid.UUID
    segments: Sequence[SegmentRange]


class ScaleStarted(NamedTuple):
    """A scale under way: the epoch before it (to ask for its end with) and the new segments."""

    epoch: int
    segments: Sequence[SegmentRange]


Cut = Mapping[int, int]
"""Segment id → offset; empty is unbounded."""


def owner_of(segments: Sequence[SegmentRange], key: float) -> SegmentRange:
    """The segment whose range holds a hashed key. Raises BadRequestError when none does."""
    for segment in segments:
        if segment.key_range.contains(key):
            return segment
    raise BadRequestError(f"no segment owns key {key}")
