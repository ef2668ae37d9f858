"""Hash routing keys to positions in the key space, which select an event's segment (docs/protocol/naming.md#routing).

The results must equal the Java client's, else two writers would write one key to two segments.
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
    """Return 52 bits of the hash as the mantissa of a double in [1, 2), minus 1."""
    bits = (half >> 12) | 0x3FF0000000000000
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value - 1.0


@functools.lru_cache(maxsize=limits.ROUTING_KEY_CACHE_ENTRIES)
def key_position(routing_key: str) -> float:
    """Return the position of an event's routing key in [0, 1)."""
    return _to_unit_interval(murmur3_128(routing_key.encode("utf-16-le", "surrogatepass"), ROUTING_SEED)[0])


def table_key_position(primary_key: bytes) -> float:
    """Return the position of a key-value table's primary key in [0, 1)."""
    return _to_unit_interval(murmur3_128(primary_key, TABLE_SEED)[0])


REVISION_MARK: Final = uuid.UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
"""The attribute that holds a revisioned stream's mark (docs/protocol/naming.md#segment-attributes)."""
