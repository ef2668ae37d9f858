"""Format of one page of the attribute index (docs/design.md#attributes; docs/formats/attributes.md).

A page is ``header | entries | CRC32C``, at most ``limits.ATTRIBUTE_PAGE_MAX_BYTES`` long, all integers big-endian. The
header repeats the page's own offset in the attribute segment, so that bytes read from a wrong place never pass as a
page. Pages are immutable, and children always lie before their parents.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"TLAP"
VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBBHIQ")  # magic, version, kind, key length, count, offset of the page
_CRC: Final = struct.Struct(">I")
_CHILD: Final = struct.Struct(">QHQ")  # offset, length, lowest offset in the subtree
_VALUE: Final = struct.Struct(">q")

PAGE_OVERHEAD_BYTES: Final = _HEADER.size + _CRC.size
LEAF_VALUE_BYTES: Final = _VALUE.size
INDEX_VALUE_BYTES: Final = _CHILD.size


class PageKind(enum.IntEnum):
    """What the entries of a page are."""

    LEAF = 1
    INDEX = 2


_KIND_AT: Final = 5  # in the header
_INDEX_KIND: Final = bytes([PageKind.INDEX])


class Child(NamedTuple):
    """Where a page is, and the lowest offset of any page in the subtree below (and including) it."""

    offset: int
    length: int
    lowest: int


@dataclass(frozen=True, slots=True)
class Page:
    """A verified page: `count` entries of `key_length` + `value_length` bytes, sorted by key."""

    kind: PageKind
    key_length: int
    value_length: int
    count: int
    offset: int
    length: int
    entries: memoryview

    def key(self, index: int) -> bytes:
        """Key of an entry."""
        start = index * (self.key_length + self.value_length)
        return bytes(self.entries[start : start + self.key_length])

    def attribute(self, index: int) -> int:
        """Value of a leaf entry."""
        start = index * (self.key_length + self.value_length) + self.key_length
        return unpack_attribute(self.entries[start : start + LEAF_VALUE_BYTES])

    def child(self, index: int) -> Child:
        """Value of an index entry."""
        return Child._make(
            _CHILD.unpack_from(self.entries, index * (self.key_length + self.value_length) + self.key_length)
        )

    def lowest_offsets(self) -> list[int]:
        """For each entry of an index page, the lowest offset in its subtree."""
        return _lowest_offsets(self.entries, self.key_length)


class PageBytes:
    """A page's bytes in memory. Lookups share what they decode of them; updates verify them each time."""

    __slots__ = ("_decoded", "data")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self._decoded: Page | None = None

    @property
    def is_index(self) -> bool:
        """Whether its header says that it is a page above leaves; nothing is verified."""
        return self.data[_KIND_AT : _KIND_AT + 1] == _INDEX_KIND

    def page(self, key_length: int, offset: int, place: str, *, verify: bool) -> Page:
        """Return the page, verified now or by an earlier call. Raises as `decode_page`."""
        if verify or self._decoded is None:
            self._decoded = decode_page(self.data, key_length, offset, len(self.data), place)
        return self._decoded


def value_bytes(kind: PageKind) -> int:
    """Return the length of an entry's value."""
    return LEAF_VALUE_BYTES if kind is PageKind.LEAF else INDEX_VALUE_BYTES


def max_entries(kind: PageKind, key_length: int) -> int:
    """Return how many entries fit into a page."""
    room = limits.ATTRIBUTE_PAGE_MAX_BYTES - PAGE_OVERHEAD_BYTES
    return room // (key_length + value_bytes(kind))


def pack_attribute(value: int) -> bytes:
    """Return the value part of a leaf entry."""
    return _VALUE.pack(value)


def unpack_attribute(packed: Buffer) -> int:
    """Return the value that `pack_attribute` packed."""
    return int.from_bytes(packed, "big", signed=True)


def pack_child(child: Child) -> bytes:
    """Return the value part of an index entry."""
    return _CHILD.pack(*child)


def lowest_offset(kind: PageKind, entries: Buffer, key_length: int, offset: int) -> int:
    """Return the lowest offset in the subtree of a page that is written at `offset`.

    A leaf is its own subtree. The entries of an index page hold the lowest offsets of its children, so that no page
    has to be read (docs/design.md#attributes).
    """
    if kind is PageKind.LEAF:
        return offset
    return min(_lowest_offsets(entries, key_length))


def _lowest_offsets(entries: Buffer, key_length: int) -> list[int]:
    skipped = key_length + INDEX_VALUE_BYTES - 8
    return [lowest for (lowest,) in struct.iter_unpack(f">{skipped}xQ", entries)]


def page_parts(kind: PageKind, key_length: int, entries: Buffer, offset: int) -> tuple[bytes, Buffer, bytes]:
    """Return header, entries and CRC32C of a page that is written at `offset` of the attribute segment."""
    count, rest = divmod(len(entries), key_length + value_bytes(kind))
    if rest or not 0 < count <= max_entries(kind, key_length):
        raise ValueError(f"{len(entries)} bytes are not a valid number of entries of a page of kind {kind.name}")
    header = _HEADER.pack(MAGIC, VERSION, kind, key_length, count, offset)
    return header, entries, _CRC.pack(crc32c(entries, crc32c(header)))


def decode_page(data: Buffer, key_length: int, offset: int, length: int, place: str) -> Page:
    """Verify the bytes read from [offset, offset + length) of the attribute segment that `place` names.

    Raises:
        CorruptionError: they are not the page that was written there.
        FormatVersionError: a newer program wrote it.
    """
    where = f"{place}, attribute page at {offset}"
    if len(data) != length or length <= PAGE_OVERHEAD_BYTES:
        raise CorruptionError(where, f"{len(data)} bytes instead of a page of {length}")
    view = memoryview(data)
    magic, version, kind, stored_key_length, count, stored_offset = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise CorruptionError(where, f"magic {magic.hex()}")
    if version > VERSION:
        raise FormatVersionError(f"{where} has format {version}, this program reads up to {VERSION}")
    if crc32c(view[: -_CRC.size]) != _CRC.unpack_from(view, length - _CRC.size)[0]:
        raise CorruptionError(where, "CRC32C does not match")
    if kind not in (PageKind.LEAF, PageKind.INDEX) or stored_key_length != key_length or stored_offset != offset:
        raise CorruptionError(where, f"kind {kind}, keys of {stored_key_length} bytes, written at {stored_offset}")
    page_kind = PageKind(kind)
    entry_bytes = key_length + value_bytes(page_kind)
    if count == 0 or count * entry_bytes != length - PAGE_OVERHEAD_BYTES:
        raise CorruptionError(where, f"{count} entries of {entry_bytes} bytes in {length} bytes")
    entries = view[_HEADER.size : -_CRC.size]
    return Page(page_kind, key_length, value_bytes(page_kind), count, offset, length, entries)
