"""Convert between the JSON of the REST interface and protocol buffer messages (docs/protocol/rest.md#semantics)."""

from __future__ import annotations

from typing import Final

from tailrace.common.errors import BadRequestError
from tailrace.common.limits import MIB
from tailrace.controller.rest import models
from tailrace.rpc import controller_pb2 as pb

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_INT64_MAX: Final = 2**63 - 1


def config_message(scope: str, stream: str, body: models.UpdateStreamRequest, *, with_maximum: bool) -> pb.StreamConfig:
    """Return the configuration in a request's body. An update ignores the maximum of a retention policy.

    Raises:
        BadRequestError: a value does not fit its field.
    """
    try:
        return _config_message(scope, stream, body, with_maximum=with_maximum)
    except ValueError as error:
        raise BadRequestError(f"the configuration holds a value outside its range: {error}") from error


def _config_message(
    scope: str, stream: str, body: models.UpdateStreamRequest, *, with_maximum: bool
) -> pb.StreamConfig:
    scaling = body.scalingPolicy
    config = pb.StreamConfig(
        streamInfo=pb.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=pb.ScalingPolicy.ScalingPolicyType.Value(scaling.type.value),
            targetRate=scaling.targetRate or 0,
            scaleFactor=scaling.scaleFactor or 0,
            minNumSegments=scaling.minSegments or 0,
        ),
        tags=pb.Tags(tag=body.streamTags or []),
        timestampAggregationTimeout=body.timestampAggregationTimeout or 0,
        rolloverSizeBytes=body.rolloverSizeBytes or 0,
    )
    if body.retentionPolicy is not None:
        config.retentionPolicy.CopyFrom(_retention_message(body.retentionPolicy, with_maximum=with_maximum))
    return config


def _retention_message(policy: models.RetentionConfig, *, with_maximum: bool) -> pb.RetentionPolicy:
    if policy.value is None and policy.timeBasedRetention is None:
        raise BadRequestError("retentionPolicy has no value; without one nothing would be kept")
    if policy.type is models.RetentionConfigType.LIMITED_SIZE_MB:
        kind = pb.RetentionPolicy.SIZE
        least = (policy.value or 0) * MIB
        most = (policy.maxValue or 0) * MIB
    else:
        kind = pb.RetentionPolicy.TIME
        least = _span_ms(policy.value, policy.timeBasedRetention)
        most = _span_ms(policy.maxValue, policy.maxTimeBasedRetention)
    return pb.RetentionPolicy(
        retentionType=kind,
        retentionParam=least,
        retentionMax=min(most, _INT64_MAX) if with_maximum and most else _INT64_MAX,
    )


def _span_ms(days: int | None, span: models.TimeBasedRetention | None) -> int:
    if days:
        return days * _DAY_MS
    if span is None:
        return 0
    return span.days * _DAY_MS + span.hours * _HOUR_MS + span.minutes * _MINUTE_MS


def stream_property(config: pb.StreamConfig) -> models.StreamProperty:
    """Return a stream as JSON."""
    scaling = config.scalingPolicy
    kind = models.ScalingType(pb.ScalingPolicy.ScalingPolicyType.Name(scaling.scaleType))
    fixed = kind is models.ScalingType.FIXED_NUM_SEGMENTS
    return models.StreamProperty(
        scopeName=config.streamInfo.scope,
        streamName=config.streamInfo.stream,
        scalingPolicy=models.ScalingConfig(
            type=kind,
            targetRate=None if fixed else scaling.targetRate,
            scaleFactor=None if fixed else scaling.scaleFactor,
            minSegments=scaling.minNumSegments,
        ),
        retentionPolicy=_retention_config(config.retentionPolicy),
        tags=list(config.tags.tag),
        timestampAggregationTimeout=config.timestampAggregationTimeout,
        rolloverSizeBytes=config.rolloverSizeBytes,
    )


def _retention_config(policy: pb.RetentionPolicy) -> models.RetentionConfig | None:
    if policy.retentionType == pb.RetentionPolicy.UNKNOWN:
        return None
    unlimited = policy.retentionMax in (0, _INT64_MAX)
    if policy.retentionType == pb.RetentionPolicy.SIZE:
        return models.RetentionConfig(
            type=models.RetentionConfigType.LIMITED_SIZE_MB,
            value=-(-policy.retentionParam // MIB),
            maxValue=None if unlimited else -(-policy.retentionMax // MIB),
        )
    value, span = _days(policy.retentionParam)
    most, most_span = (None, None) if unlimited else _days(policy.retentionMax)
    return models.RetentionConfig(
        type=models.RetentionConfigType.LIMITED_DAYS,
        value=value,
        timeBasedRetention=span,
        maxValue=most,
        maxTimeBasedRetention=most_span,
    )


def _days(span_ms: int) -> tuple[int, models.TimeBasedRetention | None]:
    """Return a number of whole days; or 0 and the time span when it is not whole days. Rounded up: never less."""
    span_ms = -(-span_ms // _MINUTE_MS) * _MINUTE_MS
    if span_ms % _DAY_MS == 0:
        return span_ms // _DAY_MS, None
    return 0, models.TimeBasedRetention(
        days=span_ms // _DAY_MS, hours=span_ms % _DAY_MS // _HOUR_MS, minutes=span_ms % _HOUR_MS // _MINUTE_MS
    )
