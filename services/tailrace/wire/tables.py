"""The table entries that travel in table commands (wire §3.4, §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_VERSION: Final = -(2**63)
"""Version given by an unconditional update or removal (wire §8)."""

NOT_EXISTS: Final = -1
"""Version given to insert only if the key is absent, and the version of a missing key in a reply (wire §8)."""


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key with the version that the sender expects or that the table holds (wire §8)."""

    key: bytes
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key, its value and its version (wire §8)."""

    key: bytes
    value: bytes
    version: int = NO_VERSION
