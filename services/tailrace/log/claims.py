"""Claims: who owns which epoch of an object log, decided by put-if-absent (design §4, docs/formats/log.md).

``claims/<n>`` exists for every n from 1 to the greatest epoch that anybody tried to take. An owner of epoch e creates
the missing ones in rising order up to e, so that *the owner of any earlier epoch o finds claims/<o+1>* before the new
one reads a single frame. Claims are never deleted and never overwritten.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    EpochTooHighError,
    FencedError,
    FormatVersionError,
    UnavailableError,
)
from tailrace.kernel import crc32c

if TYPE_CHECKING:
    from tailrace.log.object_keys import LogKeys
    from tailrace.log.object_requests import ObjectRequests
    from tailrace.log.port import Buffer

MAGIC: Final = b"TRLOGCLM"
VERSION: Final = 1

_FIXED = struct.Struct(">8sHHIQQ16s")
_CRC = struct.Struct(">I")
LENGTH_BYTES: Final = _FIXED.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: ``epoch`` and ``nonce`` are the owner's who made it; its epoch is ``number`` or above."""

    container: int
    number: int
    epoch: int
    nonce: bytes

    def encode(self) -> bytes:
        """The object's bytes."""
        fixed = _FIXED.pack(MAGIC, VERSION, LENGTH_BYTES, self.container, self.number, self.epoch, self.nonce)
        return fixed + _CRC.pack(crc32c(fixed))

    @classmethod
    def decode(cls, data: Buffer, place: str) -> Claim:
        """The claim in an object.

        Raises:
            CorruptionError: there is none. FormatVersionError: it is of a newer version.
        """
        view = memoryview(data)
        if len(view) < LENGTH_BYTES or bytes(view[:8]) != MAGIC:
            raise CorruptionError(place, "this is no claim")
        _, version, length, container, number, epoch, nonce = _FIXED.unpack_from(view)
        if length != len(view) or _CRC.unpack(view[-_CRC.size :])[0] != crc32c(view[: -_CRC.size]):
            raise CorruptionError(place, "the claim does not match its checksum")
        if version > VERSION:
            raise FormatVersionError(f"claim {place} has format version {version}, known up to {VERSION}")
        return cls(container, number, epoch, nonce)


async def find_last(exists: Callable[[int], Awaitable[bool]]) -> int:
    """The greatest number from 1 on that exists; 0 when none does.

    Either all numbers up to it exist, or at least those of `objectkeys.kept_marks`.
    """
    power = 1
    while await exists(power):
        power *= 2
    last = power = power // 2
    while power > 1:
        power //= 2
        if await exists(last + power):
            last += power
    return last


class Claims:
    """The claims of one log."""

    def __init__(self, calls: ObjectRequests, keys: LogKeys) -> None:
        self._calls = calls
        self._keys = keys

    async def last(self) -> int:
        """The greatest claimed epoch; 0 when there is none."""
        return await find_last(self._exists)

    async def take(self, epoch: int, nonce: bytes) -> None:
        """Claim every epoch up to `epoch`, that one for oneself.

        Raises:
            FencedError: `epoch` is claimed by another owner; names the greatest one.
            EpochTooHighError: too many epochs were skipped to claim them all; names the last one. Nothing is claimed.
            UnavailableError: the store does not answer; the epoch may be taken or not and must not be used again.
        """
        last = epoch - 1 if epoch == 1 or await self._exists(epoch - 1) else await self.last()
        if last >= epoch or await self._exists(epoch):
            raise await self._fenced(epoch)
        if epoch - last > limits.LOG_CLAIMS_PER_OPEN_MAX:
            message = f"epoch: {epoch} is too far above the last one, {last}, of log {self._keys.folder}"
            raise EpochTooHighError(message, last)
        # One after the other: a gap would hide the later claims from an owner that looks at the next one only.
        for number in range(last + 1, epoch + 1):
            holder = await self._create(Claim(self._keys.container, number, epoch, nonce))
        if (holder.epoch, holder.nonce) != (epoch, nonce):
            raise await self._fenced(epoch)

    async def look(self, number: int) -> Claim | None:
        """The claim on an epoch, by one request. UnavailableError: it cannot be told whether there is one."""
        key = self._keys.claim(number)
        data = await self._calls.find(key)
        return None if data is None else self._decoded(data, number)

    async def _create(self, claim: Claim) -> Claim:
        """Create the claim unless it exists; returns the one that is there then, whatever replies were lost."""
        key = self._keys.claim(claim.number)

        async def create() -> Claim:
            try:
                await self._calls.create(key, claim.encode())
            except AlreadyExistsError as error:
                data = await self._calls.find(key)
                if data is None:  # stores refuse one of two at the same time, and the other may fail, too
                    raise UnavailableError(f"put {key}: in conflict with another one") from error
                return self._decoded(data, claim.number)
            return claim

        return await self._calls.persist(create)

    async def _exists(self, number: int) -> bool:
        return await self._calls.persist(lambda: self._calls.find(self._keys.claim(number))) is not None

    async def _fenced(self, epoch: int) -> FencedError:
        known = await self.last()
        return FencedError(f"log {self._keys.folder} knows epoch {known}, {epoch} is not above it", known)

    def _decoded(self, data: bytes, number: int) -> Claim:
        key = self._keys.claim(number)
        claim = Claim.decode(data, key)
        if (claim.container, claim.number) != (self._keys.container, number) or claim.epoch < number:
            raise CorruptionError(key, f"holds claim {claim.number} of container {claim.container}")
        return claim
