"""MurmurHash3 x64 128, the hash behind routing keys and the placement of segments.

See docs/protocol/naming.md#routing, docs/protocol/server.md#containers.
"""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


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
    """Return the two unsigned halves of the MurmurHash3 x64 128 digest.

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
