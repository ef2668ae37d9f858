"""The stores, ports and settings that workflow steps use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits, names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.common.ports import Clock, Entropy
    from tailrace.controller.metadata.model import StreamSegment
    from tailrace.controller.metadata.scope_store import ScopeStore
    from tailrace.controller.metadata.stream_store import StreamKey, StreamStore
    from tailrace.controller.metadata.tag_index import TagIndex
    from tailrace.controller.workflows.segments import SegmentOperations

INTENT_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Settings of a controller."""

    transaction_lease_min_ms: int = limits.TRANSACTION_LEASE_MIN_MS
    """Shortest lease that a transaction may ask for; published clients never ask for less than 10 s."""
    transaction_lease_max_ms: int = limits.TRANSACTION_LEASE_MAX_MS
    """Longest lease that a transaction may ask for."""
    blocking_deadline_s: float = limits.RPC_BLOCKING_DEADLINE_S
    """How long a call waits for its workflow, which continues afterwards."""
    transaction_numbers_skipped: int = limits.TRANSACTION_NUMBERS_SKIPPED
    """How many numbers of transactions are left out, at least, where they may have been given before; 0: none."""
    requests_deadline_s: float = limits.RPC_REQUESTS_DEADLINE_S
    """How long the requests of a call may take together, before and after it waits for its workflow."""
    records_cached_max_bytes: int = limits.IMMUTABLE_RECORDS_CACHED_MAX_BYTES
    """For records that never change."""
    streams_max: int = limits.WORKFLOW_STREAMS_MAX
    """Streams with a task at a time."""
    entities_max: int = limits.WORKFLOW_STREAMS_MAX
    """Groups, tables and scopes with a workflow at a time; beside them, one in each scope that is emptied."""
    idle_s: float = limits.WORKFLOW_IDLE_S
    """How long a stream's task stays after its last work."""
    sole: bool = False
    """Whether no other controller can run at the same time: it owns all work, and writes no heartbeats."""
    beat_s: float = limits.CONTROLLER_BEAT_S
    """Between heartbeats."""
    look_s: float = limits.CONTROLLER_LOOK_S
    """Between looks at the other controllers' heartbeats."""
    lapse_s: float = limits.CONTROLLER_LAPSE_S
    """How long a controller may be silent before others adopt its work."""
    retention_period_s: float = limits.RETENTION_PERIOD_S
    """Between truncations of a stream by its policy, and between the cuts at which they can be."""
    watermark_period_s: float = limits.WATERMARK_PERIOD_S
    """Between looks at the times that a stream's writers noted."""
    scaling_time_factor: float = 1.0
    """Of all times of automatic scaling; below 1 to try it out."""
    sweep_period_s: float = limits.SEGMENT_SWEEP_PERIOD_S
    """Between looks for segments that no record names."""
    sweep_age_s: float = limits.SEGMENT_SWEEP_AGE_S
    """For how long this controller must have seen that no record names a segment, before it deletes it."""
    rescan_s: float = limits.CONTROLLER_RESCAN_S
    """Between looks through the pending work of its buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """Stores, segments, time and randomness for steps."""

    store: StreamStore
    scopes: ScopeStore
    tags: TagIndex
    segments: SegmentOperations
    clock: Clock
    entropy: Entropy
    config: ControllerConfig
    instance: str
    """This controller's name in the marks of pending work: another one after each start of the process."""

    def new_id(self) -> bytes:
        """Return a random id for an intent or record: records with equal bytes are the same record."""
        return self.entropy.token(INTENT_ID_BYTES)


def segment_names(key: StreamKey, segments: Iterable[StreamSegment]) -> list[str]:
    """Return the full names of the segments."""
    return [segment_name(key, segment.identifier) for segment in segments]


def segment_name(key: StreamKey, identifier: int) -> str:
    """Return the full name of a segment of the stream."""
    return names.qualified_segment_name(key.scope, key.stream, identifier)
