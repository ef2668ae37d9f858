"""The chunk format of Tier 2 (docs/design.md#tier-2; docs/formats/chunks.md).

An object is a run of sections, each a range of one segment::

    header:  magic "TRCH" | u8 version | u8 flags | 2 zero bytes | 16-byte cluster id | i64 segment id
             | i64 start offset | i64 length | u16 name length | name | u32 CRC32C of all before
    data:    blocks of 64 KiB (the last one shorter), each followed by u32 CRC32C
    footer:  magic "TRCF" | i64 length | u32 CRC32C of the footer and the header's CRC

A block's CRC32C continues that of the object's key and the block's position in the object, so bytes of another object
or position never pass. The CRCs are between the blocks, so one request reads and verifies any aligned range (docs/adr).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

BLOCK_BYTES: Final = 64 * 1024
BLOCK_STRIDE: Final = BLOCK_BYTES + 4
VERSION: Final = 1

_HEADER: Final = struct.Struct(">4sBB2x16sqqqH")
_FOOTER: Final = struct.Struct(">4sq")
_MAGIC: Final = b"TRCH"
_FOOTER_MAGIC: Final = b"TRCF"
FOOTER_BYTES: Final = _FOOTER.size + 4
HEADER_MAX_BYTES: Final = _HEADER.size + limits.SEGMENT_NAME_MAX_BYTES + 4
_BEGINS_EVENT: Final = 1


@dataclass(frozen=True, slots=True)
class SectionHeader:
    """The header of a section. ``begins_event``: an event begins at the first byte, for certain."""

    cluster_id: bytes
    segment_id: int
    segment_name: str
    start_offset: int
    length: int
    begins_event: bool = False


def _seed(key: str, position: int) -> int:
    return crc32c(position.to_bytes(8, "big"), crc32c(key.encode()))


def encode_header(header: SectionHeader) -> bytes:
    """Encode a section's header with its CRC."""
    name = header.segment_name.encode()
    flags = _BEGINS_EVENT if header.begins_event else 0
    data = _HEADER.pack(
        _MAGIC, VERSION, flags, header.cluster_id, header.segment_id, header.start_offset, header.length, len(name)
    )
    data += name
    return data + crc32c(data).to_bytes(4, "big")


def decode_header(data: Buffer, place: str) -> tuple[SectionHeader, int]:
    """Return a section's header at the start of `data`, and its length in bytes.

    Raises:
        CorruptionError: the data is not a header. FormatVersionError: a newer format.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise CorruptionError(place, "no chunk header")
    _, version, flags, cluster_id, segment_id, start, length, name_length = _HEADER.unpack_from(view)
    end = _HEADER.size + name_length
    if len(view) < end + 4 or int.from_bytes(view[end : end + 4], "big") != crc32c(view[:end]):
        raise CorruptionError(place, "chunk header CRC32C does not match")
    if version > VERSION:
        raise FormatVersionError(f"{place}: chunk version {version}, this program reads up to {VERSION}")
    if length < 0 or start < 0:
        raise CorruptionError(place, f"section of {length} bytes at {start}")
    try:
        name = bytes(view[_HEADER.size : end]).decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(place, "segment name is not UTF-8") from error
    return SectionHeader(cluster_id, segment_id, name, start, length, bool(flags & _BEGINS_EVENT)), end + 4


def header_before(data: Buffer) -> SectionHeader | None:
    """Return the header that ends where `data` ends; None when there is none, or a damaged one.

    `data` may begin within what is before it. The last place is taken at which a header may begin: one that begins
    earlier and ends there, too, would have this one in its name.
    """
    view = memoryview(data)
    raw = bytes(view)
    at = raw.rfind(_MAGIC)
    while at >= 0:
        try:
            header, length = decode_header(view[at:], "")
            if at + length == len(view):
                return header
        except (CorruptionError, FormatVersionError):
            pass  # these four bytes are in a name, or in data before the header
        at = raw.rfind(_MAGIC, 0, at)
    return None


def begins_event(data: Buffer, cluster_id: bytes, length: int) -> bool:
    """Return whether a section of that length, whose header ends where `data` ends, says that an event begins there."""
    header = header_before(data)
    return (
        header is not None
        and header.begins_event
        and (header.cluster_id, header.length) == (cluster_id, length)
    )


def encode_section(key: str, position: int, header: SectionHeader, data: Buffer) -> tuple[list[Buffer], int, int]:
    """Encode one section that begins at `position` of object `key`.

    Returns (buffers to write, position of the data, position after the section). The data is not copied.
    """
    if len(data) != header.length:
        raise ValueError(f"{len(data)} bytes of data for a section of {header.length}")
    head = encode_header(header)
    data_position = position + len(head)
    buffers: list[Buffer] = [head]
    view = memoryview(data)
    block_position = data_position
    for start in range(0, len(view), BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        buffers.append(block)
        buffers.append(crc32c(block, _seed(key, block_position)).to_bytes(4, "big"))
        block_position += len(block) + 4
    footer = _FOOTER.pack(_FOOTER_MAGIC, header.length)
    buffers.append(footer + crc32c(footer, int.from_bytes(head[-4:], "big")).to_bytes(4, "big"))
    return buffers, data_position, block_position + FOOTER_BYTES


def section_length(name: str, length: int) -> int:
    """Return the bytes of an object that a section of `length` bytes of a segment of that name occupies."""
    return _HEADER.size + len(name.encode()) + 4 + stored_length(length) + FOOTER_BYTES


def stored_length(length: int) -> int:
    """Return the bytes that `length` bytes of data occupy with their block CRCs."""
    return length + 4 * -(-length // BLOCK_BYTES)


def block_range(data_position: int, data_length: int, offset: int, length: int) -> tuple[int, int, int]:
    """Return the object range that holds data[offset:offset+length] in whole blocks.

    Returns (position in the object, bytes to read, offset of the first block in the data).
    """
    if not 0 <= offset <= offset + length <= data_length:
        raise ValueError(f"range {offset}+{length} of {data_length}")
    first = offset // BLOCK_BYTES
    block_end = min(-(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES, data_length)
    first_offset = first * BLOCK_BYTES
    return data_position + first * BLOCK_STRIDE, stored_length(block_end - first_offset), first_offset


def decode_blocks(key: str, position: int, raw: Buffer) -> list[memoryview]:
    """Return the verified data blocks of a range of `block_range`; views of `raw`.

    Raises:
        CorruptionError: a block's CRC32C does not match; the text names object and position.
    """
    view = memoryview(raw)
    blocks = []
    at = 0
    while at < len(view):
        end = min(at + BLOCK_BYTES, len(view) - 4)
        if end <= at:
            raise CorruptionError(f"object {key} at {position + at}", "block is cut off")
        block = view[at:end]
        if crc32c(block, _seed(key, position + at)) != int.from_bytes(view[end : end + 4], "big"):
            raise CorruptionError(f"object {key} at {position + at}", "block CRC32C does not match")
        blocks.append(block)
        at = end + 4
    return blocks


def decode_footer(raw: Buffer, header_crc: int, length: int, place: str) -> None:
    """Check a section's footer. Raises CorruptionError."""
    view = memoryview(raw)[:FOOTER_BYTES]
    expected = _FOOTER.pack(_FOOTER_MAGIC, length)
    expected += crc32c(expected, header_crc).to_bytes(4, "big")
    if bytes(view) != expected:
        raise CorruptionError(place, "chunk footer does not match")
