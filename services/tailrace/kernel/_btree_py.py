"""Search and merge in a page of the B+Tree in pure Python (the twin of ``_btree.pyx``; docs/design.md#attributes).

An entries area is ``count`` entries of a fixed length, each a key and a value, sorted by the bytes of the key, without
gaps; what follows in the buffer is not looked at. Leaves and index pages differ in the meaning of the value only, which
belongs to the page format of the segment store. Raised by every function: ValueError for a key or value of the wrong
length and for an area that is not in its buffer, TypeError for keys and values that are no bytes objects. That the area
is sorted is not checked (pages carry a checksum); if it is not, results are wrong, but never out of bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.kernel._buffers import byte_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

KEY_LENGTH_MAX = 256
VALUE_LENGTH_MAX = 65536


def _open_area(entries: Buffer, key_length: int, value_length: int, count: int) -> memoryview:
    if not 1 <= key_length <= KEY_LENGTH_MAX:
        raise ValueError(f"a key has 1 to {KEY_LENGTH_MAX} bytes: {key_length}")
    if not 0 <= value_length <= VALUE_LENGTH_MAX:
        raise ValueError(f"a value has 0 to {VALUE_LENGTH_MAX} bytes: {value_length}")
    view = byte_view(entries)
    entry_length = key_length + value_length
    if not 0 <= count <= len(view) // entry_length:
        raise ValueError(f"{count} entries of {entry_length} bytes are not in {len(view)} bytes")
    return view[: count * entry_length]


def _check_key(key: object, key_length: int) -> None:
    if not isinstance(key, bytes):
        raise TypeError(f"a key is a bytes object, not {type(key).__name__}")
    if len(key) != key_length:
        raise ValueError(f"a key has {key_length} bytes here: {len(key)}")


def _check_value(value: object, value_length: int) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"a value is a bytes object or None, not {type(value).__name__}")
    if len(value) != value_length:
        raise ValueError(f"a value has {value_length} bytes here: {len(value)}")


def _first_above(area: memoryview, key_length: int, entry_length: int, low: int, key: bytes) -> int:
    """Index of the first entry from ``low`` on whose key is greater (the count of entries if there is none)."""
    high = len(area) // entry_length
    while low < high:
        middle = (low + high) // 2
        start = middle * entry_length
        if bytes(area[start : start + key_length]) > key:
            high = middle
        else:
            low = middle + 1
    return low


def search(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int:
    """Index of the last entry whose key is not above ``key``; -1 if all are."""
    area = _open_area(entries, key_length, value_length, count)
    _check_key(key, key_length)
    return _first_above(area, key_length, key_length + value_length, 0, key) - 1


def find_exact(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int:
    """Index of the entry with this key; -1 if there is none."""
    area = _open_area(entries, key_length, value_length, count)
    _check_key(key, key_length)
    entry_length = key_length + value_length
    index = _first_above(area, key_length, entry_length, 0, key) - 1
    start = index * entry_length
    return index if index >= 0 and area[start : start + key_length] == key else -1


def lookup_many(
    entries: Buffer, key_length: int, value_length: int, count: int, sorted_keys: Iterable[bytes]
) -> list[bytes | None]:
    """The values of many keys, None for those that have no entry. Raises ValueError if the keys do not ascend."""
    area = _open_area(entries, key_length, value_length, count)
    entry_length = key_length + value_length
    values: list[bytes | None] = []
    position = 0
    before = b""
    for key in sorted_keys:
        _check_key(key, key_length)
        if key < before:
            raise ValueError("the keys are not in ascending order")
        before = key
        position = _first_above(area, key_length, entry_length, position, key)
        end = position * entry_length
        found = position > 0 and area[end - entry_length : end - value_length] == key
        values.append(bytes(area[end - value_length : end]) if found else None)
    return values


def merge(
    entries: Buffer, key_length: int, value_length: int, count: int, updates: Iterable[tuple[bytes, bytes | None]]
) -> bytes:
    """The entries area after the updates: each sets the value of its key, or removes the entry if the value is None.

    Removing a key that has no entry does nothing. Raises ValueError if the keys of the updates do not strictly ascend.
    """
    area = _open_area(entries, key_length, value_length, count)
    entry_length = key_length + value_length
    parts: list[bytes | memoryview] = []
    position = 0
    before = b""
    for key, value in updates:
        _check_key(key, key_length)
        if key <= before:
            raise ValueError("the keys of the updates are not in strictly ascending order")
        before = key
        if value is not None:
            _check_value(value, value_length)
        index = _first_above(area, key_length, entry_length, position, key)
        kept = index
        if kept > position and area[(kept - 1) * entry_length :][:key_length] == key:
            kept -= 1
        parts.append(area[position * entry_length : kept * entry_length])
        position = index
        if value is not None:
            parts.append(key)
            parts.append(value)
    parts.append(area[position * entry_length :])
    return b"".join(parts)
