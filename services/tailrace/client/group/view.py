"""Readers and positions of a group, for all flavours of its state. Pure.

See docs/protocol/reader-group-state.md#reporting, docs/protocol/reader-group-state.md#rust-groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.common.stream_policies import StreamDataRetention

if TYPE_CHECKING:
    import uuid

    from tailrace.client.group.state.state import GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """Readers and positions of a group.

    ``offsets``: by segment name, of assigned and free segments; −1 is the end of a sealed one. ``assigned``: the
    segments of each online reader, in the order in which they joined. ``waiting``: segments whose predecessors are not
    read completely. ``ends``: the end cut by segment name; other segments have no end. The fields after it have their
    defaults in flavours without them.
    """

    streams: tuple[str, ...]
    offsets: Mapping[str, int]
    assigned: Mapping[str, tuple[str, ...]]
    free: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    group_id: uuid.UUID | None = None
    generation: int = 0
    retention: StreamDataRetention = StreamDataRetention.NONE
    last_checkpoint: Mapping[str, int] = field(default_factory=dict)
    dead_after_s: Mapping[str, float] = field(default_factory=dict)
    """Of readers that announced heartbeats: the silence after which others take over."""

    @property
    def online_readers(self) -> int:
        """Return the number of readers."""
        return len(self.assigned)

    @property
    def unassigned_segments(self) -> int:
        """Return the number of segments that no reader has."""
        return len(self.free)


def positions_of(state: GroupState) -> dict[str, int]:
    """Return the last known offset of each segment that a group reads or is to read; −1 is the end of a sealed one.

    A free segment is read from its offset, which lies before the last report of a reader that was declared offline.
    """
    offsets = state.coarse_positions()
    for segment, offset in state.last_read.items():
        if segment not in state.unassigned and offsets.get(segment, 0) >= 0:
            offsets[segment] = max(offset, offsets.get(segment, 0)) if offset >= 0 else offset
    return offsets


def view_of(state: GroupState) -> GroupView:
    """Return the view of the Java client's state and ours; readers update their positions every few seconds."""
    return GroupView(
        streams=tuple(state.config.starting),
        offsets=positions_of(state),
        assigned={reader: tuple(owned) for reader, owned in state.assigned.items()},
        free=tuple(state.unassigned),
        waiting=tuple(sorted(state.future)),
        ends=dict(state.end_segments),
        group_id=state.config.group_id,
        generation=state.config.generation,
        retention=StreamDataRetention(state.config.retention),
        last_checkpoint=dict(state.last_checkpoint or {}),
        dead_after_s={reader: each.dead_after_ms / 1000 for reader, each in state.heartbeats.items()},
    )
