"""Values of controller calls: streams, segments, transactions, reader groups (docs/protocol/controller.md#messages)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common import names
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_policies import StreamDataRetention

if TYPE_CHECKING:
    from tailrace.common.ranges import KeyRange
    from tailrace.common.stream_cut import StreamCut

NO_GROUP_ID: Final = uuid.UUID(int=0)


@dataclass(frozen=True)
class ReaderGroupConfig:
    """Configuration of a reader group. A cut of None is unbounded: start at the head, read without end."""

    automatic_checkpoint_ms: int = 30_000
    group_refresh_ms: int = 3_000
    starting: Mapping[str, StreamCut | None] = field(default_factory=dict)
    ending: Mapping[str, StreamCut | None] = field(default_factory=dict)
    max_outstanding_checkpoints: int = 3
    retention: int = StreamDataRetention.NONE
    generation: int = -1
    group_id: uuid.UUID = NO_GROUP_ID

    def same_settings(self, other: ReaderGroupConfig) -> bool:
        """Return whether both are equal, ignoring generation and id.

        See docs/protocol/reader-group-state.md#configuration.
        """
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
    """A stream and its scope, written ``scope/stream``."""

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
        """Return the full name of one of its segments."""
        return names.qualified_segment_name(self.scope, self.stream, identifier)


def name_of(stream: str | StreamName) -> StreamName:
    """Return the name of a stream, parsed if it is text. Raises BadRequestError, InvalidNameError."""
    return StreamName.parse(stream) if isinstance(stream, str) else stream


class SegmentRange(NamedTuple):
    """A segment and the key range that it owns."""

    identifier: int
    key_range: KeyRange


class Successor(NamedTuple):
    """A successor of a sealed segment, and all its predecessors."""

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
    """Reply to a transaction's ping (numbers of the controller's messages)."""

    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    SCALE_GRACE_TIME_EXCEEDED = 3
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


class TransactionSegments(NamedTuple):
    """A new transaction: its id and its segments, with ids in the transaction's epoch."""

    transaction: uuid.UUID
    segments: Sequence[SegmentRange]


class ScaleStarted(NamedTuple):
    """A running scale: the epoch before it, which `check_scale` needs, and the new segments."""

    epoch: int
    segments: Sequence[SegmentRange]


Cut = Mapping[int, int]
"""Segment id → offset; empty is unbounded."""


def owner_of(segments: Sequence[SegmentRange], key: float) -> SegmentRange:
    """Return the segment whose range holds a hashed key. Raises BadRequestError when there is none."""
    for segment in segments:
        if segment.key_range.contains(key):
            return segment
    raise BadRequestError(f"no segment owns key {key}")
