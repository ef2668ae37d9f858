"""Positions and readers of a group, for all flavours of its state. Pure.

See docs/protocol/reader-group-state.md#reporting, docs/protocol/reader-group-state.md#rust-groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.client.group import report

if TYPE_CHECKING:
    import uuid

    from tailrace.client.group.state.state import GroupState


@dataclass(frozen=True, slots=True)
class GroupPositions:
    """Readers and positions of a group.

    ``offsets``: by segment name, of assigned and unassigned segments; −1 is the end of a sealed one. ``ends``: the end
    cut by segment name; other segments have no end. ``group_id`` None: the flavour has no ids.
    """

    streams: tuple[str, ...]
    online_readers: int
    unassigned_segments: int
    offsets: Mapping[str, int]
    ends: Mapping[str, int]
    group_id: uuid.UUID | None = None


def positions_of(state: GroupState) -> GroupPositions:
    """Return the positions in the Java client's state, which readers update every few seconds."""
    return GroupPositions(
        streams=tuple(state.config.starting),
        online_readers=len(state.online_readers),
        unassigned_segments=len(state.unassigned),
        offsets=report.positions_of(state),
        ends=dict(state.end_segments),
        group_id=state.config.group_id,
    )
