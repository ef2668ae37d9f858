"""Convert between protocol buffer messages and the controller's values (docs/protocol/controller.md#messages)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import AnswerTooLargeError, BadRequestError, NoSuchStreamError
from tailrace.common.stream_policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig
from tailrace.controller.metadata.policies import check_config
from tailrace.controller.metadata.stream_store import StreamKey
from tailrace.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.message import Message

    from tailrace.controller.metadata.model import StreamSegment


_STORED_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,300}")
"""Names that users and the controller may give. No slash: it separates the parts of a record's key."""


def key_of(info: pb.StreamInfo) -> StreamKey:
    """Return the stream that a request names. Raises NoSuchStreamError for a name that no stream can have."""
    if not (_STORED_NAME.fullmatch(info.scope) and _STORED_NAME.fullmatch(info.stream)):
        raise NoSuchStreamError(f"stream {info.scope[:80]!r}/{info.stream[:80]!r} does not exist")
    return StreamKey(info.scope, info.stream)


def stream_info(key: StreamKey) -> pb.StreamInfo:
    """The message that names a stream."""
    return pb.StreamInfo(scope=key.scope, stream=key.stream)


def config_from(message: pb.StreamConfig) -> StreamConfig:
    """Return the configuration of a request. Raises BadRequestError that names the invalid field."""
    scaling = message.scalingPolicy
    if int(scaling.scaleType) not in [int(kind) for kind in ScaleType]:
        raise BadRequestError(f"scaleType {scaling.scaleType} is not known")
    return check_config(
        StreamConfig(
            scaling=ScalingPolicy(
                ScaleType(scaling.scaleType), scaling.minNumSegments, scaling.targetRate, scaling.scaleFactor
            ),
            retention=_retention_from(message),
            tags=tuple(sorted(dict.fromkeys(message.tags.tag))),
            timestamp_aggregation_timeout_ms=message.timestampAggregationTimeout,
            rollover_bytes=message.rolloverSizeBytes,
        )
    )


def _retention_from(message: pb.StreamConfig) -> RetentionPolicy | None:
    policy = message.retentionPolicy
    if policy.retentionType == pb.RetentionPolicy.UNKNOWN:
        return None
    if int(policy.retentionType) not in [int(kind) for kind in RetentionType]:
        raise BadRequestError(f"retentionType {policy.retentionType} is not known")
    return RetentionPolicy(RetentionType(policy.retentionType), policy.retentionParam, policy.retentionMax)


def config_message(key: StreamKey, config: StreamConfig) -> pb.StreamConfig:
    """A stored configuration as a message."""
    message = pb.StreamConfig(
        streamInfo=stream_info(key),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.ScalingPolicyType.ValueType(config.scaling.kind),
            targetRate=config.scaling.target_rate,
            scaleFactor=config.scaling.scale_factor,
            minNumSegments=config.scaling.min_segments,
        ),
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )
    if config.retention is not None:
        message.retentionPolicy.CopyFrom(
            pb.RetentionPolicy(
                retentionType=pb.RetentionPolicy.RetentionPolicyType.ValueType(config.retention.kind),
                retentionParam=config.retention.minimum,
                retentionMax=config.retention.maximum,
            )
        )
    return message


def segment_id_message(key: StreamKey, identifier: int) -> pb.SegmentId:
    """A segment of the stream."""
    return pb.SegmentId(streamInfo=stream_info(key), segmentId=identifier)


def segment_range(key: StreamKey, segment: StreamSegment, identifier: int | None = None) -> pb.SegmentRange:
    """A segment with its key range. `identifier` replaces the id in replies about transactions."""
    shown = segment.identifier if identifier is None else identifier
    return pb.SegmentRange(segmentId=segment_id_message(key, shown), minKey=segment.low, maxKey=segment.high)


def segment_ranges(key: StreamKey, segments: Iterable[StreamSegment]) -> pb.SegmentRanges:
    """Segments with their ranges, in key order as given."""
    return pb.SegmentRanges(segmentRanges=[segment_range(key, segment) for segment in segments])


def check_room(answer: Message, count: int) -> None:
    """Check that an answer has room for so many of its entries, of which it has one, of the greatest length.

    Raises:
        AnswerTooLargeError.
    """
    length_bytes, most_bytes = answer.ByteSize() * count, limits.RPC_MESSAGE_MAX_BYTES
    if length_bytes > most_bytes:
        raise AnswerTooLargeError(
            f"the answer ({answer.DESCRIPTOR.name}) would have up to {length_bytes} bytes, for {count} segments;"
            f" at most {most_bytes} are allowed"
        )


def positions(cut: Mapping[int, int]) -> dict[int, int]:
    """Sort a message's cut by segment id, so that equal cuts are stored as equal bytes.

    Raises:
        BadRequestError: it has more segments than a stream may have.
    """
    if len(cut) > limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"a cut names {len(cut)} segments; at most {limits.STREAM_SEGMENTS_MAX} are allowed")
    return dict(sorted(cut.items()))


def transaction_id_from(message: pb.TxnId) -> bytes:
    """The 16 bytes of a transaction id."""
    return message.highBits.to_bytes(8, "big", signed=True) + message.lowBits.to_bytes(8, "big", signed=True)


def transaction_id_message(transaction_id: bytes) -> pb.TxnId:
    """A transaction id as its two halves."""
    return pb.TxnId(
        highBits=int.from_bytes(transaction_id[:8], "big", signed=True),
        lowBits=int.from_bytes(transaction_id[8:], "big", signed=True),
    )
