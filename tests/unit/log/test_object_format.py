"""What the object log stores is what its page says."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.log import frames
from tailrace.log.claims import LENGTH_BYTES, Claim
from tailrace.log.frames import EpochRange, FrameIdentity, FrameKind, StartRecord
from tailrace.log.object_keys import LogKeys
from tailrace.log.object_recovery import WINDOW_FRAMES
from tailrace.log.object_scan import frame_in

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/formats/log.md"
NONCE = bytes(range(16))


def _vectors() -> list[bytes]:
    section = DOCUMENT.read_text().partition("## Test vectors of the object log")[2]
    vectors = []
    for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL):
        lines = (line.partition(" × ") for line in block.splitlines())
        vectors.append(b"".join(bytes.fromhex(pattern) * int(times or 1) for pattern, _, times in lines))
    return vectors


def _frame(kind: FrameKind, payload: bytes, *, sequence: int, acknowledged_through: int, log_start: int) -> bytes:
    buffers, _ = frames.encode_frame(
        FrameIdentity(3, 5, NONCE),
        kind,
        [memoryview(payload)] if payload else [],
        sequence=sequence,
        acknowledged_through=acknowledged_through,
        log_start=log_start,
        offset=0,
    )
    return b"".join(buffers)


def test_the_documented_vectors() -> None:
    claim, start, data, mark = _vectors()
    assert Claim(3, 6, 7, NONCE).encode() == claim
    assert Claim.decode(claim, "") == Claim(3, 6, 7, NONCE)
    record = StartRecord(7, 4, (EpochRange(2, 1, 4), EpochRange(4, 5, 6)))
    assert _frame(FrameKind.START, record.encode(), sequence=7, acknowledged_through=6, log_start=1) == start
    assert StartRecord.decode(frame_in(start, "")[1]) == record
    assert _frame(FrameKind.DATA, b"hello", sequence=7, acknowledged_through=6, log_start=1) == data
    assert frame_in(data, "")[1] == b"hello"
    assert _frame(FrameKind.MARK, b"", sequence=8, acknowledged_through=7, log_start=6) == mark
    header, payload = frame_in(mark, "")
    assert (header.kind, header.log_start, bytes(payload)) == (FrameKind.MARK, 6, b"")


def test_the_documented_names_and_numbers() -> None:
    text = DOCUMENT.read_text()
    keys = LogKeys(3)
    assert keys.claim(6) == f"log/3/claims/{6:020d}"
    assert keys.start(5) == f"log/3/{5:020d}/start"
    assert keys.frame(5, 7) == f"log/3/{5:020d}/{7:020d}"
    assert keys.mark(5, 1) == f"log/3/{5:020d}/mark-{1:020d}"
    assert f"only when frame *n* − {WINDOW_FRAMES} was acknowledged" in text
    assert f"| 10 | 2 | length, {LENGTH_BYTES} |" in text
