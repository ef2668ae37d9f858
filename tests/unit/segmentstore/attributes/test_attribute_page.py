"""Format of attribute pages: test vectors of docs/formats/attributes.md, limits, damage."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.segmentstore.attributes import IndexState, PageReader, get_many
from tailrace.segmentstore.attributes.page import (
    Buffer,
    Child,
    PageKind,
    decode_page,
    lowest_offset,
    max_entries,
    pack_attribute,
    pack_child,
    page_parts,
)

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "attributes.md"


def vectors() -> dict[str, bytes]:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.findall(r"Vector ([a-z-]+):[^`]*(?:`[^`\n]*`[^`]*)*```text\n(.*?)```", text, re.DOTALL)
    return {name: bytes.fromhex("".join(body.split())) for name, body in found}


def encode_page(kind: PageKind, key_length: int, entries: Buffer, offset: int) -> bytes:
    return b"".join(page_parts(kind, key_length, entries, offset))


def test_leaf_page_is_the_documented_bytes() -> None:
    entries = b"\0" * 15 + b"\x01" + pack_attribute(5) + b"\xff" * 16 + pack_attribute(-2)
    assert encode_page(PageKind.LEAF, 16, entries, 4096) == vectors()["leaf"]


def test_index_page_is_the_documented_bytes() -> None:
    entries = b"ab" + pack_child(Child(100, 124, 90)) + b"cd" + pack_child(Child(224, 1000, 224))
    assert encode_page(PageKind.INDEX, 2, entries, 1224) == vectors()["index"]


def test_documented_pages_are_read() -> None:
    leaf = decode_page(vectors()["leaf"], 16, 4096, len(vectors()["leaf"]), "a/b/0")
    assert (leaf.kind, leaf.count, leaf.key(0)[-1], leaf.attribute(0), leaf.attribute(1)) == (1, 2, 1, 5, -2)
    index = decode_page(vectors()["index"], 2, 1224, len(vectors()["index"]), "a/b/0")
    assert (index.key(1), index.child(0), index.lowest_offsets()) == (b"cd", Child(100, 124, 90), [90, 224])


def test_pages_hold_about_a_thousand_entries() -> None:
    assert limits.ATTRIBUTE_PAGE_MAX_BYTES < 32 * 1024
    assert max_entries(PageKind.LEAF, 16) == 1364
    assert max_entries(PageKind.INDEX, 16) == 963
    assert max_entries(PageKind.LEAF, 256) == 124
    assert max_entries(PageKind.INDEX, 256) == 119


def test_lowest_offset_of_an_index_page_is_that_of_its_subtrees() -> None:
    entries = b"a" + pack_child(Child(500, 30, 60)) + b"b" + pack_child(Child(600, 30, 40))
    assert lowest_offset(PageKind.INDEX, entries, 1, 900) == 40
    assert lowest_offset(PageKind.LEAF, b"a" + pack_attribute(1), 1, 900) == 900


@given(bit=st.integers(0, 8 * 72 - 1))
def test_every_flipped_bit_is_corruption_with_its_place(bit: int) -> None:
    page = bytearray(encode_page(PageKind.LEAF, 16, b"k" * 16 + pack_attribute(7) + b"l" * 16 + pack_attribute(8), 77))
    assert len(page) == 72
    page[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises((CorruptionError, FormatVersionError), match="scope/stream/0, attribute page at 77"):
        decode_page(bytes(page), 16, 77, 72, "scope/stream/0")


def test_intact_page_of_another_place_is_corruption() -> None:
    page = encode_page(PageKind.LEAF, 16, b"k" * 16 + pack_attribute(7), 77)
    with pytest.raises(CorruptionError, match="written at 77"):
        decode_page(page, 16, 177, len(page), "x")
    with pytest.raises(CorruptionError, match="instead of a page"):
        decode_page(page[:-1], 16, 77, len(page), "x")


@pytest.mark.parametrize(("kind", "count", "key_length"), [(1, 2, 16), (3, 1, 16), (1, 0, 16), (1, 1, 8)])
def test_well_summed_page_with_wrong_structure_is_corruption(kind: int, count: int, key_length: int) -> None:
    page = bytearray(encode_page(PageKind.LEAF, 16, b"k" * 16 + pack_attribute(7), 77))
    page[5] = kind
    page[6:8] = key_length.to_bytes(2, "big")
    page[8:12] = count.to_bytes(4, "big")
    page[-4:] = crc32c(bytes(page[:-4])).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match="attribute page at 77"):
        decode_page(bytes(page), 16, 77, len(page), "x")


def test_newer_version_is_refused() -> None:
    page = bytearray(encode_page(PageKind.LEAF, 16, b"k" * 16 + pack_attribute(7), 77))
    page[4] = 2
    with pytest.raises(FormatVersionError, match="format 2"):
        decode_page(bytes(page), 16, 77, len(page), "x")


def test_page_without_or_with_too_many_entries_is_never_written() -> None:
    with pytest.raises(ValueError, match="not a valid number of entries"):
        encode_page(PageKind.LEAF, 16, b"", 0)
    with pytest.raises(ValueError, match="not a valid number of entries"):
        encode_page(PageKind.LEAF, 16, bytes(24 * 1365), 0)


class _OnePage(PageReader):
    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def place(self) -> str:
        return "scope/stream/1"

    async def read(self, offset: int, length: int) -> bytes:
        return self.data[:length]


@pytest.mark.parametrize("child", [Child(224, 100, 224), Child(300, 50, 300), Child(10, 100, 10), Child(150, 0, 150)])
def test_child_outside_the_live_part_before_its_parent_is_corruption(child: Child) -> None:
    page = encode_page(PageKind.INDEX, 1, b"a" + pack_child(child), 300)
    state = IndexState(300, len(page), start_offset=100, length=300 + len(page), key_length=1)
    if child == Child(224, 100, 224):
        match = r"page at 300: child at \[224, \+100\)"
    else:
        match = "page at 300: child"
    with pytest.raises(CorruptionError, match=match):
        asyncio.run(get_many(state, [b"b"], _OnePage(page)))


@pytest.mark.parametrize("key_length", [0, 257])
def test_key_length_out_of_bounds_is_refused(key_length: int) -> None:
    with pytest.raises(BadRequestError, match="key length"):
        IndexState(key_length=key_length)
