"""Encodes one entry of a table segment (docs/design.md#table-segments; docs/formats/tables.md).

A record is ``header | key | value``. Its version is its own offset unless the header carries one: copies keep the
version of their original. Records are immutable, so a cache may keep them by (segment id, offset) for ever.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c

Buffer: TypeAlias = bytes | memoryview

MAGIC: Final = 0x54
FORMAT_VERSION: Final = 1
TOMBSTONE: Final = 1
SHARED: Final = 2
_FLAGS: Final = TOMBSTONE | SHARED
_HEADER: Final = struct.Struct(">BBBHIqqI")  # magic, format, flags, key and value length, version, chain, CRC32C
_HEAD: Final = struct.Struct(">BBBHIqq")
_CRC: Final = struct.Struct(">I")

HEADER_BYTES: Final = _HEADER.size
OWN_OFFSET: Final = -1
"""Version field of a record whose version is its own offset."""
NO_CHAIN: Final = -1


class Record(NamedTuple):
    """An entry at its offset.

    `value` is None for a tombstone. `chain` is the next entry of the same bucket or NO_CHAIN. `shared`: the bucket held
    other keys too when the record was written, so another record may lead to this one.
    """

    key: bytes
    value: bytes | None
    version: int
    offset: int
    chain: int
    shared: bool

    @property
    def length(self) -> int:
        """Return the bytes that the record occupies."""
        return record_bytes(self.key, self.value)


def record_bytes(key: bytes, value: bytes | None) -> int:
    """Return the length of an entry's record."""
    return HEADER_BYTES + len(key) + len(value or b"")


def encode_record(key: bytes, value: bytes | None, version: int, chain: int, *, shared: bool) -> bytes:
    """Encode a record; `version` is OWN_OFFSET or the explicit version of a copy."""
    flags = (TOMBSTONE if value is None else 0) | (SHARED if shared else 0)
    body = key if value is None else key + value
    head = _HEAD.pack(MAGIC, FORMAT_VERSION, flags, len(key), len(value or b""), version, chain)
    return head + _CRC.pack(crc32c(body, crc32c(head))) + body


def record_length(header: Buffer, place: str) -> int:
    """Return the length of the record that starts with these (at least HEADER_BYTES) bytes, without a CRC32C check.

    Raises:
        CorruptionError: no record starts here. FormatVersionError: a newer program wrote it.
    """
    magic, version, flags, key_length, value_length, _, _, _ = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise CorruptionError(place, f"not a table record: magic {magic:#x}")
    if version > FORMAT_VERSION:
        raise FormatVersionError(f"{place} has record format {version}, this program reads up to {FORMAT_VERSION}")
    tombstone_with_value = flags & TOMBSTONE and value_length
    if flags & ~_FLAGS or tombstone_with_value or key_length > limits.TABLE_KEY_MAX_BYTES:
        raise CorruptionError(place, f"not a table record: flags {flags}, key {key_length}, value {value_length} bytes")
    if value_length > limits.TABLE_VALUE_MAX_BYTES:
        raise CorruptionError(place, f"not a table record: value of {value_length} bytes")
    return int(HEADER_BYTES + key_length + value_length)


def decode_record(data: Buffer, offset: int, place: str) -> Record:
    """Return the verified record at the start of `data`, whose offset in the segment is `offset`.

    Raises:
        CorruptionError: it is damaged or cut short. FormatVersionError: a newer program wrote it.
    """
    where = f"{place}, table record at {offset}"
    if len(data) < HEADER_BYTES:
        raise CorruptionError(where, f"{len(data)} bytes are too short for a record")
    length = record_length(data, where)
    if len(data) < length:
        raise CorruptionError(where, f"{len(data)} bytes instead of a record of {length}")
    _, _, flags, key_length, _, version, chain, checksum = _HEADER.unpack_from(data)
    view = memoryview(data)
    if crc32c(view[HEADER_BYTES:length], crc32c(view[: _HEAD.size])) != checksum:
        raise CorruptionError(where, "CRC32C does not match")
    key = bytes(view[HEADER_BYTES : HEADER_BYTES + key_length])
    value = None if flags & TOMBSTONE else bytes(view[HEADER_BYTES + key_length : length])
    return Record(key, value, offset if version == OWN_OFFSET else version, offset, chain, bool(flags & SHARED))
