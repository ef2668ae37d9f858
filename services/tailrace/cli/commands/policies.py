"""Convert options of ``stream create`` and ``stream update`` to policies, and policies to text."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace.cli.commands.arguments import checked, size
from tailrace.cli.output import note
from tailrace.cli.values import Bounds, duration_text, parse_bounds, parse_duration_ms, parse_size
from tailrace.common.quantities import size_text
from tailrace.common.stream_policies import (
    UNLIMITED,
    WHY_SCALED,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)

if TYPE_CHECKING:
    from tailrace.client.control.owners import Holder, StreamDescription

_DEFAULT_FACTOR: Final = 2
_INT32_MAX: Final = 2**31 - 1
"""The maximum of the fields in the controller's messages (docs/protocol/controller.md#messages)."""

RATE_UNITS: Final = {
    ScaleType.BY_RATE_IN_EVENTS.name.lower(): "events/s",
    ScaleType.BY_RATE_IN_KBYTES.name.lower(): "KB/s",
}
"""Unit of the rates of a scaling policy, by its type in JSON."""

SegmentsOption = Annotated[
    int | None, typer.Option(min=1, max=_INT32_MAX, help="A fixed number of segments.", show_default=False)
]
EventRateOption = Annotated[
    int | None,
    typer.Option(min=1, max=_INT32_MAX, help="Scale by events per second and segment.", show_default=False),
]
KbRateOption = Annotated[
    int | None,
    typer.Option(min=1, max=_INT32_MAX, help="Scale by kilobytes per second and segment.", show_default=False),
]
FactorOption = Annotated[
    int | None, typer.Option(min=2, max=_INT32_MAX, help="Number of segments that one splits into.", show_default=False)
]
MinimumOption = Annotated[
    int | None, typer.Option("--min", min=1, max=_INT32_MAX, help="Minimum number of segments.", show_default=False)
]
RetentionTimeOption = Annotated[
    str | None, typer.Option(metavar="MIN[:MAX]", help="Keep by age, for example 1d:7d.", show_default=False)
]
RetentionSizeOption = Annotated[
    str | None, typer.Option(metavar="MIN[:MAX]", help="Keep by size, for example 1GiB:10GiB.", show_default=False)
]
RolloverOption = Annotated[
    int | None,
    typer.Option(
        parser=size,
        metavar="SIZE",
        help="Length of a chunk in Tier 2 at most, from 1MiB to 8MiB; 0: the default, 8MiB. For new segments.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """The options of one command that describe a scaling policy; None is an option that was not given."""

    segments: int | None = None
    event_rate: int | None = None
    kb_rate: int | None = None
    factor: int | None = None
    minimum: int | None = None

    def policy(self) -> ScalingPolicy:
        """Return the policy that the options describe. Raises BadParameter for options that exclude each other."""
        given = [value for value in (self.segments, self.event_rate, self.kb_rate) if value is not None]
        if len(given) > 1:
            raise typer.BadParameter("--segments, --event-rate and --kb-rate exclude each other")
        if self.event_rate is not None:
            return ScalingPolicy.by_events(self.event_rate, self.factor or _DEFAULT_FACTOR, self.minimum or 1)
        if self.kb_rate is not None:
            return ScalingPolicy.by_kbytes(self.kb_rate, self.factor or _DEFAULT_FACTOR, self.minimum or 1)
        if self.factor is not None or self.minimum is not None:
            raise typer.BadParameter("--factor and --min need --event-rate or --kb-rate")
        return ScalingPolicy.fixed(self.segments or 1)

    def changed(self, present: ScalingPolicy) -> ScalingPolicy:
        """Return the policy after an update: options that were not given keep the values of a rate policy.

        Raises BadParameter for options that contradict each other.
        """
        options = self
        rates = present.kind is not ScaleType.FIXED
        if self.segments is None and self.event_rate is None and self.kb_rate is None:
            if not self.factor and not self.minimum:
                return present
            if rates:
                name = "event_rate" if present.kind is ScaleType.BY_RATE_IN_EVENTS else "kb_rate"
                options = dataclasses.replace(self, **{name: present.target_rate})
        if rates and self.segments is None:
            options = dataclasses.replace(
                options, factor=self.factor or present.scale_factor, minimum=self.minimum or present.min_segments
            )
        return options.policy()


def changed_retention(
    present: RetentionPolicy | None, time: str | None, size: str | None, none: bool
) -> RetentionPolicy | None:
    """Return the retention after an update."""
    if none and (time is not None or size is not None):
        raise typer.BadParameter("--no-retention excludes --retention-time and --retention-size")
    return None if none else retention_policy(time, size) or present


def changed_tags(present: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    """Return the tags after an update, present ones first."""
    kept = [tag for tag in present if tag not in removed]
    return (*kept, *(tag for tag in dict.fromkeys(added) if tag not in kept and tag not in removed))


def retention_policy(time: str | None, size: str | None) -> RetentionPolicy | None:
    """Return the retention that the options describe, or None. A minimum of 0 is noted on standard error."""
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
    parse = parse_duration_ms if kind == "time" else parse_size
    bounds = checked(lambda value: parse_bounds(value, parse), text, f"--retention-{kind}")
    if bounds.minimum == 0:
        note(
            f"--retention-{kind} {text}: events are deleted that no subscribed reader group has yet to read,"
            " all of them without one; a minimum keeps some"
        )
    return bounds


def config_fields(config: StreamConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a configuration as JSON values and as text."""
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
        "rollover_bytes": config.rollover_bytes or None,
    }
    text = {"scaling": _scaling_text(scaling), "tags": ", ".join(config.tags)}
    if config.rollover_bytes:
        text["rollover"] = size_text(config.rollover_bytes)
    if retention is not None:
        maximum = None if retention.most == UNLIMITED else retention.most
        machine["retention"] = {"type": retention.kind.name.lower(), "min": retention.minimum, "max": maximum}
        text["retention"] = _retention_text(retention, maximum)
    return machine, text


def bytes_fields(found: StreamDescription) -> tuple[dict[str, Any], dict[str, str]]:
    """Return how many bytes a stream has, and what it holds in Tier 2, as JSON values and as text."""
    retained = found.tail_bytes - found.head_bytes
    text = {"retained": size_text(retained)}
    if found.held_bytes is not None:
        text["held in Tier 2"] = size_text(found.held_bytes)
    return {"retained_bytes": retained, "held_bytes": found.held_bytes}, text


def retention_fields(found: StreamDescription) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what retention did last, and what subscribers have not read, as JSON values and as text."""
    last = found.truncated
    machine = {
        "oldest_ms": found.oldest_ms or None,
        "applied_ms": found.applied_ms or None,
        "last_truncation": None if last is None else last._asdict(),
        "subscribers": [holder._asdict() for holder in found.holders],
    }
    text: dict[str, str] = {}
    if found.oldest_ms:
        text["oldest data"] = _time_text(found.oldest_ms)
    if found.applied_ms:
        text["retention applied"] = _time_text(found.applied_ms)
    if last is not None:
        freed = f"by {last.reason}, {size_text(last.freed_bytes)} freed"
        text["last truncation"] = f"{_time_text(last.truncated_ms)} {freed}"
    if found.holders:
        text["subscribers"] = ", ".join(map(_holder_text, found.holders))
    return machine, text


def scaled_fields(found: StreamDescription) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the last scale as JSON values and as text."""
    last = found.scaled
    if last is None:
        return None, {}
    text = f"{_time_text(last.scaled_ms)}, {last.splits} split, {last.merges} merged"
    if why := WHY_SCALED.get(last.reason):
        text += f", {why}"
    return last._asdict(), {"last scale": text}


def _time_text(time_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _holder_text(holder: Holder) -> str:
    if holder.unread_bytes is None:
        return f"{holder.subscriber} without a position"
    lost = f", {size_text(holder.lost_bytes)} lost" if holder.lost_bytes else ""
    return f"{holder.subscriber} has {size_text(holder.unread_bytes)} unread{lost}"


def _scaling_text(policy: ScalingPolicy) -> str:
    if policy.kind is ScaleType.FIXED:
        return f"fixed, {_segments_text(policy.min_segments)}"
    rate = f"{policy.target_rate:,} {RATE_UNITS[policy.kind.name.lower()]} per segment"
    return f"{rate}, factor {policy.scale_factor}, at least {_segments_text(policy.min_segments)}"


def _segments_text(count: int) -> str:
    return f"{count:,} segment{'' if count == 1 else 's'}"


def _retention_text(policy: RetentionPolicy, maximum: int | None) -> str:
    write = duration_text if policy.kind is RetentionType.TIME else size_text
    upper = f", at most {write(maximum)}" if maximum is not None else ""
    return f"by {policy.kind.name.lower()}, at least {write(policy.minimum)}{upper}"
