"""Entries of table segments behind a right checksum, also cut off and one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.segmentstore.tables.reader import _records_in
from tailrace.segmentstore.tables.record import HEADER_BYTES, NO_CHAIN, OWN_OFFSET, decode_record, encode_record

DOCUMENTED = (CorruptionError, FormatVersionError)
HEAD_BYTES = HEADER_BYTES - 4


def run(data: bytes) -> None:
    """The input is an entry without its checksum, which covers as much as the lengths in the head say."""
    head, body = data[:HEAD_BYTES], data[HEAD_BYTES:]
    length = int.from_bytes(head[3:5], "big") + int.from_bytes(head[5:9], "big")
    record = head + crc32c(body[:length], crc32c(head)).to_bytes(4, "big") + body
    found = decode_record(record, 70, "fuzz")
    records = list(_records_in(record, 70, "fuzz"))
    assert records[0] == found
    assert encode_record(found.key, found.value, found.version, found.chain, shared=found.shared)


def seeds() -> Iterator[bytes]:
    for value, version, chain in ((b"value", OWN_OFFSET, NO_CHAIN), (None, 3, 5), (b"", 9, 8)):
        record = encode_record(b"key", value, version, chain, shared=chain != NO_CHAIN)
        yield record[:HEAD_BYTES] + record[HEADER_BYTES:]
    whole = encode_record(b"key", b"value", OWN_OFFSET, NO_CHAIN, shared=False)
    yield whole[:HEAD_BYTES] + whole[HEADER_BYTES:] + whole
