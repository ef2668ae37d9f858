"""The routing hash gives the Java client's numbers (docs/protocol/naming.md#routing)."""

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.hashing import (
    REVISION_MARK,
    key_position,
    murmur3_128,
    table_key_position,
)


@pytest.mark.parametrize(
    ("key", "position"),
    [
        ("", 0.24117842791623523),
        ("a", 0.9433912753816884),
        ("key", 0.8449093464660018),
        ("hello", 0.658716230571337),
        ("0", 0.8056356837424186),
    ],
)
def test_check_values_of_the_routing_hash(key: str, position: float) -> None:
    assert key_position(key) == position


def test_mark_attribute_is_derived_from_its_name() -> None:
    """A named attribute's id is a hash of its name (docs/protocol/naming.md#segment-attributes)."""
    halves = murmur3_128("RevisionStreamClientMark".encode("utf-16-le"), 817748169)
    assert uuid.UUID(bytes=struct.pack("<QQ", *halves)) == REVISION_MARK


def test_published_vectors_of_the_hash() -> None:
    assert murmur3_128(b"", 0) == (0, 0)
    # SMHasher's "The quick brown fox": 16-byte blocks and a tail
    assert murmur3_128(b"The quick brown fox jumps over the lazy dog", 0) == (0xE34BBC7BBC071B6C, 0x7A433CA9C49A9347)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_positions_lie_in_the_key_space(key: str) -> None:
    assert 0.0 <= key_position(key) < 1.0
    assert 0.0 <= table_key_position(key.encode()) < 1.0
