"""The port of Tier-1 logs (docs/design.md#tier-1); all implementations pass one contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class RecoveredFrame:
    """One frame that recovery accepted.

    ``sequence`` is the frame's address: strictly increasing over all epochs of the log, without gaps between
    accepted frames. ``payload`` is verified against its CRC32C.
    """

    sequence: int
    epoch: int
    payload: memoryview


class ReadableLog(Protocol):
    """The part of a log that recovers a container's state."""

    def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """Yield the accepted frames from `first_sequence`, or from the log's start if that is later, in order.

        May be called several times between `open` and the first `append`. Payloads are valid until the next step.
        """
        ...

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """Return bytes of a durable frame's payload, verified against the frame's CRC32C.

        Raises:
            CorruptionError: they do not match; the text names the place.
            KeyError: the frame was truncated or never written.
        """
        ...


class DurableLog(ReadableLog, Protocol):
    """An append-only sequence of frames, owned by one epoch at a time.

    A frame's address is its sequence number. `append` may be called before earlier appends complete; frames become
    durable in order, and complete in order. After any error from `append` the log is lost for this owner: the caller
    closes it, and the container stops.
    """

    @property
    def max_frame_bytes(self) -> int:
        """Return the largest payload that one frame may carry."""
        ...

    @property
    def next_sequence(self) -> int:
        """Return the address of the next appended frame (valid after `open`)."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Return the bytes that the log occupies now."""
        ...

    @property
    def frame_target_bytes(self) -> int:
        """Return the best payload size of a frame; larger frames gain nothing."""
        ...

    @property
    def frames_in_flight_max(self) -> int:
        """Return how many frames in flight are useful; more only wait."""
        ...

    @property
    def part_frames_in_flight_max(self) -> int:
        """Return from how many frames in flight on a partly filled frame should wait and fill."""
        ...

    @property
    def frames_cost_requests(self) -> bool:
        """Return whether recovery needs a request for each frame, of any size."""
        ...

    def frames_per_checkpoint(self, worth: int) -> int:
        """Return how many frames since the last checkpoint make a checkpoint due that costs as much as `worth` frames.

        With more frames, recovery takes long because of their number alone.
        """
        ...

    @property
    def epochs_at_opening(self) -> int:
        """Return how many earlier epochs had frames in the log at its opening; a log has room for a bounded number."""
        ...

    async def open(self, epoch: int, nonce: bytes) -> None:
        """Take the log for `epoch` (above every earlier one) and fence earlier owners.

        Raises:
            FencedError: the log knows this epoch or a greater one; the text names it.
            CorruptionError, DataLossError, FormatVersionError: recovery is not possible; the text names the place.
        """
        ...

    @property
    def log_start(self) -> int:
        """Return the address of the first frame that is not truncated."""
        ...

    @property
    def owned_at_s(self) -> float:
        """Return the loop time at which there was certainly no later owner.

        Infinite when there can be none while this one is open; minus infinity once the log has ended. A reply of this
        owner may miss what a later owner has acknowledged since that time (docs/design.md#stale-owners).
        """
        ...

    async def confirm_owner(self) -> None:
        """Check for a later owner; without one, ``owned_at_s`` is the time of this call or later.

        Raises:
            FencedError: there is one, and the log is lost. UnavailableError: that is unknown, or the log has ended.
        """
        ...

    def check_space(
        self, length_bytes: int, frame_count: int = 1, *, reserved: bool = False
    ) -> asyncio.Future[None] | None:
        """Check that payloads of that length in so many frames can certainly be written, before staging an operation.

        Both figures cover everything that is staged and not appended yet. ``reserved`` is for operations that free
        space (commits of flushes, checkpoints, truncations, deletions): on a full disk they may use the reserve.

        Returns None when they fit, else a future: check again when it is done.

        Raises:
            DiskFullError: they do not fit, and no room can be made.
        """
        ...

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """Write one frame made of the joined buffers; the future yields its address once it is durable.

        The order of calls is the order of frames. The buffers must not change until the future is done. Frames
        written while a sync runs share the next one (group commit).

        Raises (nothing is appended then):
            BadRequestError: the payload is larger than a frame may be.
            OverloadedError: too many bytes wait to become durable (``limits.LOG_UNACKNOWLEDGED_MAX_BYTES``).
        """
        ...

    async def truncate(self, sequence: int) -> None:
        """Forget frames below `sequence`; they may stay readable for a while."""
        ...

    async def close(self) -> None:
        """Close the log; pending appends fail with FencedError or complete."""
        ...
