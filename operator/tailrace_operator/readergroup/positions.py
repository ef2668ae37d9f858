"""What the state of a group tells, whatever its flavour (reader-group-state §8, §10). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid

    from tailrace.client.group.state.state import GroupState


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """Readers and positions of a group.

    ``offsets``: by segment name, of those that are read or wait for a reader; −1 is the end of a sealed one. ``ends``:
    where reading is to end, by segment name; segments that are not there have no end. ``group_id`` None: the flavour
    has none.
    """

    streams: tuple[str, ...]
    online_readers: int
    unassigned_segments: int
    offsets: Mapping[str, int]
    ends: Mapping[str, int]
    group_id: uuid.UUID | None = None


def positions_of(state: GroupState) -> GroupPositions:
    """Of the Java client's state: as far as the readers told, which is a few seconds old."""
    offsets = state.coarse_positions()
    for segment, offset in state.last_read.items():
        if offsets.get(segment, 0) >= 0:
            offsets[segment] = max(offset, offsets.get(segment, 0)) if offset >= 0 else offset
    return GroupPositions(
        streams=tuple(state.config.starting),
        online_readers=len(state.online_readers),
        unassigned_segments=len(state.unassigned),
        offsets=offsets,
        ends=dict(state.end_segments),
        group_id=state.config.group_id,
    )
