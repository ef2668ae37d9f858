"""Transient segments that no connection deletes any more: their container deletes them."""

from __future__ import annotations

import uuid

import pytest

from tailrace.common import limits
from tailrace.common.names import transient_segment_name
from tailrace.segmentstore.api import SegmentKind

from ..conftest import World, eventually

NAME = "scope/stream/0.#epoch.0"
TRANSIENT = transient_segment_name(NAME, uuid.UUID(int=1), uuid.UUID(int=2))
OTHER = transient_segment_name(NAME, uuid.UUID(int=1), uuid.UUID(int=3))


async def test_transient_segments_of_an_earlier_owner_are_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    await container.create_segment(TRANSIENT, kind=SegmentKind.TRANSIENT)
    await container.append(TRANSIENT, [b"part of an event"])
    await container.close()
    monkeypatch.setattr(limits, "TRANSIENT_SWEEP_PERIOD_S", 0.01)
    monkeypatch.setattr(limits, "TRANSIENT_IDLE_MAX_S", 0.0)
    container = await world.open()
    await eventually(lambda: container.segment_names() == [NAME])
    await container.close()
    container = await world.open()
    assert container.segment_names() == [NAME]


async def test_only_those_that_do_not_grow_are_idle(world: World) -> None:
    container = await world.open()
    await container.create_segment(NAME)
    for name in (TRANSIENT, OTHER):
        await container.create_segment(name, kind=SegmentKind.TRANSIENT)
    sweep = container.background.transients
    assert sweep.idle(0.0) == []
    assert sweep.idle(limits.TRANSIENT_IDLE_MAX_S - 1) == []
    await container.append(OTHER, [b"more"])
    assert sweep.idle(limits.TRANSIENT_IDLE_MAX_S) == [TRANSIENT]
    assert sweep.idle(2 * limits.TRANSIENT_IDLE_MAX_S) == [TRANSIENT, OTHER]
    await container.merge(NAME, OTHER)
    assert sweep.idle(2 * limits.TRANSIENT_IDLE_MAX_S) == [TRANSIENT]
    assert len(sweep) == 1, "what is gone is forgotten"
