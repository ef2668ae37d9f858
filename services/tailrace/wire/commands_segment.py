"""Commands on segments: reads, attributes, life cycle, administration.

See docs/protocol/wire.md#read-commands, docs/protocol/wire.md#segment-commands, docs/protocol/wire.md#admin-commands.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from tailrace.wire.command import Command
from tailrace.wire.fields import (
    I8,
    I32,
    I64,
    AttributeConditions,
    Bulk,
    ChunkInfos,
    Flag,
    I64List,
    MeasuredRates,
    MergedSources,
    Text,
    TextList,
    Uuid,
)


@dataclass(slots=True)
class ReadSegment(Command):
    """Read from ``offset``; at the tail the answer waits for data (docs/protocol/wire.md#reads)."""

    CODE: ClassVar[int] = 9
    segment: Text
    offset: I64
    suggested_length: I32
    token: Text
    request_id: I64 = -1


@dataclass(slots=True)
class SegmentRead(Command):
    """Bytes from the requested ``offset``, which is echoed (docs/protocol/wire.md#reads)."""

    CODE: ClassVar[int] = 10
    segment: Text
    offset: I64
    at_tail: Flag
    end_of_segment: Flag
    data: Bulk
    request_id: I64 = -1


@dataclass(slots=True)
class GetStreamSegmentInfo(Command):
    """Ask for a segment's properties."""

    CODE: ClassVar[int] = 11
    request_id: I64
    segment: Text
    token: Text


@dataclass(slots=True)
class StreamSegmentInfo(Command):
    """A segment's properties; ``write_offset`` is its length, ``last_modified`` in ms since 1970."""

    CODE: ClassVar[int] = 12
    request_id: I64
    segment: Text
    exists: Flag
    is_sealed: Flag
    is_deleted: Flag
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@dataclass(slots=True)
class GetSegmentAttribute(Command):
    """Ask for an attribute's value."""

    CODE: ClassVar[int] = 34
    request_id: I64
    segment: Text
    attribute_id: Uuid
    token: Text


@dataclass(slots=True)
class SegmentAttribute(Command):
    """An attribute's value, Long.MIN_VALUE when it is not set (docs/protocol/wire.md#attributes)."""

    CODE: ClassVar[int] = 35
    request_id: I64
    value: I64


@dataclass(slots=True)
class UpdateSegmentAttribute(Command):
    """Set an attribute if it has the expected value; Long.MIN_VALUE stands for unset.

    See docs/protocol/wire.md#attributes.
    """

    CODE: ClassVar[int] = 36
    request_id: I64
    segment: Text
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    token: Text


@dataclass(slots=True)
class SegmentAttributeUpdated(Command):
    """Whether the attribute had the expected value and was set."""

    CODE: ClassVar[int] = 37
    request_id: I64
    success: Flag


@dataclass(slots=True)
class CreateSegment(Command):
    """Create a segment; ``scale_type`` 0 none, 1 KB/s, 2 events/s."""

    CODE: ClassVar[int] = 20
    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    token: Text
    rollover_size_bytes: I64 = 0


@dataclass(slots=True)
class SegmentCreated(Command):
    """The segment was created; for a transient segment, the name that the server chose."""

    CODE: ClassVar[int] = 21
    request_id: I64
    segment: Text


@dataclass(slots=True)
class SealSegment(Command):
    """Seal a segment."""

    CODE: ClassVar[int] = 28
    request_id: I64
    segment: Text
    token: Text


@dataclass(slots=True)
class SegmentSealed(Command):
    """The segment was sealed."""

    CODE: ClassVar[int] = 29
    request_id: I64
    segment: Text


@dataclass(slots=True)
class DeleteSegment(Command):
    """Delete a segment."""

    CODE: ClassVar[int] = 30
    request_id: I64
    segment: Text
    token: Text


@dataclass(slots=True)
class SegmentDeleted(Command):
    """The segment or table segment was deleted."""

    CODE: ClassVar[int] = 31
    request_id: I64
    segment: Text


@dataclass(slots=True)
class UpdateSegmentPolicy(Command):
    """Set the scale type and the target rate of a segment."""

    CODE: ClassVar[int] = 32
    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    token: Text


@dataclass(slots=True)
class SegmentPolicyUpdated(Command):
    """The policy was set."""

    CODE: ClassVar[int] = 33
    request_id: I64
    segment: Text


@dataclass(slots=True)
class TruncateSegment(Command):
    """Drop the bytes before ``truncation_offset``."""

    CODE: ClassVar[int] = 38
    request_id: I64
    segment: Text
    truncation_offset: I64
    token: Text


@dataclass(slots=True)
class SegmentTruncated(Command):
    """The segment was truncated."""

    CODE: ClassVar[int] = 39
    request_id: I64
    segment: Text


@dataclass(slots=True)
class CreateTransientSegment(Command):
    """Create a short-lived segment for a large event (docs/protocol/wire.md#appends)."""

    CODE: ClassVar[int] = 40
    request_id: I64
    writer_id: Uuid
    parent_segment: Text
    token: Text


@dataclass(slots=True)
class MergeSegments(Command):
    """Append the source to the target atomically and drop the source."""

    CODE: ClassVar[int] = 58
    request_id: I64
    target: Text
    source: Text
    token: Text
    attribute_updates: AttributeConditions = field(default_factory=list)


@dataclass(slots=True)
class SegmentsMerged(Command):
    """The source was merged; the target's length after it."""

    CODE: ClassVar[int] = 59
    request_id: I64
    target: Text
    source: Text
    new_target_write_offset: I64 = -1


@dataclass(slots=True)
class MergeSegmentsBatch(Command):
    """Merge several sources in order."""

    CODE: ClassVar[int] = 90
    request_id: I64
    target: Text
    sources: TextList
    token: Text


@dataclass(slots=True)
class SegmentsBatchMerged(Command):
    """The target's length after each source."""

    CODE: ClassVar[int] = 91
    request_id: I64
    target: Text
    merged: MergedSources


@dataclass(slots=True)
class FlushToStorage(Command):
    """Administration: move everything of a container to Tier 2."""

    CODE: ClassVar[int] = -3
    container_id: I32
    token: Text
    request_id: I64


@dataclass(slots=True)
class StorageFlushed(Command):
    """The container was flushed."""

    CODE: ClassVar[int] = -4
    request_id: I64


@dataclass(slots=True)
class ListStorageChunks(Command):
    """Administration: list a segment's chunks."""

    CODE: ClassVar[int] = -5
    segment: Text
    token: Text
    request_id: I64


@dataclass(slots=True)
class StorageChunksListed(Command):
    """A segment's chunks in Tier 2."""

    CODE: ClassVar[int] = -6
    request_id: I64
    chunks: ChunkInfos


@dataclass(slots=True)
class GetSegmentRates(Command):
    """Measure the segments of a container that have a rate policy; of Tailrace, not of Pravega."""

    CODE: ClassVar[int] = -1001
    container_id: I32
    token: Text
    request_id: I64
    after: I64
    windows_ms: I64List


@dataclass(slots=True)
class SegmentRates(Command):
    """Rates of segments in order of their ids; ``has_more`` when others follow the last one."""

    CODE: ClassVar[int] = -1002
    request_id: I64
    has_more: Flag
    measured: MeasuredRates


@dataclass(slots=True)
class ListSegments(Command):
    """List the segments of a container; of Tailrace, not of Pravega."""

    CODE: ClassVar[int] = -1003
    container_id: I32
    token: Text
    request_id: I64
    after: I64


@dataclass(slots=True)
class SegmentsListed(Command):
    """Names of segments in order of their ids; ``last`` is the id of the last one, ``has_more`` when others follow."""

    CODE: ClassVar[int] = -1004
    request_id: I64
    has_more: Flag
    last: I64
    segments: TextList


@dataclass(slots=True)
class GetStreamBytes(Command):
    """List what the streams of a container behind ``after`` hold in Tier 2; of Tailrace, not of Pravega."""

    CODE: ClassVar[int] = -1005
    container_id: I32
    token: Text
    request_id: I64
    after: Text


@dataclass(slots=True)
class StreamBytesListed(Command):
    """Streams, ``scope/stream``, by name, and what each holds; ``has_more`` when others follow the last one."""

    CODE: ClassVar[int] = -1006
    request_id: I64
    has_more: Flag
    streams: TextList
    held_bytes: I64List


COMMANDS: tuple[type[Command], ...] = (
    ReadSegment,
    SegmentRead,
    GetStreamSegmentInfo,
    StreamSegmentInfo,
    GetSegmentAttribute,
    SegmentAttribute,
    UpdateSegmentAttribute,
    SegmentAttributeUpdated,
    CreateSegment,
    SegmentCreated,
    SealSegment,
    SegmentSealed,
    DeleteSegment,
    SegmentDeleted,
    UpdateSegmentPolicy,
    SegmentPolicyUpdated,
    TruncateSegment,
    SegmentTruncated,
    CreateTransientSegment,
    MergeSegments,
    SegmentsMerged,
    MergeSegmentsBatch,
    SegmentsBatchMerged,
    FlushToStorage,
    StorageFlushed,
    ListStorageChunks,
    StorageChunksListed,
    GetSegmentRates,
    SegmentRates,
    ListSegments,
    SegmentsListed,
    GetStreamBytes,
    StreamBytesListed,
)
