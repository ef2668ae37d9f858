"""JSON of the REST interface (docs/protocol/rest.md#models)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field


class ScalingType(StrEnum):
    """What a scaling policy measures."""

    FIXED_NUM_SEGMENTS = "FIXED_NUM_SEGMENTS"
    BY_RATE_IN_KBYTES_PER_SEC = "BY_RATE_IN_KBYTES_PER_SEC"
    BY_RATE_IN_EVENTS_PER_SEC = "BY_RATE_IN_EVENTS_PER_SEC"


class RetentionConfigType(StrEnum):
    """What a retention policy limits."""

    LIMITED_DAYS = "LIMITED_DAYS"
    LIMITED_SIZE_MB = "LIMITED_SIZE_MB"


class TimeBasedRetention(BaseModel):
    """A span of time."""

    days: int = 0
    hours: int = 0
    minutes: int = 0


class ScalingConfig(BaseModel):
    """Scaling policy. FIXED_NUM_SEGMENTS uses ``minSegments`` only."""

    type: ScalingType
    targetRate: int | None = None
    scaleFactor: int | None = None
    minSegments: int | None = None


class RetentionConfig(BaseModel):
    """Retention policy: ``value`` in days or MiB. Other time spans use the fields of `TimeBasedRetention`."""

    type: RetentionConfigType
    value: int | None = None
    timeBasedRetention: TimeBasedRetention | None = None
    maxValue: int | None = None
    maxTimeBasedRetention: TimeBasedRetention | None = None


class ScopeProperty(BaseModel):
    """A scope."""

    scopeName: str


class CreateScopeRequest(BaseModel):
    """Name of the scope to create."""

    scopeName: str


class ScopesList(BaseModel):
    """All scopes."""

    scopes: list[ScopeProperty]


class UpdateStreamRequest(BaseModel):
    """The whole new configuration."""

    scalingPolicy: ScalingConfig
    retentionPolicy: RetentionConfig | None = None
    # Of many mistakes in a list the first is reported: a body has room for 500,000.
    streamTags: Annotated[list[str] | None, Field(fail_fast=True)] = None
    timestampAggregationTimeout: int | None = None
    rolloverSizeBytes: int | None = None


class CreateStreamRequest(UpdateStreamRequest):
    """Name and configuration of the stream to create."""

    streamName: str


class StreamProperty(BaseModel):
    """A stream with its configuration."""

    scopeName: str
    streamName: str
    scalingPolicy: ScalingConfig
    retentionPolicy: RetentionConfig | None = None
    tags: list[str] = []
    timestampAggregationTimeout: int = 0
    rolloverSizeBytes: int = 0


class StreamsList(BaseModel):
    """Streams of a scope."""

    streams: list[StreamProperty]


class StreamStateModel(BaseModel):
    """Requested state of a stream: only SEALED is allowed."""

    streamState: str


class SegmentModel(BaseModel):
    """A segment in a scaling event."""

    number: int
    startTime: int
    keyStart: float
    keyEnd: float


class ScaleMetadata(BaseModel):
    """One scaling event and the segments after it."""

    timestamp: int
    segmentList: list[SegmentModel]
    splits: int
    merges: int


class ReaderGroupName(BaseModel):
    """A reader group."""

    readerGroupName: str


class ReaderGroupsList(BaseModel):
    """Reader groups of a scope."""

    readerGroups: list[ReaderGroupName]


class GroupStream(BaseModel):
    """A stream of a reader group: cuts as offsets by segment id; None where there is none."""

    streamName: str
    lagBytes: int
    lagSecondsLeast: float | None
    lagSecondsMost: float | None
    position: dict[str, int] | None
    lastCheckpoint: dict[str, int] | None
    published: dict[str, int] | None


class GroupReader(BaseModel):
    """An online reader with the offsets of its segments; ``deadAfterSeconds`` is None without heartbeats."""

    readerId: str
    segments: dict[str, int]
    lagBytes: int
    deadAfterSeconds: float | None


class ReaderGroupProperty(BaseModel):
    """A reader group; the fields after ``onlineReaderIds`` are Tailrace's."""

    scopeName: str
    readerGroupName: str
    streamList: list[str]
    onlineReaderIds: list[str]
    readerGroupId: str | None
    generation: int
    retentionType: str
    lagBytes: int
    lagSecondsLeast: float | None
    lagSecondsMost: float | None
    streams: list[GroupStream]
    readers: list[GroupReader]
    unassignedSegments: dict[str, int]
    waitingSegments: list[str]


class HealthResult(BaseModel):
    """Health of a part and of the parts below it."""

    name: str
    status: str
    readiness: bool
    liveness: bool
    details: dict[str, str] = {}
    children: dict[str, HealthResult] = {}


class HealthDetails(BaseModel):
    """Details of a part."""

    details: dict[str, str]


class HealthStatusModel(BaseModel):
    """Status of a part: UP, STARTING, DOWN."""

    status: str
