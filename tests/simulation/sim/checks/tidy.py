"""Once nothing fails any more a container comes to order by itself: no object is left over or mostly dead,
references are few."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from sim.store import SimObjectStore
from sim.violations import require
from tailrace.common import limits
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.segment import Segment
from tailrace.storage.chunks import section_length

LOOK_S = 2.0
NAME_BYTES = 50
"""By which the name in a section of a merged source may be longer than that of the segment."""


def tidy_knobs(seed: int) -> dict[tuple[Any, str], Any]:
    """Sweeps and compactions every few seconds, of runs that short lives come to."""
    rng = random.Random(f"{seed}-tidy")
    forced = rng.choice([3, 8])
    return {
        (limits, "SWEEP_FIRST_AFTER_S"): rng.choice([0.1, 2.0, 10.0]),
        (limits, "SWEEP_INTERVAL_S"): rng.choice([0.5, 5.0]),
        (limits, "SWEEP_ORPHANS_MAX"): rng.choice([5, 10_000]),
        (limits, "SWEEP_PAGE_OBJECTS"): rng.choice([3, 1000]),
        (limits, "SWEEP_PAUSE_S"): rng.choice([0.01, 0.2]),
        (limits, "COMPACT_TICK_S"): rng.choice([0.02, 1.0]),
        (limits, "COMPACT_LOOK_SEGMENTS"): rng.choice([1, 500]),
        (limits, "COMPACT_LOOK_REFS"): rng.choice([forced + 1, 256]),
        (limits, "COMPACT_SMALL_MAX_BYTES"): rng.choice([3_000, 20_000, limits.MIB]),
        (limits, "COMPACT_RUN_MIN"): 2,
        (limits, "COMPACT_GROWTH_MIN"): rng.choice([1, 2, 4]),
        (limits, "COMPACT_RUN_FORCED"): forced,
        (limits, "COMPACT_RUN_MAX"): rng.choice([forced, 128]),
        (limits, "COMPACT_FLOOR_BYTES_PER_S"): rng.choice([20_000, limits.MIB]),
        (limits, "COMPACT_DEFER_MAX_S"): rng.choice([0.0, 60.0]),
        (limits, "RECLAIM_FIRST_AFTER_S"): rng.choice([0.1, 5.0]),
        (limits, "RECLAIM_TICK_S"): rng.choice([0.02, 1.0]),
        (limits, "RECLAIM_SLACK_BYTES"): rng.choice([0, 3_000, 100_000]),
        (limits, "RECLAIM_DEAD_MIN_BYTES"): rng.choice([1, 1_000]),
        (limits, "RECLAIM_PASS_BYTES"): rng.choice([2_000, limits.MIB]),
        (limits, "RECLAIM_MOVES_MAX"): rng.choice([2, 10, 1000]),
        (limits, "RECLAIM_BYTES_PER_S"): rng.choice([20_000, limits.MIB]),
        (limits, "RECLAIM_SURVEY_REFS"): rng.choice([1, 10, 1000]),
        (limits, "SNAPSHOT_DELETES_WAIT_S"): rng.choice([1.0, 20.0]),
        (limits, "SNAPSHOT_TICK_S"): rng.choice([0.1, 5.0]),
    }


async def come_to_order(container: Container, store: SimObjectStore) -> None:
    """Wait until everything is in order. Raises Violation when it does not come to that though nothing fails."""
    limits.FLUSH_TICK_S = limits.COMPACT_TICK_S = limits.RECLAIM_TICK_S = 0.5  # type: ignore[misc]  # knobs, which the workload turned anyway
    loop = asyncio.get_running_loop()
    timeout_s = 5 * (limits.DELETE_DELAY_S + limits.SWEEP_FIRST_AFTER_S + limits.SWEEP_INTERVAL_S) + 600
    timeout_s += limits.SWEEP_PAUSE_S * len(store.objects) + limits.DELETE_DELAY_S * len(left_over(container, store))
    deadline = loop.time() + timeout_s
    while disorder := [*left_over(container, store), *crowded(container), *wasteful(container, store)]:
        require(loop.time() < deadline, f"still there after {timeout_s:.0f} s without a fault: {disorder[0]}")
        await asyncio.sleep(LOOK_S)


def left_over(container: Container, store: SimObjectStore) -> list[str]:
    """Objects of earlier owners that nothing references and no owner is going to delete."""
    state = container.state
    known = state.object_uses.keys() | state.pending_deletes.keys()
    return [
        f"object {key}"
        for key in sorted(store.objects)
        if key.startswith((f"c{state.container_id}/", f"a{state.container_id}/"))
        and key not in known
        and int(key.rpartition("/")[2].split("-")[2], 16) != container.epoch
    ]


def wasteful(container: Container, store: SimObjectStore) -> Iterator[str]:
    """More dead bytes in the objects of chunks than a container may hold."""
    live: dict[str, int] = {}
    for segment in container.state.segments.values():
        for ref in segment.chunks:
            length = max(ref.end - max(ref.segment_offset, segment.start_offset), 0)
            live[ref.object_key] = live.get(ref.object_key, 0) + section_length(segment.name, length) + NAME_BYTES
    for key in live:
        require(key in store.objects, f"a segment needs object {key}, which is deleted")
    held, needed = sum(len(store.objects[key]) for key in live), sum(live.values())
    if held > (1 + limits.RECLAIM_DEAD_SHARE) * needed + limits.RECLAIM_SLACK_BYTES:
        yield f"{held} bytes in objects of which {needed} are retained"


def crowded(container: Container) -> Iterator[str]:
    """Segments with too many small chunks in a row."""
    for segment in container.state.segments.values():
        longest = _small_in_a_row(segment)
        if longest >= limits.COMPACT_RUN_FORCED:
            yield f"{longest} small chunks in a row of {segment.name}"


def _small_in_a_row(segment: Segment) -> int:
    refs = list(segment.chunks)
    longest = count = int(bool(refs) and refs[0].length < limits.COMPACT_SMALL_MAX_BYTES)
    for left, right in pairwise(refs):
        if right.length >= limits.COMPACT_SMALL_MAX_BYTES:
            count = 0
        else:
            count = count + 1 if left.end == right.segment_offset else 1
        longest = max(longest, count)
    return longest
