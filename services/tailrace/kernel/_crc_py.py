"""Checksums and zero detection in pure Python (the twin of ``_crc.pyx``; the checksum is the crc32c package's)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import crc32c as _package

from tailrace.kernel._buffers import byte_view

if TYPE_CHECKING:
    from typing_extensions import Buffer

_POLYNOMIAL = 0x82F63B78
_LIMIT = 1 << 32


def _check_crc(*values: int) -> None:
    for value in values:
        if not 0 <= value < _LIMIT:
            raise OverflowError(f"a checksum is an unsigned 32-bit number: {value}")


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC32C (Castagnoli) of the buffer, continuing from ``value``, the checksum of what came before it.

    Raises TypeError for what is no buffer, BufferError for one that is not contiguous, OverflowError for a bad value.
    """
    _check_crc(value)
    return _package.crc32c(byte_view(data), value)


def crc32c_portable(data: Buffer, value: int = 0) -> int:
    """The same checksum without the processor's instruction (the native module's table is tested through it)."""
    return crc32c(data, value)


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC polynomial; bit 31 is the coefficient of x^0."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    """Checksum of two parts joined, from the checksum of each and the length in bytes of the second.

    Raises ValueError for a length below 0 or from 2**63 on, OverflowError for a bad checksum.
    """
    _check_crc(first, second)
    if not 0 <= second_length < 1 << 63:
        raise ValueError(f"second_length must not be negative, and below 2**63: {second_length}")
    power, square = 0x80000000, 0x00800000  # x^0 and x^8
    while second_length:
        if second_length & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        second_length >>= 1
    return _multiply(power, first) ^ second


def is_zero(data: Buffer) -> bool:
    """Whether every byte is zero (true of nothing at all)."""
    view = byte_view(data)
    return view == bytes(len(view))


def zero_sectors(data: Buffer, sector_bytes: int = 512) -> list[int]:
    """Indexes of the whole sectors, counted from the start of the buffer, that hold zeros only.

    A last sector that is not whole is not reported. This distinguishes a torn frame from corruption
    (docs/design.md#tier-1). Raises ValueError if ``sector_bytes`` is below 1.
    """
    if sector_bytes < 1:
        raise ValueError(f"sector_bytes must be at least 1: {sector_bytes}")
    content = bytes(byte_view(data))
    zeros = bytes(sector_bytes)
    found = []
    position = content.find(zeros)
    while position >= 0:
        index = -(-position // sector_bytes)
        start = index * sector_bytes
        if content.startswith(zeros, start):
            found.append(index)
            start += sector_bytes
        position = content.find(zeros, start)
    return found
