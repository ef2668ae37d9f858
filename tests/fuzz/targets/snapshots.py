"""Snapshots: whole objects, and bodies and tails in one with a right header; the checksum is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tailrace.common.errors import CorruptionError, DataLossError, FormatVersionError
from tailrace.kernel import crc32c
from tailrace.segmentstore.metadata import checkpoint
from tailrace.segmentstore.metadata.fields import ChunkRef
from tailrace.segmentstore.tier2.snapshot import Snapshot, SnapshotName
from targets.checkpoints import CONTAINER, SEQUENCE, a_state

DOCUMENTED = (CorruptionError, FormatVersionError, DataLossError)
KEY = SnapshotName(2, SEQUENCE, "0a0b").key(CONTAINER)
WHOLE, PARTS = b"\0", b"\1"


def run(data: bytes) -> None:
    """The first byte says what the rest is: an object without its checksum, or u16 length of the body, body, tail."""
    content = data[1:]
    if data[:1] != WHOLE:
        end = 2 + int.from_bytes(content[:2], "big")
        content = _with_header(content[2:end], content[end:])
    checksum = crc32c(content, crc32c(KEY.encode()))
    snapshot = Snapshot.decode(KEY, content + checksum.to_bytes(4, "big"))
    with contextlib.suppress(*DOCUMENTED):
        snapshot.pending_deletes(KEY)
    with contextlib.suppress(*DOCUMENTED):
        for _ in snapshot.covered_segments(KEY):
            pass
    snapshot.load(KEY)


def _with_header(body: bytes, tail: bytes) -> bytes:
    header = bytes(Snapshot(b"c" * 16, CONTAINER, 2, SEQUENCE, 1000, b"", []).encode(KEY)[0])
    return header[:-16] + len(body).to_bytes(8, "big") + len(tail).to_bytes(8, "big") + body + tail


def seeds() -> Iterator[bytes]:
    body = checkpoint.encode(a_state())
    tail = [(2, ChunkRef("c3/x", 70, 20, 3)), (4, ChunkRef("c3/y", 70, 0, 4))]
    whole = [bytes(part) for part in Snapshot(b"c" * 16, CONTAINER, 2, SEQUENCE, 1000, body, tail).encode(KEY)]
    yield WHOLE + b"".join(whole[:-1])
    yield PARTS + len(body).to_bytes(2, "big") + body + whole[2]
