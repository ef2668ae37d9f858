"""Records of the pipelines: MessagePack behind magic, version, length and CRC32C (docs/formats/spark.md). Pure."""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from tailrace.common.errors import CorruptionError, FormatVersionError

T = TypeVar("T")
HEADER: Final = struct.Struct(">4sBII")
"""Magic, version, length of the payload, CRC32C of version and payload."""


def pack(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return the bytes of a record."""
    return HEADER.pack(magic, version, len(payload), _checksum(version, payload)) + payload


def unpack(
    magic: bytes, version_max: int, data: bytes, place: str, decoder: msgspec.msgpack.Decoder[T]
) -> T:
    """Return the decoded payload of a record.

    Raises:
        CorruptionError: it is damaged. FormatVersionError: a newer program wrote it.
    """
    if len(data) < HEADER.size:
        raise CorruptionError(place, f"a record of {len(data)} bytes")
    found, version, length, checksum = HEADER.unpack_from(data)
    payload = data[HEADER.size :]
    if found != magic or length != len(payload) or checksum != _checksum(version, payload):
        raise CorruptionError(place, "magic, length or checksum of the record is wrong")
    if version > version_max:
        raise FormatVersionError(f"{place}: the record has version {version}, this program reads up to {version_max}")
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(place, str(error)) from error


def _checksum(version: int, payload: bytes) -> int:
    return crc32c(payload, crc32c(bytes((version,))))
