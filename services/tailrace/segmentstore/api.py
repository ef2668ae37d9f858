"""What a segment container offers to the server and to the table layer (design §3, §6, §7).

The server, the table segments and the tools depend on this module, not on the container's insides.
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
"""The value of an attribute that is not set (wire §7)."""


class AttributeUpdateType(enum.IntEnum):
    """How an attribute is updated (attributes article; numbers of wire §7)."""

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


def core_attribute(number: int) -> bytes:
    """Id of a core attribute: upper half Long.MIN_VALUE, lower half `number` (wire §7)."""
    return b"\x80" + b"\0" * 7 + number.to_bytes(8, "big")


CREATION_TIME: Final = core_attribute(0)
EVENT_COUNT: Final = core_attribute(1)
SCALE_POLICY_TYPE: Final = core_attribute(2)
SCALE_POLICY_RATE: Final = core_attribute(3)
ROLLOVER_SIZE: Final = core_attribute(4)
TABLE_ENTRY_COUNT: Final = core_attribute(1048576 + 1)
TABLE_TOTAL_ENTRY_COUNT: Final = core_attribute(1048576 + 3)
TABLE_COMPACTION_OFFSET: Final = core_attribute(1048576 + 4)


def is_core_attribute(attribute_id: bytes) -> bool:
    """Whether the attribute is one of those pinned in memory."""
    return len(attribute_id) == 16 and attribute_id.startswith(b"\x80\0\0\0\0\0\0\0")


class SegmentKind(enum.IntFlag):
    """Flags of a segment's type (wire §7, SEGMENT_TYPE)."""

    STREAM = 0
    TABLE = 1
    FIXED_KEY_TABLE = 5
    INTERNAL = 0x10
    SYSTEM = 0x30
    CRITICAL = 0x40
    TRANSIENT = 0x80


@dataclass(frozen=True, slots=True)
class SegmentProperties:
    """Committed state of a segment."""

    name: str
    segment_id: int
    kind: SegmentKind
    key_length: int
    length: int
    start_offset: int
    sealed: bool
    last_modified_ms: int
    core_attributes: dict[bytes, int]


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
    """Outcome of a merge: where the source's bytes begin in the target, and the target's new length."""

    target_offset: int
    target_length: int


@dataclass(slots=True)
class AppendRequest:
    """One atomic append of bytes with attribute updates: the hot path.

    ``data`` is copied before `SegmentContainer.submit_append` returns. Exactly one of ``completed`` and ``failed`` is
    called later, on the loop, in commit order: ``completed(request)`` after the operation is durable and committed
    (``offset`` and ``new_length`` are set then), ``failed(request, error)`` otherwise. Neither may raise.
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


@dataclass(frozen=True, slots=True)
class ChunkListing:
    """One chunk of a segment in Tier 2 (wire §3.5, and `tailrace inspect`)."""

    object_key: str
    start_offset: int
    length_bytes: int
    exists: bool = True


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """What `tailrace inspect` shows of a container."""

    container_id: int
    state: str
    reason: str
    epoch: int
    segments: int
    log_bytes: int
    untiered_bytes: int
    pending_deletes: int
    last_sequence: int
    details: dict[str, int] = field(default_factory=dict)


class SegmentContainer(Protocol):
    """A running segment container.

    All methods raise NoSuchSegmentError for unknown segments and ContainerStoppedError once the container stopped.
    Segment names are full names; the caller has checked that the container is the right one.
    """

    @property
    def container_id(self) -> int:
        """Number of the container."""
        ...

    def may_answer(self) -> bool:
        """Whether nobody else can have had the container for longer than ``limits.OWNER_SEEN_MAX_S`` (design §9).

        Asked after the last look at the container's state and before the answer goes out. If not, `wait_owner`.
        """
        ...

    async def wait_owner(self) -> None:
        """Wait until `may_answer`.

        Raises:
            ContainerStoppedError: it has another owner. WrongHostError: it cannot be told for too long.
        """
        ...

    def submit_append(self, request: AppendRequest) -> asyncio.Future[None] | None:
        """Take an append into the pipeline.

        Returns None when it was taken (or failed at once, through ``failed``). Otherwise nothing was taken: the
        caller keeps the request, awaits the future (room in the cache or budget, or an attribute being fetched), and
        submits the same request again, before any later one of that connection.
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
        """Append and wait; returns (offset, new length).

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
        """Create a segment. ``key_length`` is the length of its attribute ids when they are not 16 bytes long.

        Raises:
            SegmentExistsError.
        """
        ...

    async def seal(self, segment: str) -> int:
        """Seal; returns the final length. Raises SegmentSealedError when sealed already."""
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

        A source that was merged already is answered with success again (design §3, issue: remembered).

        Raises:
            NoSuchSegmentError: with the name of the one that is missing.
            SegmentSealedError: the target. BadAttributeError: a condition failed.
        """
        ...

    async def info(self, segment: str) -> SegmentProperties:
        """Committed properties."""
        ...

    async def get_attributes(self, segment: str, attribute_ids: Sequence[bytes]) -> dict[bytes, int]:
        """Committed values; ids that are not set are missing from the result."""
        ...

    async def update_attributes(self, segment: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes atomically. Raises BadAttributeError, SegmentSealedError."""
        ...

    async def iterate_attributes(
        self, segment: str, from_id: bytes, to_id: bytes, limit: int
    ) -> list[tuple[bytes, int]]:
        """Committed extended attributes with from_id <= id <= to_id in byte order, at most `limit` of them.

        A result shorter than `limit` means that the range is exhausted.
        """
        ...

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        """Last event number of a writer, after every operation staged before this call has committed.

        This is the barrier of SetupAppend (design §3.3). ``NULL_ATTRIBUTE`` when the writer is unknown.
        """
        ...

    async def read(self, segment: str, offset: int, max_length: int, *, wait: bool) -> ReadResult:
        """Read committed bytes from `offset` (wire §6).

        With `wait`, a read at (or beyond) the tail of an unsealed segment is answered when data arrives or the
        segment is sealed, deleted or merged; otherwise it is answered at once with no data.

        Raises:
            SegmentTruncatedError: `offset` is below the start. BadRequestError: beyond the end of a sealed segment.
        """
        ...

    async def read_exact(self, segment: str, offset: int, length: int) -> bytes:
        """Exactly `length` committed bytes.

        Raises:
            BadRequestError: the segment is shorter. SegmentTruncatedError: `offset` is below the start.
        """
        ...

    async def flush_to_storage(self) -> None:
        """Move everything committed so far to Tier 2 and take a checkpoint (wire FlushToStorage)."""
        ...

    async def list_chunks(self, segment: str) -> list[ChunkListing]:
        """Chunks that hold the segment's bytes."""
        ...

    def segment_names(self) -> list[str]:
        """Names of all segments, sorted; for the tools."""
        ...

    def status(self) -> ContainerStatus:
        """State for the tools and metrics."""
        ...
