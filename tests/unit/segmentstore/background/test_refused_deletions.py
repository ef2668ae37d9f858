"""An object that the store refuses to delete keeps back no others, and is tried again at rising intervals."""

from __future__ import annotations

import pytest
import structlog

from tailrace.common import limits
from tailrace.segmentstore.container.container import Container

from ..conftest import World, eventually

NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(12)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(limits, "FLUSH_TICK_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "STORAGE_RETRY_MAX_S", 0.02)
    monkeypatch.setattr(limits, "DELETE_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_OPERATIONS", 1)


async def filled(world: World, names: list[str]) -> Container:
    """Each segment has an object of its own."""
    container = await world.open()
    for name in names:
        await container.create_segment(name)
        await container.append(name, [name.encode()])
        await container.flush_to_storage()
    assert len(container.state.object_uses) == len(names)
    return container


@pytest.mark.usefixtures("frequent_snapshots")
@pytest.mark.parametrize("count", [1, 10])
async def test_one_that_is_protected_keeps_back_no_others(world: World, count: int) -> None:
    container = await filled(world, NAMES)
    objects = list(container.state.object_uses)
    world.objects.protected = dict.fromkeys(objects[:count])
    with structlog.testing.capture_logs() as logs:
        for name in NAMES:
            await container.delete(name)
        await eventually(lambda: len(container.state.pending_deletes) == count)
        await eventually(lambda: container.status().details["objects_not_deleted"] == count)
    assert set(container.state.pending_deletes) == set(world.objects.protected)
    left = {info.key async for info in world.objects.list("c7/")}
    assert left == set(world.objects.protected)
    assert "cannot be deleted: AccessDenied: protected by object lock" in container.status().reason
    assert container.status().state == "running"
    named = [line["object"] for line in logs if line["event"] == "object_not_deleted"]
    assert sorted(named) == sorted(world.objects.protected), "each is named once"


@pytest.mark.usefixtures("frequent_snapshots")
async def test_the_protected_one_is_tried_again_at_rising_intervals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DELETE_REFUSED_RETRY_MIN_S", 0.01)
    monkeypatch.setattr(limits, "DELETE_REFUSED_RETRY_MAX_S", 0.04)
    container = await filled(world, NAMES[:1])
    (doomed,) = container.state.object_uses
    world.objects.protected = {doomed: None}
    await container.delete(NAMES[0])
    refused = container.background.deletions.refused
    await eventually(lambda: len(refused) == 1 and refused._refused[doomed].wait_s == 0.04)

    def tries() -> int:
        """Requests that name the object; there are others, of snapshots."""
        return sum(doomed in request for request in world.objects.delete_requests)

    tried = tries()
    assert tried >= 3, "after 0.01 s, then 0.02 s, then 0.04 s"
    await eventually(lambda: tries() > tried)
    assert refused._refused[doomed].wait_s == 0.04
    assert container.state.pending_deletes
    world.objects.protected.clear()
    await eventually(lambda: not container.state.pending_deletes and not container.status().reason)
    assert container.status().details["objects_not_deleted"] == 0
    assert [info.key async for info in world.objects.list("c7/")] == []
