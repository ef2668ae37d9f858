"""Routing of keys: the hash that decides which segment an event goes to (naming §2).

It must give the same numbers as the Java client, else two writers would order one key in two segments.
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Final

from tailrace.common import limits

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
ROUTING_SEED: Final = 1741865571
TABLE_SEED: Final = -2020233499


def _rotl(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & _MASK


def _mix_k1(k1: int) -> int:
    return _rotl(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k2: int) -> int:
    return _rotl(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _final_mix(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)


def murmur3_128(data: bytes, seed: int) -> tuple[int, int]:
    """MurmurHash3 x64 128: the two unsigned halves of the digest.

    `seed` is a signed 32-bit number, sign-extended to 64 bits as the Java library does.
    """
    h1 = h2 = seed & _MASK
    whole = len(data) & ~15
    for k1, k2 in struct.iter_unpack("<QQ", data[:whole]):
        h1 = ((_rotl(h1 ^ _mix_k1(k1), 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 = ((_rotl(h2 ^ _mix_k2(k2), 31) + h1) * 5 + 0x38495AB5) & _MASK
    rest = data[whole:]
    h2 ^= _mix_k2(int.from_bytes(rest[8:], "little"))
    h1 ^= _mix_k1(int.from_bytes(rest[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _final_mix(h1), _final_mix(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK


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
