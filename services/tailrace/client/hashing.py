"""Routing of keys: the hash that decides which segment an event goes to (naming §2).

It must give the same numbers as the Java client, else two writers would order one key in two segments.
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Final

from tailrace.common import limits
from tailrace.common.murmur import murmur3_128

ROUTING_SEED: Final = 1741865571
TABLE_SEED: Final = -2020233499


def _to_unit_interval(half: int) -> float:
    """52 bits of the hash as the mantissa of a double in [1, 2), less 1."""
    bits = (half >> 12) | 0x3FF0000000000000
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value - 1.0


@functools.lru_cache(maxsize=limits.ROUTING_KEY_CACHE_ENTRIES)
def key_position(routing_key: str) -> float:
    """Where an event's routing key falls in [0, 1)."""
    return _to_unit_interval(murmur3_128(routing_key.encode("utf-16-le", "surrogatepass"), ROUTING_SEED)[0])


def table_key_position(primary_key: bytes) -> float:
    """Where a key-value table's primary key falls in [0, 1)."""
    return _to_unit_interval(murmur3_128(primary_key, TABLE_SEED)[0])


def attribute_uuid(name: str) -> uuid.UUID:
    """Id of a named segment attribute (naming §3)."""
    h1, h2 = murmur3_128(name.encode("utf-16-le"), 817748169)
    return uuid.UUID(bytes=struct.pack("<QQ", h1, h2))


REVISION_MARK: Final = uuid.UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
"""Attribute that holds a revisioned stream's mark (naming §3)."""
