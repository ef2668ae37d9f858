"""Decide the next step that makes a stream match its resource (docs/design.md#resources, ADR 0014). Pure.

The caller takes one step, describes the stream again and asks for the next step. So a crash, a change by another client
or a lost reply between two steps needs no special case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common.stream_policies import (
    UNLIMITED,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)

if TYPE_CHECKING:
    from tailrace.client.control.owners import StreamDescription
    from tailrace_operator.schema.specs import RetentionSpec, ScalingSpec, StreamSpec
    from tailrace_operator.stream.owner import Owner

SCALE_TYPES: Final[Mapping[str, ScaleType]] = {
    "Fixed": ScaleType.FIXED,
    "EventRate": ScaleType.BY_RATE_IN_EVENTS,
    "ByteRate": ScaleType.BY_RATE_IN_KBYTES,
}
_RETENTION_KINDS: Final[Mapping[str, RetentionType]] = {"Size": RetentionType.SIZE, "Time": RetentionType.TIME}


@dataclass(frozen=True, slots=True)
class Create:
    """Create scope and stream."""

    config: StreamConfig


@dataclass(frozen=True, slots=True)
class Claim:
    """Become the owner of a stream whose owner is ``expected`` ("": none)."""

    incarnation: int
    expected: str


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the configuration; ``changes`` describes the differences."""

    config: StreamConfig
    changes: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Split or merge segments to reach this number."""

    segments: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a change of the stream that is in progress."""

    state: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse: the stream belongs to another resource."""

    owner: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """Do nothing: the stream is sealed and accepts neither events nor changes."""


Step = Create | Claim | Update | Scale | Wait | Refuse | Sealed


def next_step(spec: StreamSpec, me: Owner, found: StreamDescription | None, *, owner_is_deleted: bool) -> Step | None:
    """Return the next step for a stream as it was found; None: it matches its resource.

    ``owner_is_deleted``: the resource that owns the stream does not exist any more.
    """
    if found is None:
        return Create(wanted_config(spec, None))
    if found.state == "deleting":
        return Wait(found.state)
    if found.owner != str(me):
        if found.owner and not owner_is_deleted:
            return Refuse(found.owner)
        return Claim(found.incarnation, found.owner)
    if found.is_sealed:
        return Sealed()
    config = wanted_config(spec, found.config)
    if config != found.config:
        return Update(config, differences(found.config, config)) if found.is_settled else Wait(found.state)
    if _has_too_few_or_many(spec.scaling, found.segments):
        return Scale(spec.scaling.min_segments) if found.is_settled else Wait(found.state)
    return None


def _has_too_few_or_many(scaling: ScalingSpec, segments: int) -> bool:
    """Return whether segments must be added or merged: Fixed keeps the exact number, rates keep the minimum."""
    return segments != scaling.min_segments if scaling.kind == "Fixed" else segments < scaling.min_segments


def wanted_config(spec: StreamSpec, found: StreamConfig | None) -> StreamConfig:
    """Return the specified configuration; settings that resources do not have are kept."""
    return StreamConfig(
        scaling=ScalingPolicy(
            SCALE_TYPES[spec.scaling.kind],
            spec.scaling.min_segments,
            spec.scaling.target,
            spec.scaling.scale_factor,
        ),
        retention=_retention(spec.retention),
        tags=tuple(sorted(set(spec.tags))),
        timestamp_aggregation_timeout_ms=found.timestamp_aggregation_timeout_ms if found else 0,
        rollover_bytes=spec.rollover_size_bytes,
    )


def _retention(spec: RetentionSpec | None) -> RetentionPolicy | None:
    if spec is None:
        return None
    maximum = UNLIMITED if spec.maximum is None else spec.maximum
    return RetentionPolicy(_RETENTION_KINDS[spec.kind], spec.minimum, maximum)


def differences(before: StreamConfig, after: StreamConfig) -> str:
    """Return the names of the settings that differ."""
    parts = {
        _scaling_in_words(before.scaling, after.scaling): before.scaling != after.scaling,
        "retention": before.retention != after.retention,
        "tags": before.tags != after.tags,
        "rollover size": before.rollover_bytes != after.rollover_bytes,
    }
    return ", ".join(name for name, differs in parts.items() if differs)


def _scaling_in_words(before: ScalingPolicy, after: ScalingPolicy) -> str:
    if before.min_segments == after.min_segments:
        return "scaling"
    return f"scaling (minSegments {after.min_segments}, before {before.min_segments})"
