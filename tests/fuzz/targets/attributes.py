"""Pages of the attribute index behind a right checksum, and what lookups do with them."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c, lookup_many
from tailrace.segmentstore.attributes import page
from tailrace.segmentstore.attributes.index import route
from tailrace.segmentstore.attributes.page import Child, PageKind

DOCUMENTED = (CorruptionError, FormatVersionError)
OFFSET = 70
KEYS = {2: [b"\0\1", b"\0\3"], 16: [bytes(16), bytes(range(16)), b"\xff" * 16]}
"""Keys that are looked up, sorted, by key length."""


def run(data: bytes) -> None:
    """The first byte chooses the key length; the rest is a page without its checksum."""
    key_length = (2, 16)[data[0] & 1] if data else 16
    raw = data[1:] + crc32c(data[1:]).to_bytes(4, "big")
    found = page.decode_page(raw, key_length, OFFSET, len(raw), "fuzz")
    keys = KEYS[key_length]
    for index in range(found.count):
        found.key(index)
    if found.kind is PageKind.LEAF:
        lookup_many(found.entries, found.key_length, found.value_length, found.count, keys)
        found.attribute(found.count - 1)
    else:
        for child, _, _ in route(found, keys):
            found.child(child)
        assert len(found.lowest_offsets()) == found.count


def seeds() -> Iterator[bytes]:
    for choice, (length, keys) in enumerate(KEYS.items()):
        leaf = b"".join(key + page.pack_attribute(7) for key in keys)
        index = b"".join(key + page.pack_child(Child(number, 1, number)) for number, key in enumerate(keys))
        for kind, entries in ((PageKind.LEAF, leaf), (PageKind.INDEX, index)):
            header, body, _ = page.page_parts(kind, length, entries, OFFSET)
            yield bytes([choice]) + header + bytes(body)
