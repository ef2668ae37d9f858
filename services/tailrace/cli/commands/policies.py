"""Options of ``stream create`` as policies, and policies as text."""

from __future__ import annotations

from typing import Any

import typer

from tailrace.cli.commands.arguments import checked
from tailrace.cli.values import Bounds, duration_text, parse_bounds, parse_duration_ms, parse_size, size_text
from tailrace.client.model import (
    UNLIMITED,
    RetentionKind,
    RetentionPolicy,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)

_DEFAULT_FACTOR = 2


def scaling_policy(
    segments: int | None, event_rate: int | None, kb_rate: int | None, factor: int | None, minimum: int | None
) -> ScalingPolicy:
    """The one policy that the options describe; contradictions are a wrong command line."""
    given = [value for value in (segments, event_rate, kb_rate) if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("--segments, --event-rate and --kb-rate exclude each other")
    if event_rate is not None:
        return ScalingPolicy.by_events(event_rate, factor or _DEFAULT_FACTOR, minimum or 1)
    if kb_rate is not None:
        return ScalingPolicy.by_kbytes(kb_rate, factor or _DEFAULT_FACTOR, minimum or 1)
    if factor is not None or minimum is not None:
        raise typer.BadParameter("--factor and --min belong to --event-rate or --kb-rate")
    return ScalingPolicy.fixed(segments or 1)


def retention_policy(time: str | None, size: str | None) -> RetentionPolicy | None:
    """The retention that the options describe, or none."""
    if time is not None and size is not None:
        raise typer.BadParameter("--retention-time and --retention-size exclude each other")
    if time is not None:
        bounds = _bounds(time, "time")
        return RetentionPolicy.by_time_ms(bounds.minimum, bounds.maximum or UNLIMITED)
    if size is not None:
        bounds = _bounds(size, "size")
        return RetentionPolicy.by_size_bytes(bounds.minimum, bounds.maximum or UNLIMITED)
    return None


def _bounds(text: str, kind: str) -> Bounds:
    return checked(lambda value: parse_bounds(value, parse_duration_ms if kind == "time" else parse_size), text)


def config_fields(config: StreamConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """A configuration for programs and for people."""
    scaling, retention = config.scaling, config.retention
    machine: dict[str, Any] = {
        "scaling": {
            "type": scaling.kind.name.lower(),
            "min_segments": scaling.min_segments,
            "target_rate": scaling.target_rate,
            "scale_factor": scaling.scale_factor,
        },
        "retention": None,
        "tags": list(config.tags),
    }
    text = {"scaling": _scaling_text(scaling), "tags": ", ".join(config.tags)}
    if retention is not None:
        maximum = None if retention.maximum == UNLIMITED else retention.maximum
        machine["retention"] = {"type": retention.kind.name.lower(), "min": retention.minimum, "max": maximum}
        text["retention"] = _retention_text(retention, maximum)
    return machine, text


def _scaling_text(policy: ScalingPolicy) -> str:
    if policy.kind is ScaleType.FIXED:
        return f"fixed, {policy.min_segments} segments"
    unit = "events/s" if policy.kind is ScaleType.BY_RATE_IN_EVENTS else "KB/s"
    rate = f"{policy.target_rate:,} {unit} per segment"
    return f"{rate}, factor {policy.scale_factor}, at least {policy.min_segments} segments"


def _retention_text(policy: RetentionPolicy, maximum: int | None) -> str:
    write = duration_text if policy.kind is RetentionKind.TIME else size_text
    upper = f", at most {write(maximum)}" if maximum is not None else ""
    return f"by {policy.kind.name.lower()}, at least {write(policy.minimum)}{upper}"
