"""Logs as a verification reads them: a closed one, in files or in objects, or none where the log is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tailrace.log.closed import Damage
from tailrace.log.port import ReadableLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tailrace.common.errors import DataError
    from tailrace.log.port import RecoveredFrame


class VerifiedLog(ReadableLog, Protocol):
    """A log that no server has open, in files or in objects."""

    @property
    def directory(self) -> str:
        """Return the folder or the prefix of the log."""
        ...

    @property
    def has_begun(self) -> bool:
        """Return whether the log ever had an owner."""
        ...

    @property
    def frame_count(self) -> int:
        """Return the number of valid frames."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Return the bytes up to the end of the last valid frame."""
        ...

    @property
    def held_bytes(self) -> int:
        """Return all bytes of the log, those after the last valid frame included."""
        ...

    async def open(self) -> None:
        """Find the valid frames. Raises StartError: the log is in use. DataError: they cannot be determined."""
        ...

    async def damage(self, error: DataError) -> Sequence[Damage]:
        """Return all damage of the log; `error` is the first damage that was found."""
        ...

    def place_of(self, sequence: int) -> tuple[str, int]:
        """Return the file or object of a frame, and the position in it."""
        ...

    def close(self) -> None:
        """Release the log, so that an owner can open it."""
        ...


class LostLog:
    """The missing log of a container that is verified as of its newest snapshot."""

    directory = ""
    has_begun = False
    frame_count = stored_bytes = held_bytes = 0

    async def recover(self, first_sequence: int = 0) -> AsyncIterator[RecoveredFrame]:
        """See ReadableLog.recover: there are no frames."""
        none: Sequence[RecoveredFrame] = ()
        for frame in none:
            yield frame

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """See ReadableLog.read."""
        raise self._none(sequence)

    def place_of(self, sequence: int) -> tuple[str, int]:
        """See VerifiedLog.place_of."""
        raise self._none(sequence)

    @staticmethod
    def _none(sequence: int) -> KeyError:
        return KeyError(f"log frame {sequence} does not exist")

    async def open(self) -> None:
        """See VerifiedLog.open."""

    async def damage(self, error: DataError) -> Sequence[Damage]:
        """See VerifiedLog.damage."""
        return [Damage("", None, str(error))]

    def close(self) -> None:
        """See VerifiedLog.close."""
