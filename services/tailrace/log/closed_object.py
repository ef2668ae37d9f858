"""Reads an object log as its next owner would find it, for tools that write nothing (docs/formats/log.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common.errors import CorruptionError, DataError
from tailrace.log.claims import Claim, Claims
from tailrace.log.closed import Damage
from tailrace.log.frame_index import FrameIndex
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_recovery import ObjectDecision
from tailrace.log.object_requests import ObjectRequests
from tailrace.log.object_scan import ObjectScanner
from tailrace.log.port import RecoveredFrame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace.storage.port import ObjectStore


class ClosedObjectLog:
    """The valid frames of an object log; nothing is changed. Calls ``advance(bytes)`` for each frame that it reads.

    An owner may open the log meanwhile: `same_owner` checks that at the end. ``opened_epoch``: see `ObjectLog`.
    """

    def __init__(
        self,
        store: ObjectStore,
        container: int,
        advance: Callable[[int], None] | None = None,
        *,
        opened_epoch: int = 0,
    ) -> None:
        self._opened_epoch = opened_epoch
        self.keys = LogKeys(container)
        self._requests = ObjectRequests(store)
        self._claims = Claims(self._requests, self.keys)
        self._scanner = ObjectScanner(self._requests, self.keys)
        self._decision = ObjectDecision()
        self._advance = advance
        self._last_read: tuple[int, bytes] = (-1, b"")
        self.index = FrameIndex()
        self.last_claim = 0

    @property
    def directory(self) -> str:
        """Return the prefix of its objects."""
        return self.keys.folder

    async def open(self) -> None:
        """Find the valid frames.

        Raises:
            CorruptionError, DataLossError, FormatVersionError: as `DurableLog.open`. UnavailableError.
        """
        self.last_claim = await self._claims.last()
        self._decision = await self._scanner.decision(self.last_claim + 1)
        self.index = FrameIndex(self._decision.extents, 0, self._decision.next_sequence)
        self._decision.check_opened(self.keys.folder, self._opened_epoch)

    async def same_owner(self) -> bool:
        """Return whether no owner has claimed the log or written a valid frame since `open`."""
        last = await self._claims.last()
        if last != self.last_claim:
            return False
        try:
            now = await self._scanner.decision(last + 1)
        except DataError:
            return not self.has_begun  # damaged as before, or a live owner truncates it
        return now.next_sequence == self._decision.next_sequence

    @property
    def previous_epoch(self) -> int:
        """Return the newest epoch with a START frame; 0: none."""
        return self._decision.previous_epoch

    @property
    def has_begun(self) -> bool:
        """Return whether the log ever had an owner."""
        return self._decision.previous_epoch > 0

    @property
    def next_sequence(self) -> int:
        """Return the sequence after the last valid frame."""
        return self._decision.next_sequence

    @property
    def log_start(self) -> int:
        """Return the first frame that is not truncated."""
        return self._decision.log_start

    @property
    def frame_count(self) -> int:
        """Return the number of valid frames."""
        return sum(len(extent.lengths) for extent in self.index.extents)

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the objects of the valid frames."""
        return self.index.length_bytes(0, self.next_sequence)

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See DurableLog.recover."""
        first = max(first_sequence, self.log_start)
        found = self._scanner.frames(self.index.places(first, self.next_sequence))
        try:
            async for epoch, sequence, payload in found:
                if self._advance is not None:
                    self._advance(len(payload))
                yield RecoveredFrame(sequence, epoch, payload)
        finally:
            await found.aclose()

    def place_of(self, sequence: int) -> tuple[str, int]:
        """Return object and offset of a frame. Raises KeyError: it does not exist."""
        epoch = self.index.epoch_of(sequence)
        if epoch is None:
            raise KeyError(f"log frame {sequence} does not exist")
        return f"object {self.keys.frame(epoch, sequence)}", 0

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See DurableLog.read. The last frame that was read stays in memory."""
        if self._last_read[0] != sequence:
            epoch = self.index.epoch_of(sequence)
            if epoch is None:
                raise KeyError(f"log frame {sequence} does not exist")
            self._last_read = sequence, bytes(await self._scanner.frame(epoch, sequence))
        return self._last_read[1][offset : offset + length]

    # -- for a verification --------------------------------------------------------------------------------------

    async def damage(self, error: DataError) -> list[Damage]:
        """Return all damage; `error` is the first that was found."""
        found = await self.damaged_claims()
        for epoch, sequence, _ in self.index.places(self.log_start, self.next_sequence):
            try:
                await self._scanner.frame(epoch, sequence)
            except DataError as damage:
                found.append(Damage(f"object {self.keys.frame(epoch, sequence)}", None, _reason(damage)))
        if not any(item.place.removeprefix("object ") in str(error) for item in found):
            found.append(Damage("", None, str(error)))
        return found

    async def damaged_claims(self) -> list[Damage]:
        """Return the damage of the claims."""
        found: list[Damage] = []
        for number in range(1, self.last_claim + 1):
            place = f"object {self.keys.claim(number)}"
            try:
                if await self._look(number) is None:
                    found.append(Damage(place, None, "it does not exist"))
            except DataError as damage:
                found.append(Damage(place, None, _reason(damage)))
        return found

    @property
    def held_bytes(self) -> int:
        """Return `stored_bytes`: objects hold nothing else."""
        return self.stored_bytes

    async def _look(self, number: int) -> Claim | None:
        return await self._requests.persist(lambda: self._claims.look(number))

    async def last_mark(self) -> int:
        """Return the number of the newest epoch's last mark; 0: it has none."""
        return await self._scanner.last_mark_number(self.previous_epoch) if self.has_begun else 0

    def close(self) -> None:
        """Free the cached frames; there is no lock."""
        self._scanner.drop_cached()


def _reason(error: DataError) -> str:
    return error.reason if isinstance(error, CorruptionError) else str(error)
