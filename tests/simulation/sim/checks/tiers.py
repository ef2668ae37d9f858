"""The same bytes wherever they are: cache, log, Tier 2 (docs/design.md#invariants, I11)."""

from __future__ import annotations

from sim.checks.undamaged import undamaged
from sim.store import SimObjectStore
from sim.violations import Violation, require
from tailrace.common.errors import DataError
from tailrace.segmentstore.container.container import Container
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.storage import chunks

Contents = dict[str, tuple[int, bytes]]
"""Segment name to start offset and bytes."""


async def contents(container: Container) -> Contents:
    """Every segment as a reader gets it, whichever tiers that takes."""
    found: Contents = {}
    for name in container.segment_names():
        properties = await container.info(name)
        start, length = properties.start_offset, properties.length - properties.start_offset
        with undamaged(f"a read of {name}"):
            found[name] = start, await container.read_exact(name, start, length) if length else b""
    return found


def check_tiers(container: Container, store: SimObjectStore, known: Contents, *, flushed: bool) -> None:
    """Hold what is in the cache alone, and what is in Tier 2 alone, against what a reader got just now.

    ``flushed``: Tier 2 must hold every byte. Nothing may be awaited between the reading and this call.
    """
    cache = container.core.cache.cache
    for name, segment in container.state.by_name.items():
        start, whole = known[name]
        require(start + len(whole) == segment.length, f"{name} has {segment.length} bytes, {start}+{len(whole)} read")
        for entry in segment.read_index:
            if entry.address >= 0:
                _compare(name, start, whole, entry.offset, cache.read(entry.address), "the cache")
        position = start
        for ref in segment.chunks:
            _compare(name, start, whole, ref.segment_offset, _from_tier2(name, store, ref), "Tier 2")
            require(not flushed or ref.segment_offset <= position, f"{name}: Tier 2 lacks bytes from {position} on")
            position = ref.end
        require(not flushed or position >= segment.length, f"{name}: Tier 2 ends at {position} of {segment.length}")


def _compare(name: str, start: int, whole: bytes, offset: int, found: bytes | bytearray, place: str) -> None:
    low, high = max(start, offset), min(start + len(whole), offset + len(found))
    if low < high and whole[low - start : high - start] != found[low - offset : high - offset]:
        raise Violation(f"{name}: {place} holds other bytes in {low}..{high} than readers get")


def _from_tier2(name: str, store: SimObjectStore, ref: ChunkRef) -> bytes:
    """The bytes of a reference, from the object alone."""
    content = store.objects.get(ref.object_key)
    if content is None:
        raise Violation(f"{name}: object {ref.object_key} is referenced and does not exist")
    position, length, _ = chunks.block_range(ref.data_offset, ref.length, 0, ref.length)
    try:
        return b"".join(chunks.decode_blocks(ref.object_key, position, content[position : position + length]))
    except DataError as error:
        raise Violation(f"{name}: {error}") from error


def check_same_contents(wanted: Contents, found: Contents, who: str) -> None:
    """Two readers of the same container at different places got the same."""
    require(sorted(wanted) == sorted(found), f"{who} finds other segments")
    for name, (start, whole) in wanted.items():
        other_start, other = found[name]
        require(start == other_start, f"{name}: {who} begins at {other_start}, not {start}")
        if whole != other:
            raise Violation(f"{name}: {who} finds other bytes: {_first_difference(start, whole, other)}")


def _first_difference(start: int, wanted: bytes, found: bytes) -> str:
    for place, (left, right) in enumerate(zip(wanted, found, strict=False)):
        if left != right:
            return f"the first at {start + place} of {start + len(wanted)}"
    return f"{len(found)} instead of {len(wanted)}"
