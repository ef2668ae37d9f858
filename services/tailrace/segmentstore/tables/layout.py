"""The two layouts of table segments: how keys map to attributes of the index.

See docs/design.md#table-segments, docs/protocol/wire.md#tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.segmentstore.api import SegmentProperties, core_attribute, is_core_attribute

TABLE_KEY_LENGTH: Final = core_attribute(1048576 + 16)
"""Core attribute of fixed-key tables: length of their keys in bytes (attribute ids may be one byte longer)."""

BUCKET_ID_BYTES: Final = 16
HashFunction: TypeAlias = Callable[[bytes], bytes]


def sha256_bucket(key: bytes) -> bytes:
    """Return the bucket of a key: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(key).digest()[:BUCKET_ID_BYTES]


@dataclass(frozen=True, slots=True)
class HashLayout:
    """Keys of any length; the attribute id is the key's bucket, whose entries form a chain."""

    hash_function: HashFunction = sha256_bucket

    @property
    def key_length(self) -> int:
        """Return 0: keys have any length."""
        return 0

    @property
    def has_tombstones(self) -> bool:
        """Return True: removals are written to the segment, so that delta reads see them."""
        return True

    def attribute_id(self, key: bytes) -> bytes:
        """Return the attribute of the key's bucket, never a core attribute."""
        bucket = self.hash_function(key)
        return b"\x81" + bucket[1:] if is_core_attribute(bucket) else bucket

    def check_key(self, key: bytes) -> None:
        """Raise BadRequestError if no entry may have this key."""
        if not 0 < len(key) <= limits.TABLE_KEY_MAX_BYTES:
            raise BadRequestError(f"table key of {len(key)} bytes, 1 to {limits.TABLE_KEY_MAX_BYTES} are allowed")


@dataclass(frozen=True, slots=True)
class FixedKeyLayout:
    """Keys of one length in byte order; the attribute id is the key.

    Keys of 16 bytes get a zero byte behind them: without it some of them would be ids of core attributes.
    """

    key_length: int

    @property
    def has_tombstones(self) -> bool:
        """Return False: removals only change the index."""
        return False

    @property
    def attribute_id_length(self) -> int:
        """Return the length of the ids that `attribute_id` returns."""
        return self.key_length + (self.key_length == BUCKET_ID_BYTES)

    def attribute_id(self, key: bytes) -> bytes:
        """Return the attribute of a key."""
        return key + b"\0" if self.key_length == BUCKET_ID_BYTES else key

    def check_key(self, key: bytes) -> None:
        """Raise BadRequestError unless the key has the table's key length."""
        if len(key) != self.key_length:
            raise BadRequestError(f"table key of {len(key)} bytes in a table with keys of {self.key_length}")


Layout: TypeAlias = HashLayout | FixedKeyLayout


def layout_for_new_table(key_length: int, hash_function: HashFunction = sha256_bucket) -> Layout:
    """Return the layout for a key length; 0 is the hash layout.

    Raises:
        BadRequestError: the key length is out of bounds.
    """
    if key_length == 0:
        return HashLayout(hash_function)
    if not 0 < key_length <= limits.ATTRIBUTE_KEY_MAX_BYTES:
        raise BadRequestError(f"key length {key_length} is not in 0..{limits.ATTRIBUTE_KEY_MAX_BYTES}")
    return FixedKeyLayout(key_length)


def layout_of(properties: SegmentProperties, hash_function: HashFunction = sha256_bucket) -> Layout:
    """Return the layout of an existing table segment.

    Raises:
        BadRequestError: the segment is not a table.
    """
    if not properties.kind.is_table:
        raise BadRequestError(f"segment {properties.name} is not a table segment")
    key_length = properties.core_attributes.get(TABLE_KEY_LENGTH, 0)
    return FixedKeyLayout(key_length) if key_length else HashLayout(hash_function)
