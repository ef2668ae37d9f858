"""The port that every Tier-1 log implements (design §4); one contract suite holds all of them to it."""

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
    """What rebuilding a container's state needs of its log."""

    def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """The accepted frames from `first_sequence` (or the log's start, whichever is later), in order.

        May be called several times between `open` and the first `append`. Payloads are valid until the next step.
        """
        ...

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """Bytes of a durable frame's payload, verified against the frame's CRC32C.

        Raises:
            CorruptionError: they do not match; names the place.
            KeyError: the frame was truncated or never written.
        """
        ...


class DurableLog(ReadableLog, Protocol):
    """An append-only sequence of frames, owned by one epoch at a time.

    A frame's address is its sequence number. `append` may be called again before earlier appends completed; frames
    become durable in order and completions arrive in order. After any error from `append` the log is lost for this
    owner: it must be closed, and the container stops.
    """

    @property
    def max_frame_bytes(self) -> int:
        """Largest payload that one frame may carry."""
        ...

    @property
    def next_sequence(self) -> int:
        """Address that the next appended frame will get (valid after `open`)."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes that the log occupies now."""
        ...

    @property
    def frame_target_bytes(self) -> int:
        """Payload with which a frame is best written; larger ones gain nothing."""
        ...

    @property
    def frames_in_flight_max(self) -> int:
        """How many frames it is worth to have appended that are not durable yet; more only wait."""
        ...

    @property
    def part_frames_in_flight_max(self) -> int:
        """With so many in flight, a frame that is not full should rather wait and fill: each costs the same."""
        ...

    @property
    def frames_cost_requests(self) -> bool:
        """Whether recovery needs a request for each frame, however small it is."""
        ...

    def frames_per_checkpoint(self, worth: int) -> int:
        """How many frames since the last checkpoint lead to one that costs as much as `worth` frames.

        With more of them recovery takes long because of their number alone.
        """
        ...

    @property
    def epochs_at_opening(self) -> int:
        """How many earlier epochs had frames in the log when it was opened: a log has room for so many of them."""
        ...

    async def open(self, epoch: int, nonce: bytes) -> None:
        """Take the log for `epoch` (above every earlier one) and fence earlier owners.

        Raises:
            FencedError: the log knows this epoch or a greater one; ``str`` names it.
            CorruptionError, DataLossError, FormatVersionError: recovery cannot be right; names the place.
        """
        ...

    @property
    def log_start(self) -> int:
        """Address of the first frame that is still there."""
        ...

    @property
    def owned_at_s(self) -> float:
        """Loop time at which there was surely no later owner; infinite when there can be none while this one is open,
        and minus infinity once the log has ended.

        Answers of an owner may be as far behind what others have acknowledged since as this lies back (design §9).
        """
        ...

    async def confirm_owner(self) -> None:
        """Look for a later owner; none means that ``owned_at_s`` is the time of this call, or later.

        Raises:
            FencedError: there is one, and the log is lost. UnavailableError: it cannot be told now, or the log ended.
        """
        ...

    def check_space(
        self, length_bytes: int, frame_count: int = 1, *, reserved: bool = False
    ) -> asyncio.Future[None] | None:
        """Whether payloads of that length in so many frames can surely be written; asked before an operation is staged.

        Both figures cover everything staged and not appended yet. ``reserved`` is for operations that give space back
        (commits of flushes, checkpoints, truncations, deletions): on a full disk they may use what is kept for them.

        Returns None when it fits, else a future: room is being made, ask again when it is done.

        Raises:
            DiskFullError: it does not fit, and there is no room to be made.
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
        """Let go of the log; pending appends fail with FencedError or complete."""
        ...
