"""Memory of a container stays within its budgets at every moment, and all of it comes back.

See docs/design.md#invariants, I12.
"""

from __future__ import annotations

from typing import Any

from sim.violations import require
from tailrace.common import limits
from tailrace.kernel import BLOCK_BYTES, blocks_needed
from tailrace.segmentstore.cache.cache_manager import CacheManager
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.state import ContainerState
from tailrace.segmentstore.metadata.untiered_room import APPEND_BYTES, ATTRIBUTE_BYTES
from tailrace.segmentstore.tables.cache import EntryCache

OWN_OPERATIONS_MAX_BYTES = 2 * limits.MIB
"""Checkpoints and commits of flushes of the simulated containers: they are bounded in number, not refused."""


def check_cache(manager: CacheManager, states: list[ContainerState], allowed_bytes: int) -> None:
    """Every block is free or holds bytes that a read index knows, and all of them are within the bound.

    What is reserved is what the staged appends will take.
    """
    figures = manager.cache.snapshot()
    require(figures.max_bytes <= allowed_bytes, f"a cache of {allowed_bytes} bytes takes {figures.max_bytes}")
    require(
        figures.metadata_bytes + figures.total_blocks * BLOCK_BYTES <= allowed_bytes,
        "metadata comes on top of the cache",
    )
    require(
        0 <= figures.reserved_blocks <= figures.free_blocks,
        f"{figures.reserved_blocks} blocks are promised, {figures.free_blocks} are free",
    )
    wanted = sum(tail.blocks for tail in manager.staged.values())
    require(
        figures.reserved_blocks == wanted,
        f"{figures.reserved_blocks} blocks are reserved, staged appends take {wanted}",
    )
    known = sum(
        blocks_needed(entry.length)
        for state in states
        for segment in state.segments.values()
        for entry in segment.read_index
        if entry.address >= 0
    )
    used = figures.total_blocks - figures.free_blocks - figures.deferred_blocks
    require(used == known, f"{used} blocks of the cache are used, read indexes know {known}")


def check_container(container: Container, largest_append_bytes: int, page_cache_bytes: int) -> None:
    """What is staged, and index pages."""
    staged = container.core.processor.staged_bytes
    # Room is asked for before an operation is staged, so that one operation may reach beyond the bound.
    bound = limits.ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES + largest_append_bytes + OWN_OPERATIONS_MAX_BYTES
    require(0 <= staged <= bound, f"{staged} bytes are staged, the bound is {bound}")
    unwritten = container.core.processor.unwritten_bytes
    require(0 <= unwritten <= staged, f"{unwritten} bytes of {staged} staged ones are unwritten")
    log: Any = container.core.log  # each log of the simulator counts them
    waiting = log.unsynced_bytes
    require(waiting <= limits.LOG_UNACKNOWLEDGED_MAX_BYTES, f"{waiting} bytes of the log wait for acknowledgement")
    pages = container.storage.attributes.cached_page_bytes
    require(pages <= page_cache_bytes, f"{pages} bytes of index pages, the bound is {page_cache_bytes}")


def check_untiered(container: Container) -> None:
    """What is counted of appends and attributes that Tier 2 lacks is what there is, and no room is owed.

    The container shares its room with no other. One that was closed counts no more.
    """
    if container.core.stop_cause is not None:
        return
    room, segments = container.core.ports.untiered, container.state.segments.values()
    appends = sum(len(segment.pending) for segment in segments) * APPEND_BYTES
    require(room.append_bytes == appends, f"{room.append_bytes} bytes of appends are counted, there are {appends}")
    counted = sum(len(segment.dirty) for segment in segments if segment.dirty._counted) * ATTRIBUTE_BYTES
    require(
        room.attribute_bytes == counted, f"{room.attribute_bytes} bytes of attributes are counted, there are {counted}"
    )


def check_entries(entries: EntryCache, allowed_bytes: int) -> None:
    """Hot entries of tables: what is counted is what is there, and within the bound."""
    there = sum(record.length + limits.TABLE_ENTRY_CACHE_OVERHEAD_BYTES for record in entries._records.values())
    require(entries.used_bytes == there, f"the entry cache counts {entries.used_bytes} bytes, it holds {there}")
    require(there <= allowed_bytes, f"the entry cache holds {there} bytes of {allowed_bytes}")


def check_idle(container: Container) -> None:
    """Nothing is under way: whatever was taken for it was given back."""
    pipeline, manager = container.core.processor, container.core.cache
    cache = manager.cache
    require(pipeline.staged_bytes == 0, f"{pipeline.staged_bytes} bytes stay staged though nothing is under way")
    require(pipeline.unwritten_bytes == 0, f"{pipeline.unwritten_bytes} bytes stay unwritten")
    arenas = container.core.ports.arenas.used_bytes
    require(arenas == 0, f"{arenas} bytes of buffers stay in use though nothing is under way")
    require(cache.reserved_blocks == 0, f"{cache.reserved_blocks} blocks stay reserved though nothing is under way")
    require(not manager.staged, f"tails of {len(manager.staged)} segments stay staged though nothing is under way")
    require(cache.pinned_blocks == 0, f"{cache.pinned_blocks} blocks stay pinned though no client reads")
    for segment in container.state.segments.values():
        require(segment.inflight == 0, f"{segment.name}: {segment.inflight} operations stay in flight")
        require(
            not segment.held, f"{segment.name}: {len(segment.held)} attributes are held though nothing is under way"
        )
        require(not segment.waiters, f"{segment.name}: readers still wait")


def check_returned(container: Container) -> None:
    """The container is closed, and shared what it used with no other: all of it is free."""
    room, arenas, manager = container.core.ports.untiered, container.core.ports.arenas, container.core.cache
    require(room.used_bytes == 0, f"a closed container leaves {room.used_bytes} bytes of records counted")
    require(arenas.used_bytes == 0, f"a closed container leaves {arenas.used_bytes} bytes of buffers in use")
    require(not manager.staged, f"a closed container leaves the staged tails of {len(manager.staged)} segments")
    figures = manager.cache.snapshot()
    left = (figures.entries, figures.reserved_blocks, figures.pinned_blocks, figures.total_blocks - figures.free_blocks)
    require(left == (0, 0, 0, 0), f"a closed container leaves {left} entries, reserved, pinned and used blocks")
