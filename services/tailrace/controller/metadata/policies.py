"""Check configurations, leases and scales, and compute the segments that a policy needs. Pure.

Every check raises BadRequestError with a message that names the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.common.ranges import KeyRange, check_range, equal_ranges
from tailrace.common.stream_policies import RetentionPolicy, ScaleType, ScalingPolicy, StreamConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.controller.metadata.model import Epoch

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def check_config(config: StreamConfig) -> StreamConfig:
    """Return the configuration if it is valid.

    Raises:
        BadRequestError: names the invalid field.
    """
    check_scaling(config.scaling)
    if config.retention is not None:
        check_retention(config.retention)
    check_tags(config.tags)
    if not 0 <= config.timestamp_aggregation_timeout_ms <= INT64_MAX:
        raise BadRequestError(
            f"timestampAggregationTimeout is {config.timestamp_aggregation_timeout_ms} ms, it must not be negative"
        )
    if not 0 <= config.rollover_bytes <= INT64_MAX:
        raise BadRequestError(f"rolloverSizeBytes is {config.rollover_bytes}, it must not be negative")
    return config


def segments_max(scope: str, stream: str) -> int:
    """Return how many active segments a stream of that name may have: as many as one answer can name."""
    each_bytes = len(scope) + len(stream) + limits.SEGMENT_RANGE_MESSAGE_BYTES
    return min(limits.STREAM_SEGMENTS_MAX, limits.RPC_MESSAGE_MAX_BYTES // each_bytes)


def check_segment_count(scope: str, stream: str, count: int) -> None:
    """Raise BadRequestError when a policy's minimum is more segments than a stream of that name may have."""
    most = segments_max(scope, stream)
    if count > most:
        raise BadRequestError(f"minNumSegments is {count}, a stream with a name of this length has {most} at most")


def check_scaling(policy: ScalingPolicy) -> None:
    """Raise BadRequestError when the scaling policy is not valid."""
    if not 1 <= policy.min_segments <= limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(f"minNumSegments is {policy.min_segments}, allowed are 1 to {limits.STREAM_SEGMENTS_MAX}")
    if policy.kind is ScaleType.FIXED:
        _check_unused("targetRate", policy.target_rate)
        _check_unused("scaleFactor", policy.scale_factor)
        return
    if not 1 <= policy.target_rate <= INT32_MAX:
        raise BadRequestError(f"targetRate is {policy.target_rate}, at least 1 is required")
    if not 1 <= policy.scale_factor <= INT32_MAX:
        raise BadRequestError(f"scaleFactor is {policy.scale_factor}, at least 1 is required")


def _check_unused(name: str, value: int) -> None:
    """Check a field that a fixed number of segments does not use, but segments store."""
    if not 0 <= value <= INT32_MAX:
        raise BadRequestError(f"{name} is {value}, it must not be negative")


def check_retention(policy: RetentionPolicy) -> None:
    """Raise BadRequestError when the retention policy is not valid."""
    if not 0 <= policy.minimum <= INT64_MAX:
        raise BadRequestError(f"retentionParam is {policy.minimum}, it must not be negative")
    if policy.maximum != 0 and policy.maximum < policy.minimum:  # 0 is an unset field, so there is no maximum
        raise BadRequestError(f"retentionMax is {policy.maximum}, below retentionParam {policy.minimum}")


def check_tags(tags: Sequence[str]) -> None:
    """Raise BadRequestError for too many or too long tags (docs/protocol/server.md#limits)."""
    if len(tags) > limits.TAGS_PER_STREAM_MAX:
        raise BadRequestError(f"{len(tags)} tags, at most {limits.TAGS_PER_STREAM_MAX} are allowed")
    for tag in tags:
        if not 0 < len(tag) <= limits.TAG_MAX_LENGTH:
            raise BadRequestError(f"tag of {len(tag)} characters, allowed are 1 to {limits.TAG_MAX_LENGTH}")


def check_lease(lease_ms: int, minimum_ms: int, maximum_ms: int) -> int:
    """Return the lease if it is within both bounds, inclusive (docs/protocol/server.md#transactions).

    Raises:
        BadRequestError: names the field and both bounds.
    """
    if not minimum_ms <= lease_ms <= maximum_ms:
        raise BadRequestError(f"lease is {lease_ms} ms, allowed are {minimum_ms} to {maximum_ms} ms")
    return lease_ms


def check_new_ranges(ranges: Sequence[tuple[float, float]]) -> list[KeyRange]:
    """Return the key ranges of a scale request.

    Raises:
        BadRequestError: a range is not a part of [0, 1), or there are too many ranges.
    """
    if len(ranges) > limits.STREAM_SEGMENTS_MAX:
        raise BadRequestError(
            f"newKeyRanges holds {len(ranges)} ranges, at most {limits.STREAM_SEGMENTS_MAX} are allowed"
        )
    return [check_range(low, high) for low, high in ranges]


def ranges_for_policy(policy: ScalingPolicy, current: Epoch) -> list[KeyRange] | None:
    """Return the key ranges that an update to `policy` must scale to; None when the active segments satisfy it."""
    count = len(current.segments)
    fits = count == policy.min_segments if policy.kind is ScaleType.FIXED else count >= policy.min_segments
    return None if fits else equal_ranges(policy.min_segments)
