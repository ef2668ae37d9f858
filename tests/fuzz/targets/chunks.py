"""Sections of chunk objects: headers behind a right checksum, and the blocks and footers after them."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.storage import chunks

DOCUMENTED = (CorruptionError, FormatVersionError)
KEY = "c3/a"
FIXED_BYTES = len(chunks.encode_header(chunks.SectionHeader(bytes(16), 0, "", 0, 0))) - 4


def run(data: bytes) -> None:
    """The input is a section without the header's checksum, which is put behind the name."""
    end = FIXED_BYTES + int.from_bytes(data[FIXED_BYTES - 2 : FIXED_BYTES], "big")
    raw = data[:end] + crc32c(data[:end]).to_bytes(4, "big") + data[end:]
    header, length = chunks.decode_header(raw, "fuzz")
    footer = length + chunks.stored_length(header.length)
    chunks.decode_blocks(KEY, length, raw[length:footer])
    chunks.decode_footer(raw[footer:], int.from_bytes(raw[length - 4 : length], "big"), header.length, "fuzz")


def seeds() -> Iterator[bytes]:
    for content in (b"", b"content"):
        header = chunks.SectionHeader(bytes(range(16)), 42, "scope/stream/0.#epoch.0", 1000, len(content))
        buffers, data_position, _ = chunks.encode_section(KEY, 0, header, content)
        raw = b"".join(bytes(buffer) for buffer in buffers)
        yield raw[: data_position - 4] + raw[data_position:]
