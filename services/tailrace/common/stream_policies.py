"""A stream's configuration: scaling and retention policies, tags and rollover size.

Clients send it, and the controller stores it inside its records. Stored field names are part of the controller's
format (docs/formats/controller.md), so `name=` keeps them where the attribute has another name.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

UNLIMITED: Final = 2**63 - 1
"""Maximum of a retention policy that never forces a truncation."""
WHY_SCALED: Final = {
    "Rate": "by the rates of its segments",
    "Policy": "because its policy was updated",
    "Manual": "by a call",
}
"""The reasons of scales, for people; a later version may have others."""


class ScaleType(enum.IntEnum):
    """What a scaling policy measures. The numbers are those of the controller's messages and of the wire protocol."""

    FIXED = 0
    BY_RATE_IN_KBYTES = 1
    BY_RATE_IN_EVENTS = 2


class ScalingPolicy(msgspec.Struct, frozen=True):
    """How many segments a stream has. ``target_rate`` is per segment, in KB/s or events/s; 0 for FIXED."""

    kind: ScaleType = msgspec.field(default=ScaleType.FIXED, name="scale_type")
    min_segments: int = 1
    target_rate: int = 0
    scale_factor: int = 0

    @classmethod
    def fixed(cls, segments: int) -> ScalingPolicy:
        """Keep a fixed number of segments."""
        return cls(ScaleType.FIXED, segments)

    @classmethod
    def by_events(cls, target_rate: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        """Scale by events per second and segment."""
        return cls(ScaleType.BY_RATE_IN_EVENTS, min_segments, target_rate, scale_factor)

    @classmethod
    def by_kbytes(cls, target_rate: int, scale_factor: int, min_segments: int) -> ScalingPolicy:
        """Scale by kilobytes per second and segment."""
        return cls(ScaleType.BY_RATE_IN_KBYTES, min_segments, target_rate, scale_factor)


class RetentionType(enum.IntEnum):
    """What a retention policy limits. The numbers are those of the controller's messages."""

    TIME = 1
    SIZE = 2


class RetentionPolicy(msgspec.Struct, frozen=True):
    """The least and the most data to keep, in milliseconds (TIME) or bytes (SIZE)."""

    kind: RetentionType = msgspec.field(name="retention_type")
    minimum: int
    maximum: int = UNLIMITED

    @property
    def most(self) -> int:
        """Return the maximum; `UNLIMITED` also for 0, which clients send that do not know the field."""
        return self.maximum or UNLIMITED

    @classmethod
    def by_time_ms(cls, minimum_ms: int, maximum_ms: int = UNLIMITED) -> RetentionPolicy:
        """Keep data by age."""
        return cls(RetentionType.TIME, minimum_ms, maximum_ms)

    @classmethod
    def by_size_bytes(cls, minimum_bytes: int, maximum_bytes: int = UNLIMITED) -> RetentionPolicy:
        """Keep data by size."""
        return cls(RetentionType.SIZE, minimum_bytes, maximum_bytes)


class StreamDataRetention(enum.IntEnum):
    """How a reader group's position takes part in consumption-based retention."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC_AT_LAST_CHECKPOINT = 2


class StreamConfig(msgspec.Struct, frozen=True):
    """A stream's whole configuration; an update replaces all of it."""

    scaling: ScalingPolicy = ScalingPolicy()
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_bytes: int = msgspec.field(default=0, name="rollover_size_bytes")
