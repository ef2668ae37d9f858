"""A damaged attribute index refuses what needs it and nothing else (docs/design.md#attributes).

The objects of one segment's index are damaged in a copy of the world, whose container has no index page in memory.
"""

from __future__ import annotations

import asyncio

from sim.checks.tiers import Contents, check_same_contents, contents
from sim.violations import require
from sim.world import SimWorld
from tailrace.common import limits
from tailrace.common.errors import CorruptionError, SegmentSealedError
from tailrace.segmentstore.api import AttributeUpdate, AttributeUpdateType
from tailrace.segmentstore.container.container import Container

Attributes = dict[str, dict[bytes, int]]
"""Segment name to the values of its extended attributes."""
_MOST = 100_000


async def attributes(container: Container) -> Attributes:
    """The attributes of every segment, as its owner answers: one without an index may get it meanwhile."""
    return {name: await _listed(container, name) for name in container.segment_names()}


async def _listed(container: Container, name: str) -> dict[bytes, int]:
    length = container.state.by_name[name].attribute_key_length
    return dict(await container.iterate_attributes(name, bytes(length), b"\xff" * length, _MOST))


def _indexed(container: Container) -> list[str]:
    return [name for name in container.segment_names() if container.state.by_name[name].index.root_length]


async def check_damaged_index(world: SimWorld, container: Container, known: Contents, values: Attributes) -> None:
    """Damage the index of one segment of a container that has just recovered in `world`, and change that segment.

    ``known`` and ``values`` are what its predecessor had.
    """
    names = _indexed(container)
    if not names:
        return
    victim = max(names, key=lambda name: len(values[name]))
    for ref in container.state.by_name[victim].index_pages:
        content = bytearray(world.store.objects[ref.object_key])
        for at in range(ref.data_offset, len(content), 100):
            content[at] ^= 1
        world.store.objects[ref.object_key] = bytes(content)
    try:
        changed = await _change(container, victim)
        await container.flush_to_storage()
        await asyncio.sleep(2 * limits.FLUSH_INTERVAL_S)
        for name, expected in values.items():
            await _check_values(container, name, victim, expected | (changed if name == victim else {}))
        await asyncio.sleep(limits.DAMAGE_RETRY_S + 2 * limits.FLUSH_INTERVAL_S)
    finally:  # whatever it is that an ended container refuses
        cause = container.core.stop_cause
        require(cause is None, f"a damaged index of {victim} stops the container: {cause}")
    check_same_contents(known, await contents(container), f"a container with a damaged index of {victim}")


async def _change(container: Container, victim: str) -> dict[bytes, int]:
    """Set attributes that the index may hold; return those that were set: the damage refuses the others."""
    length = container.state.by_name[victim].attribute_key_length
    changed: dict[bytes, int] = {}
    for number in range(10):
        key = bytes([100 + number]) * length
        try:
            await container.update_attributes(victim, [AttributeUpdate(key, AttributeUpdateType.REPLACE, number)])
        except (CorruptionError, SegmentSealedError):
            continue
        changed[key] = number
    return changed


async def _check_values(container: Container, name: str, victim: str, expected: dict[bytes, int]) -> None:
    try:
        listed = await _listed(container, name)
        found = await container.get_attributes(name, list(expected))
    except CorruptionError as error:
        require(name == victim, f"the index of {name} reports damage, and only that of {victim} is damaged: {error}")
        require("object a" in error.place, f"damage of the index of {victim} is reported as {error.place}")
    else:
        require(listed == found == expected, f"{name} has other attributes than before {victim} was damaged")
