"""Records of a reader group's segment: initial states and updates (docs/protocol/reader-group-state.md#objects).

Segments are qualified names (``scope/stream/N.#epoch.E``). Maps keep the order of the stored record, so that a decoded
record encodes to the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from tailrace.common.ranges import KeyRange

if TYPE_CHECKING:
    from tailrace.client.model import ReaderGroupConfig
    from tailrace.common.stream_cut import StreamCut

SILENT_MARK: Final = "_SILENT_"
ENDED_OFFSET: Final = -1
"""Offset of a sealed segment that was read to its end (docs/protocol/reader-group-state.md#state)."""

Offsets: TypeAlias = Mapping[str, int]
RangedOffsets: TypeAlias = Mapping[tuple[str, KeyRange | None], int]


@dataclass(frozen=True)
class Heartbeat:
    """A reader's promise to write again within `dead_after_ms` (docs/protocol/reader-group-state.md#heartbeats).

    `session` is random for each start of a reader; `sequence` rises with every heartbeat.
    """

    session: int
    sequence: int
    dead_after_ms: int


@dataclass(frozen=True)
class CheckpointState:
    """Checkpoints inside a compacted state (docs/protocol/reader-group-state.md#checkpoint-state)."""

    checkpoints: Sequence[str]
    due: Mapping[str, Sequence[str]]
    positions: Mapping[str, Offsets]
    last_checkpoint: Offsets | None
    published: bool = False


@dataclass(frozen=True)
class Init:
    """0: a new state; as an update it resets the group."""

    config: ReaderGroupConfig
    starting: RangedOffsets
    end_segments: Offsets
    updating_config: bool = False


@dataclass(frozen=True)
class Compact:
    """1: a whole state, which replaces the records before it."""

    config: ReaderGroupConfig
    checkpoint_state: CheckpointState
    distance: Mapping[str, int]
    future: Mapping[str, Sequence[int]]
    assigned: Mapping[str, Offsets]
    unassigned: Offsets
    end_segments: Offsets
    last_read: Offsets = field(default_factory=dict)
    ranges: Mapping[str, KeyRange | None] = field(default_factory=dict)
    updating_config: bool = False
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)


@dataclass(frozen=True)
class AddReader:
    """2: a reader comes online. Only when it is not online."""

    reader: str


@dataclass(frozen=True)
class RemoveReader:
    """3: a reader goes offline; its segments become free at the positions given."""

    reader: str
    positions: Offsets


@dataclass(frozen=True)
class ReleaseSegment:
    """4: a reader gives a segment back. Only when it owns it."""

    reader: str
    segment: str
    offset: int


@dataclass(frozen=True)
class AcquireSegment:
    """5: a reader takes a free segment. Only when it is online and the segment is unassigned."""

    reader: str
    segment: str


@dataclass(frozen=True)
class UpdateDistanceToTail:
    """6: a reader reports its distance to the tail and its offsets."""

    reader: str
    distance: int
    last_read: RangedOffsets | None = None
    heartbeat: Heartbeat | None = None


@dataclass(frozen=True)
class SegmentCompleted:
    """7: a reader has read a sealed segment to its end. Only when it owns it."""

    reader: str
    segment: str
    successors: Mapping[str, Sequence[int]]
    ranges: Mapping[str, KeyRange | None] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointReader:
    """8: a reader's positions at a checkpoint. Only when the checkpoint is due for it."""

    checkpoint: str
    reader: str
    positions: Offsets


@dataclass(frozen=True)
class CreateCheckpoint:
    """9: a new checkpoint, for which every online reader must write its positions."""

    checkpoint: str

    @property
    def silent(self) -> bool:
        """Return whether readers answer without a checkpoint event for the application."""
        return SILENT_MARK in self.checkpoint


@dataclass(frozen=True)
class ClearCheckpointsBefore:
    """10: forget the checkpoints made before this one."""

    checkpoint: str


@dataclass(frozen=True)
class UpdateCheckpointPublished:
    """11: whether the last checkpoint was published to the controller."""

    published: bool


@dataclass(frozen=True)
class UpdatingConfig:
    """12: a change of the configuration is in progress."""

    updating: bool


@dataclass(frozen=True)
class RemoveOutstandingCheckpoints:
    """13: cancel checkpoints that are not complete. Clients before 0.13 fail on it."""


Update: TypeAlias = (
    Init
    | Compact
    | AddReader
    | RemoveReader
    | ReleaseSegment
    | AcquireSegment
    | UpdateDistanceToTail
    | SegmentCompleted
    | CheckpointReader
    | CreateCheckpoint
    | ClearCheckpointsBefore
    | UpdateCheckpointPublished
    | UpdatingConfig
    | RemoveOutstandingCheckpoints
)
InitialUpdate: TypeAlias = Init | Compact


@dataclass(frozen=True)
class Position:
    """Offsets of a reader, with the key ranges of its segments (docs/protocol/reader-group-state.md#client-objects)."""

    positions: Offsets
    ranges: Mapping[str, KeyRange | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A named consistent position of a whole reader group (docs/protocol/reader-group-state.md#client-objects)."""

    name: str
    cuts: Mapping[str, StreamCut]


def is_silent(checkpoint: str) -> bool:
    """Return whether a checkpoint has no event for the application."""
    return SILENT_MARK in checkpoint
