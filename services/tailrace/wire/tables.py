"""The table entries that travel in table commands.

See docs/protocol/wire.md#table-commands, docs/protocol/wire.md#tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_VERSION: Final = -(2**63)
"""Version given by an unconditional update or removal (docs/protocol/wire.md#tables)."""

NOT_EXISTS: Final = -1
"""Version given to insert only if the key is absent, and the version of a missing key in a reply.

See docs/protocol/wire.md#tables.
"""


@dataclass(frozen=True, slots=True)
class TableKey:
    """A key with the version that the sender expects or that the table holds (docs/protocol/wire.md#tables)."""

    key: bytes
    version: int = NO_VERSION


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key, its value and its version (docs/protocol/wire.md#tables)."""

    key: bytes
    value: bytes
    version: int = NO_VERSION
