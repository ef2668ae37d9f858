"""The interface of a segment container for the server, the table segments and the tools.

See docs/design.md#write-path, docs/design.md#attributes, docs/design.md#table-segments.

They depend on this module, not on the container's implementation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

NULL_ATTRIBUTE: Final = -(2**63)
"""The value of an unset attribute (docs/protocol/wire.md#attributes)."""


class AttributeUpdateType(enum.IntEnum):
    """How an attribute is updated ("Segment Attributes"; numbers of docs/protocol/wire.md#attributes)."""

    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


class AttributeUpdate(NamedTuple):
    """One attribute update.

    ``comparison`` is used by REPLACE_IF_EQUALS (``NULL_ATTRIBUTE`` = must be unset). With ``from_offset`` the final
    value is the offset that the append of the same operation gets, plus ``value`` (table entries point to
    themselves that way). Setting ``NULL_ATTRIBUTE`` removes the attribute.
    """

    attribute_id: bytes
    kind: AttributeUpdateType
    value: int
    comparison: int = NULL_ATTRIBUTE
    from_offset: bool = False


CORE_ATTRIBUTE_PREFIX: Final = b"\x80\0\0\0\0\0\0\0"


def core_attribute(number: int) -> bytes:
    """Return the id of a core attribute: upper half Long.MIN_VALUE, lower half `number`.

    See docs/protocol/wire.md#attributes.
    """
    return CORE_ATTRIBUTE_PREFIX + number.to_bytes(8, "big")


CREATION_TIME: Final = core_attribute(0)
EVENT_COUNT: Final = core_attribute(1)
SCALE_POLICY_TYPE: Final = core_attribute(2)
SCALE_POLICY_RATE: Final = core_attribute(3)
ROLLOVER_SIZE: Final = core_attribute(4)
TABLE_ENTRY_COUNT: Final = core_attribute(1048576 + 1)
TABLE_TOTAL_ENTRY_COUNT: Final = core_attribute(1048576 + 3)
TABLE_COMPACTION_OFFSET: Final = core_attribute(1048576 + 4)


def is_core_attribute(attribute_id: bytes) -> bool:
    """Return whether the attribute is a core attribute, which stays in memory."""
    return len(attribute_id) == 16 and attribute_id.startswith(CORE_ATTRIBUTE_PREFIX)


class SegmentKind(enum.IntFlag):
    """Flags of a segment's type (docs/protocol/wire.md#attributes)."""

    STREAM = 0
    TABLE = 1
    FIXED_KEY_TABLE = 5
    INTERNAL = 0x10
    SYSTEM = 0x30
    CRITICAL = 0x40
    TRANSIENT = 0x80

    @property
    def is_table(self) -> bool:
        """Return whether it is a table segment. Many requests ask: numbers are compared faster than flags."""
        return int(self) & 0x01 != 0

    @property
    def is_transient(self) -> bool:
        """Return whether it is a transient segment."""
        return int(self) & 0x80 != 0


@dataclass(frozen=True, slots=True)
class SegmentProperties:
    """The committed properties of a segment."""

    name: str
    segment_id: int
    kind: SegmentKind
    key_length: int
    length: int
    start_offset: int
    sealed: bool
    last_modified_ms: int
    core_attributes: dict[bytes, int]


class SegmentLength(NamedTuple):
    """Which segment has a name, and how many bytes of it are committed."""

    name: str
    segment_id: int
    length: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Bytes of a segment.

    ``data`` may be shorter than requested. ``at_tail``: the read reached the tail. ``end_of_segment``: the segment is
    sealed, and this result reaches its end.
    """

    offset: int
    data: Sequence[Buffer]
    length: int
    at_tail: bool
    end_of_segment: bool


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of a merge: where the source's bytes begin in the target, and the target's new length."""

    target_offset: int
    target_length: int


@dataclass(slots=True)
class AppendRequest:
    """One atomic append of bytes with attribute updates: the hot path.

    ``data`` is copied before `SegmentContainer.submit_append` returns. Exactly one of ``completed`` and ``failed`` is
    called later, on the loop, in commit order: ``completed(request)`` after the operation is durable and committed
    (``offset`` and ``new_length`` are set then), ``failed(request, error)`` otherwise. Neither may raise. ``turn``:
    its number among the appends that had to wait for room in the cache, negative: it goes before all others; 0: it did
    not wait, or waits for its turn.
    """

    segment: str
    data: Sequence[Buffer]
    length: int
    updates: Sequence[AttributeUpdate]
    completed: Callable[[AppendRequest], None]
    failed: Callable[[AppendRequest, Exception], None]
    expected_offset: int = -1
    offset: int = -1
    new_length: int = -1
    context: object = None
    turn: int = 0


@dataclass(frozen=True, slots=True)
class ChunkListing:
    """One chunk of a segment in Tier 2 (docs/protocol/wire.md#admin-commands, and `tailrace inspect`).

    ``begins_event``: an event begins at its first byte, for certain (docs/adr/0044).
    """

    object_key: str
    start_offset: int
    length_bytes: int
    exists: bool = True
    begins_event: bool = False


@dataclass(slots=True)
class StreamBytes:
    """What one container has of a stream: segments, retained bytes, and bytes of objects in Tier 2 that they hold."""

    segments: int = 0
    retained_bytes: int = 0
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredSegment:
    """How fast a segment with a rate policy was written (docs/controller.md#automatic-scaling).

    ``rates`` has the mean of each window, in events or kilobytes per second as ``scale_type`` says, over at most
    ``age_s``. ``target_rate`` is the segment's own copy of the policy.
    """

    segment_id: int
    name: str
    scale_type: int
    target_rate: int
    age_s: float
    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The state of a container, as `tailrace inspect` shows it."""

    container_id: int
    state: str
    reason: str
    epoch: int
    segments: int
    log_bytes: int
    untiered_bytes: int
    pending_deletes: int
    last_sequence: int
    details: dict[str, float] = field(default_factory=dict)


class SegmentContainer(Protocol):
    """A running segment container.

    All methods raise NoSuchSegmentError for unknown segments and ContainerStoppedError once the container has stopped.
    Segment names are full names; the caller has checked that they map to this container.
    """

    @property
    def container_id(self) -> int:
        """Return the number of the container."""
        ...

    def may_answer(self) -> bool:
        """Return whether ownership was confirmed within ``limits.OWNER_SEEN_MAX_S`` (docs/design.md#ownership).

        Call this after the last read of the container's state and before the reply is sent. If False, `wait_owner`.
        """
        ...

    async def wait_owner(self) -> None:
        """Wait until `may_answer`.

        Raises:
            ContainerStoppedError: it has another owner. WrongHostError: ownership was not confirmed in time.
        """
        ...

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """Submit an append to the operation processor.

        Returns None when it was accepted (or failed at once, through ``failed``). Otherwise nothing was accepted: the
        caller keeps the request and awaits the future (for room in the cache or budget, or for an attribute). Then it
        submits the same request again, before any later one of that connection. The future is this request's own: it is
        also done when the container stops, and who cancels it gives the request up.
        """
        ...

    async def append(
        self,
        segment: str,
        data: Sequence[Buffer],
        updates: Sequence[AttributeUpdate] = (),
        *,
        expected_offset: int = -1,
    ) -> tuple[int, int]:
        """Append and wait; return (offset, new length).

        Raises:
            SegmentSealedError, BadOffsetError, BadAttributeError.
        """
        ...

    async def create_segment(
        self,
        segment: str,
        *,
        kind: SegmentKind = SegmentKind.STREAM,
        key_length: int = 0,
        attributes: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """Create a segment. ``key_length`` is the length of its attribute ids if that is not 16 bytes.

        Raises:
            SegmentExistsError.
        """
        ...

    async def begin_create(self, segment: str, *, attributes: Sequence[tuple[bytes, int]] = ()) -> asyncio.Future[None]:
        """Stage the creation of a stream segment as `create_segment` does; the future is done when it is durable."""
        ...

    async def seal(self, segment: str) -> int:
        """Seal the segment; return its final length. Raises SegmentSealedError when it is sealed already."""
        ...

    async def truncate(self, segment: str, offset: int) -> None:
        """Set the start offset. Works on sealed segments.

        Raises:
            SegmentTruncatedError: the offset is below the start or beyond the length.
        """
        ...

    async def delete(self, segment: str) -> None:
        """Delete the segment."""
        ...

    async def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> MergeResult:
        """Append the source's bytes to the target atomically; seals the source first if it is not sealed.

        Merging a source again that was merged before succeeds for some time (docs/design.md#write-path).

        Raises:
            NoSuchSegmentError: a segment is missing; the error has its name.
            SegmentSealedError: the target is sealed. BadAttributeError: a condition failed.
        """
        ...

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge sources in order, as `merge` does; they are staged one after the other and made durable together.

        Returns the target's length after each. A missing source counts as merged; it has the length of that time.

        Raises:
            NoSuchSegmentError, SegmentSealedError: the target. SegmentTruncatedError: the source that it names. The
            sources before it are merged.
        """
        ...

    async def info(self, segment: str) -> SegmentProperties:
        """Return the committed properties."""
        ...

    def length_of(self, segment: str) -> SegmentLength:
        """Return the committed length alone, which costs less than all properties."""
        ...

    async def get_attributes(
        self, segment: str, attribute_ids: Sequence[bytes], *, keep: bool = False
    ) -> dict[bytes, int]:
        """Return committed values; ids that are not set are missing from the result.

        With `keep` they stay in memory for a while, so that a change of them that follows looks up none of them again.
        """
        ...

    def attributes_in_memory(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int] | None:
        """Return what `get_attributes` with `keep` returns; None when it would have to wait for a read of the index."""
        ...

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes atomically.

        Raises BadAttributeError once the values that it rests on are durable, SegmentSealedError.
        """
        ...

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """Return at most `limit` committed extended attributes with from_id <= id <= to_id, in byte order.

        A result shorter than `limit` means that the range is exhausted.
        """
        ...

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """Return the last event number of a writer, after every operation staged before this call has committed.

        This is the barrier of SetupAppend (docs/design.md#stage). ``NULL_ATTRIBUTE`` when the writer is unknown.
        """
        ...

    def available(self, segment: str, offset: int) -> int:
        """Return how many committed bytes follow an offset: 0 when `read` would wait or be refused."""
        ...

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        """Read committed bytes from `offset` (docs/protocol/wire.md#reads).

        With `wait`, a read at (or beyond) the tail of an unsealed segment returns when data arrives or the segment is
        sealed, deleted or merged; otherwise it returns at once without data.

        Raises:
            SegmentTruncatedError: `offset` is below the start. BadRequestError: beyond the end of a sealed segment.
        """
        ...

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """Read exactly `length` committed bytes.

        Raises:
            BadRequestError: the segment is shorter. SegmentTruncatedError: `offset` is below the start.
        """
        ...

    async def flush_to_storage(self) -> None:
        """Move all data that is staged by now to Tier 2, and take a checkpoint of that (wire FlushToStorage)."""
        ...

    async def list_chunks(self, segment: str, after: int = 0, limit: int | None = None) -> list[ChunkListing]:
        """Return the chunks that hold the segment's bytes and end behind `after`, in order; the first `limit` of them.

        Each costs a read of the object store. ``limits.STORAGE_READS_MAX`` of them are under way at a time.
        """
        ...

    async def stream_bytes(self, max_age_s: float = 0.0) -> dict[str, StreamBytes]:
        """Return the bytes of the container's streams, by ``scope/stream``, measured at most so long ago.

        Raises ContainerStoppedError.
        """
        ...

    def measure_rates(self, windows_ms: Sequence[int], after: int) -> tuple[list[MeasuredSegment], bool]:
        """Return how fast segments with a rate policy are written, and whether there are more.

        Averages over windows that rise; segments with an id above `after`, in order, at most
        ``limits.RATES_PER_REPLY_MAX``. Raises BadRequestError for other windows.
        """
        ...

    def list_segments(self, after: int) -> tuple[list[tuple[int, str]], bool]:
        """Return ids and names of segments with an id above `after`, in order, and whether there are more.

        At most ``limits.SEGMENTS_PER_REPLY_MAX``.
        """
        ...

    def segment_names(self) -> list[str]:
        """Return the names of all segments, sorted; for the tools."""
        ...

    def status(self) -> ContainerStatus:
        """Return the state for the tools and metrics."""
        ...
