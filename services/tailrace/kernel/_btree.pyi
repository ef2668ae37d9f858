from collections.abc import Iterable

from typing_extensions import Buffer

KEY_LENGTH_MAX: int
VALUE_LENGTH_MAX: int

def search(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int: ...
def find_exact(entries: Buffer, key_length: int, value_length: int, count: int, key: bytes) -> int: ...
def lookup_many(
    entries: Buffer, key_length: int, value_length: int, count: int, sorted_keys: Iterable[bytes]
) -> list[bytes | None]: ...
def merge(
    entries: Buffer, key_length: int, value_length: int, count: int, updates: Iterable[tuple[bytes, bytes | None]]
) -> bytes: ...
