"""Scale a stream for ``stream scale``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tailrace.cli.output import note
from tailrace.cli.segments import plan_texts
from tailrace.client.control.scale_plan import ScalePlan, plan_count
from tailrace.client.model import SegmentRange, StreamName
from tailrace.common.errors import BadRequestError, StreamSealedError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext


async def scale_stream(
    client: ClientContext,
    stream: StreamName,
    *,
    count: int | None,
    splits: Sequence[str],
    merges: Sequence[str],
    deadline_s: float,
) -> list[SegmentRange]:
    """Scale to `count` equal segments, or make the splits and merges; return the new active segments."""
    if count is not None:
        await _lower_minimum(client, stream, count)
    active = await _active(client, stream)
    plan = plan_count(active, count) if count is not None else plan_texts(active, splits, merges)
    if plan.changes_nothing:
        return active
    if count is None:
        await _check_minimum(client, stream, plan)
    await client.controller.scale(stream, plan.sealed, plan.ranges, deadline_s=deadline_s)
    return await _active(client, stream)


async def _active(client: ClientContext, stream: StreamName) -> list[SegmentRange]:
    active = await client.controller.current_segments(stream)
    if not active:
        raise StreamSealedError(f"stream {stream} is sealed")
    return active


async def _lower_minimum(client: ClientContext, stream: StreamName, count: int) -> None:
    """Lower the policy's minimum to `count`: the controller refuses a scale below it.

    See docs/protocol/controller.md#scaling.

    For a fixed policy the minimum is its number of segments, so the update scales the stream.
    """
    config = await client.controller.stream_config(stream)
    if config.scaling.min_segments > count:
        note(f"lowering the policy's minimum from {config.scaling.min_segments} to {count} segments")
        scaling = msgspec.structs.replace(config.scaling, min_segments=count)
        await client.controller.update_stream(stream, msgspec.structs.replace(config, scaling=scaling))


async def _check_minimum(client: ClientContext, stream: StreamName, plan: ScalePlan) -> None:
    minimum = (await client.controller.stream_config(stream)).scaling.min_segments
    if plan.resulting_count < minimum:
        raise BadRequestError(
            f"the scale leaves {plan.resulting_count} segments, the policy's minimum is {minimum}: "
            f"use scale --segments {plan.resulting_count} to lower it too"
        )
