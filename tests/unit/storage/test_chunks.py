"""The chunk format: every byte that is read is verified, wherever it lies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import CorruptionError
from tailrace.kernel import crc32c
from tailrace.storage import chunks

HEADER = chunks.SectionHeader(b"0123456789abcdef", 42, "scope/stream/0.#epoch.0", 1000, 0)


def section(
    data: bytes, position: int = 0, key: str = "c0/k", *, begins_event: bool = False, name: str = HEADER.segment_name
) -> tuple[bytes, int]:
    header = chunks.SectionHeader(HEADER.cluster_id, 42, name, 1000, len(data), begins_event)
    buffers, data_position, end = chunks.encode_section(key, position, header, data)
    raw = b"".join(buffers)
    assert len(raw) == end - position
    return raw, data_position


@given(st.integers(0, 3 * chunks.BLOCK_BYTES), st.integers(0, 1 << 20), st.data())
def test_any_range_reads_back(length: int, position: int, data: st.DataObject) -> None:
    content = bytes(range(251)) * (length // 251 + 1)
    content = content[:length]
    raw, data_position = section(content, position)
    offset = data.draw(st.integers(0, length))
    wanted = data.draw(st.integers(0, length - offset))
    at, stored, first = chunks.block_range(data_position, length, offset, wanted)
    blocks = chunks.decode_blocks("c0/k", at, raw[at - position : at - position + stored])
    assert b"".join(blocks)[offset - first :][:wanted] == content[offset : offset + wanted]


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_flipped_bit_is_found_and_placed(content: bytes, data: st.DataObject) -> None:
    raw, position = section(content)
    stored = bytearray(raw[position : position + chunks.stored_length(len(content))])
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match=f"object c0/k at {position}"):
        chunks.decode_blocks("c0/k", position, stored)


def test_bytes_of_another_object_or_place_do_not_pass() -> None:
    raw, position = section(b"x" * 100)
    stored = raw[position : position + 104]
    assert b"".join(chunks.decode_blocks("c0/k", position, stored)) == b"x" * 100
    for key, at in (("c0/l", position), ("c0/k", position + 1)):
        with pytest.raises(CorruptionError):
            chunks.decode_blocks(key, at, stored)


@given(st.data())
def test_header_and_footer_are_verified(data: st.DataObject) -> None:
    raw, position = section(b"content")
    header, length = chunks.decode_header(raw, "there")
    assert (header.segment_id, header.segment_name, header.start_offset, header.length) == (
        42,
        HEADER.segment_name,
        1000,
        7,
    )
    assert length == position
    footer_at = position + chunks.stored_length(7)
    header_crc = int.from_bytes(raw[position - 4 : position], "big")
    chunks.decode_footer(raw[footer_at:], header_crc, 7, "there")
    damaged = bytearray(raw)
    bit = data.draw(st.integers(0, 8 * position - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="there"):
        chunks.decode_header(damaged, "there")
    damaged = bytearray(raw)
    bit = data.draw(st.integers(8 * footer_at, 8 * len(raw) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="there"):
        chunks.decode_footer(damaged[footer_at:], header_crc, 7, "there")


def test_the_vector_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/formats/chunks.md").read_text()
    vectors = re.findall(r"Vector section[^\n]*?:.*?```text\n(.*?)```", text, re.DOTALL)
    assert [bytes.fromhex(vector) for vector in vectors] == [
        section(b"hello")[0],
        section(b"hello", begins_event=True)[0],
    ]


@given(st.binary(max_size=200), st.booleans(), st.sampled_from([HEADER.segment_name, "TRCH/TRCH/0.#epoch.0"]))
def test_a_header_is_found_from_its_end(before: bytes, begins_event: bool, name: str) -> None:
    raw, position = section(b"content", begins_event=begins_event, name=name)
    earlier = section(before)[0]
    header = chunks.header_before(earlier + raw[:position])
    assert header is not None
    assert (header.segment_name, header.length, header.begins_event) == (name, 7, begins_event)
    assert chunks.begins_event(earlier + raw[:position], HEADER.cluster_id, 7) == begins_event
    assert not chunks.begins_event(earlier + raw[:position], HEADER.cluster_id, 8)
    assert not chunks.begins_event(earlier + raw[:position], bytes(16), 7)
    for other in (earlier, raw[: position - 1], raw[: position + 1], b"", earlier + raw[1:position]):
        assert chunks.header_before(other) is None


@given(st.data())
def test_a_damaged_header_says_nothing(data: st.DataObject) -> None:
    raw, position = section(b"content", begins_event=True)
    damaged = bytearray(raw[:position])
    bit = data.draw(st.integers(0, 8 * position - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    assert chunks.header_before(damaged) is None


@pytest.mark.parametrize(
    ("at", "damage", "reason"),
    [
        (50, b"\xff", "segment name is not UTF-8"),
        (40, b"\xff", "section of -"),
        (32, b"\xff", "section of 0 bytes at -"),
    ],
)
def test_a_header_that_makes_no_sense_is_corruption_although_its_checksum_matches(
    at: int, damage: bytes, reason: str
) -> None:
    raw = bytearray(chunks.encode_header(HEADER)[:-4])
    raw[at : at + 1] = damage
    with pytest.raises(CorruptionError, match=f"corruption in here: {reason}"):
        chunks.decode_header(bytes(raw) + crc32c(raw).to_bytes(4, "big"), "here")
