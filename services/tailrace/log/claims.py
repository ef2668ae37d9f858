"""Claims: objects that decide, by put-if-absent, who owns each epoch of an object log.

See docs/design.md#object-log, docs/formats/log.md.

``claims/<n>`` exists for every n from 1 to the greatest epoch that any worker tried to take. An owner of epoch e
creates the missing ones in rising order up to e. So *the owner of any earlier epoch o finds claims/<o+1>* before the
new owner reads a single frame. Claims are never deleted and never overwritten.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
from tailrace.log.object_keys import next_marks
from tailrace.log.object_requests import gather_all

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
    """One claim: ``epoch`` and ``nonce`` are those of the owner that created it; its epoch is at least ``number``."""

    container: int
    number: int
    epoch: int
    nonce: bytes

    def encode(self) -> bytes:
        """Return the object's bytes."""
        fixed = _FIXED.pack(MAGIC, VERSION, LENGTH_BYTES, self.container, self.number, self.epoch, self.nonce)
        return fixed + _CRC.pack(crc32c(fixed))

    @classmethod
    def decode(cls, data: Buffer, place: str) -> Claim:
        """Read the claim in an object.

        Raises:
            CorruptionError: the object is not a claim. FormatVersionError: it has a newer version.
        """
        view = memoryview(data)
        if len(view) < LENGTH_BYTES or bytes(view[:8]) != MAGIC:
            raise CorruptionError(place, "the object is not a claim")
        _, version, length, container, number, epoch, nonce = _FIXED.unpack_from(view)
        if length != len(view) or _CRC.unpack(view[-_CRC.size :])[0] != crc32c(view[: -_CRC.size]):
            raise CorruptionError(place, "the claim does not match its checksum")
        if version > VERSION:
            raise FormatVersionError(f"claim {place} has format version {version}, known up to {VERSION}")
        return cls(container, number, epoch, nonce)


async def find_last(exists: Callable[[int], Coroutine[Any, Any, bool]], guess: int = 0) -> int:
    """Return the greatest number from 1 on that exists; 0 when none does.

    Either all numbers up to it exist, or at least those of `object_keys.kept_marks`. A `guess` that is right saves
    questions, and all are asked at once; one that is wrong costs questions.
    """
    if guess:
        is_there, *greater = await gather_all(map(exists, (guess, *next_marks(guess))))
        if is_there and not any(greater):
            return guess
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
        self._requests = calls
        self._keys = keys
        self._seen = 0
        """The greatest claim that was read: it and all before it exist for good."""

    async def last(self) -> int:
        """Return the greatest claimed epoch; 0 when there is none."""
        return await find_last(self._exists)

    async def take(self, epoch: int, nonce: bytes) -> None:
        """Claim every epoch up to `epoch`, which the caller owns then.

        Raises:
            FencedError: another owner has claimed `epoch`; the error has the greatest claimed one.
            EpochTooHighError: too many epochs were skipped to claim them all; the error has the last one. Nothing is
            claimed.
            UnavailableError: the store does not answer; it is unknown whether the epoch is claimed. Do not reuse it.
        """
        last = epoch - 1 if epoch == 1 or await self._exists(epoch - 1) else await self.last()
        if last >= epoch or await self._exists(epoch):
            raise await self._fenced(epoch)
        if epoch - last > limits.LOG_CLAIMS_PER_OPEN_MAX:
            message = f"epoch: {epoch} is too far above the last one, {last}, of log {self._keys.folder}"
            raise EpochTooHighError(message, last)
        # In sequence: a gap would hide the later claims from an owner, which checks only the next one.
        for number in range(last + 1, epoch + 1):
            holder = await self._create(Claim(self._keys.container, number, epoch, nonce))
        if (holder.epoch, holder.nonce) != (epoch, nonce):
            raise await self._fenced(epoch)

    async def look(self, number: int) -> Claim | None:
        """Read the claim on an epoch with one request; None: there is none. UnavailableError: that is unknown."""
        key = self._keys.claim(number)
        data = await self._requests.find(key)
        if data is None:
            return None
        claim = self._decoded(data, number)
        self._seen = max(self._seen, number)
        return claim

    async def _create(self, claim: Claim) -> Claim:
        """Create the claim unless it exists; return the stored one. Lost replies do not matter."""
        key = self._keys.claim(claim.number)

        async def create() -> Claim:
            try:
                await self._requests.create(key, claim.encode())
            except AlreadyExistsError as error:
                data = await self._requests.find(key)
                if data is None:  # stores refuse one of two concurrent puts, and the other may fail too
                    raise UnavailableError(f"put {key}: conflict with a concurrent put") from error
                return self._decoded(data, claim.number)
            return claim

        return await self._requests.persist(create)

    async def _exists(self, number: int) -> bool:
        if number <= self._seen:
            return True
        return await self._requests.persist(lambda: self._requests.find(self._keys.claim(number))) is not None

    async def _fenced(self, epoch: int) -> FencedError:
        known = await self.last()
        return FencedError(f"log {self._keys.folder} knows epoch {known}, {epoch} is not above it", known)

    def _decoded(self, data: bytes, number: int) -> Claim:
        key = self._keys.claim(number)
        claim = Claim.decode(data, key)
        if (claim.container, claim.number) != (self._keys.container, number) or claim.epoch < number:
            raise CorruptionError(key, f"holds claim {claim.number} of container {claim.container}")
        return claim
