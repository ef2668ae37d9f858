"""An attribute segment in memory that forgets what is truncated and refuses to read it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tailrace.segmentstore.attributes import IndexState, IndexUpdate, PageReader, update


class MemorySegment(PageReader):
    """Append-only bytes with a start offset; implements the `PageReader` port."""

    def __init__(self, key_length: int = 16) -> None:
        self.data = bytearray()
        self.start_offset = 0
        self.state = IndexState(key_length=key_length)
        self.reads: list[tuple[int, int]] = []
        self.appended_bytes = 0

    @property
    def place(self) -> str:
        return "attributes of test/segment"

    async def read(self, offset: int, length: int) -> bytes:
        assert self.start_offset <= offset, f"read at {offset}, truncated at {self.start_offset}"
        assert offset + length <= self.start_offset + len(self.data)
        self.reads.append((offset, length))
        return bytes(self.data[offset - self.start_offset : offset - self.start_offset + length])

    def truncate(self, offset: int) -> None:
        del self.data[: offset - self.start_offset]
        self.start_offset = offset

    async def apply(self, changes: Iterable[tuple[bytes, int | None]], *, truncate: bool = True) -> IndexUpdate:
        """Do what the container does with a batch: append, commit the root, truncate."""
        result = await update(self.state, sorted(changes), self)
        assert result.state.length == self.state.length + len(result.data)
        self.data += result.data
        self.appended_bytes += len(result.data)
        self.state = result.state
        if truncate:
            self.truncate(self.state.start_offset)
        return result

    @property
    def index_bytes(self) -> int:
        return self.state.length - self.state.start_offset


@pytest.fixture
def segment() -> MemorySegment:
    return MemorySegment()


@pytest.fixture(scope="session")
def segment_type() -> type[MemorySegment]:
    return MemorySegment
