"""The keys of a log's objects, and which of its marks are kept. Pure.

See docs/design.md#object-log, docs/formats/log.md.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"(\d{20})/(start|(mark-)?(\d{20}))")
_CLAIM: Final = re.compile(r"claims/(\d{20})")


class ObjectKind(enum.Enum):
    """The kind of an epoch's object."""

    START = "start"
    MARK = "mark"
    FRAME = "frame"


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A parsed key. ``number`` is the sequence of a FRAME, the number of a MARK, 0 for START."""

    epoch: int
    kind: ObjectKind
    number: int


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys of one container's log, below the prefix of its object store."""

    container: int

    @property
    def folder(self) -> str:
        """Return the prefix of all keys."""
        return f"log/{self.container}/"

    def claim(self, number: int) -> str:
        """Return the key of the claim on an epoch."""
        return f"{self.folder}claims/{number:020d}"

    def epoch(self, epoch: int) -> str:
        """Return the folder of an epoch's frames."""
        return f"{self.folder}{epoch:020d}"

    def start(self, epoch: int) -> str:
        """Return the key of an epoch's START frame."""
        return f"{self.epoch(epoch)}/start"

    def frame(self, epoch: int, sequence: int) -> str:
        """Return the key of a DATA frame."""
        return f"{self.epoch(epoch)}/{sequence:020d}"

    def mark(self, epoch: int, number: int) -> str:
        """Return the key of an epoch's `number`-th MARK, from 1 on."""
        return f"{self.epoch(epoch)}/mark-{number:020d}"

    def of(self, name: ObjectName) -> str:
        """Return the key of a name; the inverse of `parse`."""
        if name.kind is ObjectKind.START:
            return self.start(name.epoch)
        if name.kind is ObjectKind.MARK:
            return self.mark(name.epoch, name.number)
        return self.frame(name.epoch, name.number)

    def parse(self, key: str) -> ObjectName | None:
        """Parse a key of an epoch's folder; None for claims and other keys."""
        match = _NAME.fullmatch(key.removeprefix(self.folder)) if key.startswith(self.folder) else None
        if match is None:
            return None
        epoch = int(match[1])
        if match[2] == "start":
            return ObjectName(epoch, ObjectKind.START, 0)
        return ObjectName(epoch, ObjectKind.MARK if match[3] else ObjectKind.FRAME, int(match[4]))

    def claim_of(self, key: str) -> int | None:
        """Return the epoch that a claim's key is for; None for other keys."""
        match = _CLAIM.fullmatch(key.removeprefix(self.folder)) if key.startswith(self.folder) else None
        return None if match is None else int(match[1])

    def epoch_of(self, key: str) -> int | None:
        """Return the epoch of a frame, a mark or a claim; None for other keys."""
        name = self.parse(key)
        return self.claim_of(key) if name is None else name.epoch


def kept_marks(last: int) -> frozenset[int]:
    """Return the marks that a search for mark `last` needs (`claims.find_last`); all others may be deleted.

    The search tries powers of two, then adds lower bits. So it needs the powers of two up to `last` and, for each
    prefix of the binary form of `last`, the number with the lower bits zero: about two marks per bit.
    """
    kept = {1 << bit for bit in range(last.bit_length())}
    while last:
        kept.add(last)
        last &= last - 1
    return frozenset(kept)


def next_marks(last: int) -> list[int]:
    """Return the marks that prove, when none of them exists, that no mark above `last` does.

    They are what the search for a last mark finds missing: the next power of two, and for each zero bit of `last` the
    number with that bit set and the lower bits zero. A greater last mark needs one of them (`kept_marks`).
    """
    bits = (1 << place for place in reversed(range(last.bit_length() + 1)))
    return [(last | bit) & -bit for bit in bits if not last & bit]
