"""Search and merge over sorted fixed-size entries (key, then value), in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | memoryview


def search(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int:
    """Index of the last entry whose key is at most `key`; -1 when there is none."""
    stride = key_length + value_length
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if bytes(entries[middle * stride : middle * stride + key_length]) <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


def find_exact(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int:
    """Index of the entry with that key; -1 when there is none."""
    index = search(entries, key_length, value_length, count, key)
    stride = key_length + value_length
    if index >= 0 and entries[index * stride : index * stride + key_length] == key:
        return index
    return -1


def lookup_many(entries: Buffer, key_length: int, value_length: int, count: int, keys: Sequence[bytes]) -> list[int]:
    """`find_exact` of every key."""
    return [find_exact(entries, key_length, value_length, count, key) for key in keys]


def merge(
    entries: Buffer, key_length: int, value_length: int, count: int, updates: Sequence[tuple[bytes, bytes | None]]
) -> bytes:
    """The entries after the updates (sorted, unique keys; None removes)."""
    stride = key_length + value_length
    parts: list[Buffer] = []
    position = 0
    for key, value in updates:
        index = search(entries, key_length, value_length, count, key)
        found = index >= 0 and entries[index * stride : index * stride + key_length] == key
        parts.append(entries[position : (index if found else index + 1) * stride])
        position = (index + 1) * stride
        if value is not None:
            parts.append(key + value)
    parts.append(entries[position : count * stride])
    return b"".join(parts)
