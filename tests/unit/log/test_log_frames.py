"""Frames of the file log: round trips, torn writes, flipped bits, the documented vectors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.common.errors import FormatVersionError
from tailrace.kernel import crc32c
from tailrace.log import frames
from tailrace.log.frames import Condition, EpochRange, FrameHeader, FrameIdentity, FrameKind, StartRecord, Verdict

IDENTITY = FrameIdentity(3, 5, bytes(range(16)))
DOCUMENT = Path(__file__).resolve().parents[3] / "docs/formats/log.md"

pieces = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 1600).map(bytes), st.integers(1, 1600).map(lambda n: b"x" * n)),
    max_size=6,
)


def encode(payload: list[bytes], offset: int = 1024, kind: FrameKind = FrameKind.DATA) -> bytes:
    buffers, length = frames.encode_frame(
        IDENTITY,
        kind,
        [memoryview(piece) for piece in payload],
        sequence=7,
        acknowledged_through=6,
        log_start=1,
        offset=offset,
    )
    image = b"".join(buffers)
    assert len(image) == length
    assert length % frames.SECTOR_BYTES == 0
    return image


def judge(image: bytes, offset: int = 1024) -> tuple[FrameHeader | None, Verdict]:
    header = frames.decode_header(image[: frames.SECTOR_BYTES], offset)
    if isinstance(header, Verdict):
        return None, header
    return header, frames.judge_frame(header, memoryview(image))


@given(pieces)
def test_a_frame_comes_back(payload: list[bytes]) -> None:
    image = encode(payload)
    header, verdict = judge(image)
    assert verdict is frames.COMPLETE
    assert header is not None
    assert bytes(frames.payload_of(header, memoryview(image))) == b"".join(payload)
    assert (header.kind, header.container, header.epoch, header.nonce) == (FrameKind.DATA, 3, 5, IDENTITY.nonce)
    assert (header.sequence, header.acknowledged_through, header.log_start, header.offset) == (7, 6, 1, 1024)
    assert len(image) <= frames.frame_length_max(len(b"".join(payload)))


@given(pieces)
def test_zero_sectors_are_recorded_however_the_payload_is_cut(payload: list[bytes]) -> None:
    whole = bytes(frames.HEADER_BYTES) + b"".join(payload)
    found = {
        sector
        for first, count in frames.zero_runs([memoryview(piece) for piece in payload])
        for sector in range(first, first + count)
    }
    expected = {
        sector
        for sector in range(1, len(whole) // frames.SECTOR_BYTES)
        if not any(whole[sector * frames.SECTOR_BYTES : (sector + 1) * frames.SECTOR_BYTES])
    }
    assert found == expected


@given(pieces, st.data())
def test_a_flipped_bit_is_corruption_and_nothing_else(payload: list[bytes], data: st.DataObject) -> None:
    image = bytearray(encode(payload))
    bit = data.draw(st.integers(0, len(image) * 8 - 1))
    sector = bit // 8 // frames.SECTOR_BYTES * frames.SECTOR_BYTES
    image[bit // 8] ^= 1 << (bit % 8)
    # A lost sector and a sector whose only set bit is lost look the same (docs/formats/log.md).
    assume(any(image[sector : sector + frames.SECTOR_BYTES]))
    _, verdict = judge(bytes(image))
    assert verdict.condition is Condition.CORRUPT
    assert verdict.reason


@given(pieces, st.data())
def test_any_lost_sectors_are_a_torn_write(payload: list[bytes], data: st.DataObject) -> None:
    image = bytearray(encode(payload))
    count = len(image) // frames.SECTOR_BYTES
    lost = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    before = bytes(image)
    for sector in lost:
        image[sector * frames.SECTOR_BYTES : (sector + 1) * frames.SECTOR_BYTES] = bytes(frames.SECTOR_BYTES)
    _, verdict = judge(bytes(image))
    if bytes(image) == before:
        assert verdict is frames.COMPLETE  # only sectors that are zero anyway were lost
    else:
        assert verdict.condition is (Condition.ABSENT if 0 in lost else Condition.TORN)


@given(pieces, st.data())
def test_a_write_cut_short_is_torn(payload: list[bytes], data: st.DataObject) -> None:
    image = encode(payload)
    kept = data.draw(st.integers(0, len(image) - 1))
    _, verdict = judge(image[:kept] + bytes(len(image) - kept))
    assert verdict.condition is (Condition.TORN if kept else Condition.ABSENT)


def test_a_frame_at_another_place_is_corrupt() -> None:
    _, verdict = judge(encode([b"x"], offset=512), offset=1024)
    assert verdict.condition is Condition.CORRUPT
    assert "512" in verdict.reason


def test_a_newer_version_is_refused() -> None:
    image = bytearray(encode([b"x"]))
    image[8:10] = (2).to_bytes(2, "big")
    image[120:124] = crc32c(image[:120]).to_bytes(4, "big")
    with pytest.raises(FormatVersionError, match="version 2"):
        frames.decode_header(image, 1024)


def test_an_unknown_kind_is_corrupt() -> None:
    image = bytearray(encode([b"x"]))
    image[10:12] = (9).to_bytes(2, "big")
    image[120:124] = crc32c(image[:120]).to_bytes(4, "big")
    verdict = frames.decode_header(image, 1024)
    assert isinstance(verdict, Verdict)
    assert "kind 9" in verdict.reason


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.lists(st.tuples(*[st.integers(0, 2**63)] * 3), max_size=5))
def test_start_records_come_back(first: int, previous: int, history: list[tuple[int, int, int]]) -> None:
    record = StartRecord(first, previous, tuple(EpochRange(*entry) for entry in history))
    encoded = record.encode()
    assert StartRecord.decode(memoryview(encoded)) == record
    for cut in (0, 10, len(encoded) - 1):
        with pytest.raises(ValueError, match="start record"):
            StartRecord.decode(memoryview(encoded[:cut]))


def _vectors() -> list[bytes]:
    vectors = []
    for block in re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        image = b""
        for line in block.split("\n"):
            pattern, _, times = line.partition(" × ")
            image += bytes.fromhex(pattern) * int(times or 1)
        vectors.append(image)
    return vectors


def test_the_documented_vectors() -> None:
    start, data = _vectors()[:2]  # the others are of the object log
    record = StartRecord(7, 4, (EpochRange(2, 0, 4), EpochRange(4, 5, 6)))
    assert encode([record.encode()], 0, FrameKind.START) == start
    assert encode([b"hello", bytes(1500), b"!"], 512) == data
    header, verdict = judge(data, 512)
    assert verdict is frames.COMPLETE
    assert header is not None
    assert header.run_count == 1
    assert bytes(frames.payload_of(header, memoryview(data))) == b"hello" + bytes(1500) + b"!"


@pytest.mark.parametrize("runs", [[(1, 2**32 - 1)], [(1, 3), (2, 1)], [(0, 1)], [(3, 1), (1, 1)]])
def test_zero_sectors_outside_of_the_payload_or_out_of_order_are_corrupt(runs: list[tuple[int, int]]) -> None:
    """The table's checksum matches. The sectors that it names must not all be noted before they are checked."""
    payload = bytes(3 * frames.SECTOR_BYTES)
    table = b"".join(first.to_bytes(4, "big") + count.to_bytes(4, "big") for first, count in runs)
    length = frames.frame_length(len(payload), len(runs))
    identity = (IDENTITY.container, IDENTITY.epoch, IDENTITY.nonce, 7, 6, 1, 0)
    header = FrameHeader(FrameKind.DATA, *identity, len(payload), length, len(runs), crc32c(table), crc32c(payload))
    image = bytes(frames.HEADER_BYTES) + payload + frames.FENCE + table
    image += frames.FENCE * (length - len(image) - len(frames.END_MARKER)) + frames.END_MARKER
    verdict = frames.judge_frame(header, memoryview(image))
    assert verdict == Verdict(Condition.CORRUPT, "the table of zero sectors makes no sense")
