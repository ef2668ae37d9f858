"""Chooses the objects of Tier 2 whose retained bytes are worth moving, so that the rest is freed.

Pure (docs/design.md#reclamation).

An object is deleted once no reference names it. So one small chunk keeps everything that it shares an object with, and
one byte of a chunk that was truncated keeps the whole chunk. Two rules choose such objects, those first that hold the
largest share of dead bytes:

- *mostly dead*: at least ``RECLAIM_DEAD_MIN_BYTES`` (64 KiB) are dead, and no more are live than dead;
- *too much in all*: as long as all dead bytes of the container exceed ``RECLAIM_DEAD_SHARE`` (0.15) of the live ones
  plus ``RECLAIM_SLACK_BYTES`` (2 MiB).

So what a container holds is at most 1.15 times what is live, plus 2 MiB, once nothing is chosen any more. A dead byte
costs at most 1 / 0.15 bytes of writing, and one by the first rule: while the sum is too large, the object with the
largest share of dead bytes has a larger share than the container. A byte dies once, so the bytes moved are at most
seven times the bytes that were flushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(slots=True)
class ObjectUse:
    """The length of an object, and how many bytes of it segments still need, section headers included."""

    stored_bytes: int = 0
    live_bytes: int = 0

    @property
    def dead_bytes(self) -> int:
        """Bytes that a deletion of the object would free, if the live ones lay elsewhere."""
        return max(self.stored_bytes - self.live_bytes, 0)


def choose(objects: Mapping[str, ObjectUse], refused: Collection[str] = ()) -> list[str]:
    """Return the keys of the objects to move next, deadest first; at most ``RECLAIM_PASS_BYTES`` unless one has more.

    Objects of ``refused`` are damaged: they stay, and what is dead in them is not counted.
    """
    candidates = {key: use for key, use in objects.items() if use.dead_bytes and key not in refused}
    dead = sum(use.dead_bytes for use in candidates.values())
    allowed = limits.RECLAIM_SLACK_BYTES + limits.RECLAIM_DEAD_SHARE * sum(use.live_bytes for use in objects.values())
    chosen: list[str] = []
    written = 0
    for key in sorted(candidates, key=lambda key: (candidates[key].live_bytes / candidates[key].stored_bytes, key)):
        use = candidates[key]
        if dead <= allowed and not _mostly_dead(use):
            continue
        if chosen and written + use.live_bytes > limits.RECLAIM_PASS_BYTES:
            break
        chosen.append(key)
        dead -= use.dead_bytes
        written += use.live_bytes
    return chosen


def _mostly_dead(use: ObjectUse) -> bool:
    return use.dead_bytes >= max(use.live_bytes, limits.RECLAIM_DEAD_MIN_BYTES)
