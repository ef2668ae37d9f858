"""CRC32C against published vectors and a bit-by-bit model; zero detection against plain comparison."""

import array
import random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import _crc, _crc_py

MODULES = pytest.mark.parametrize("crc", [_crc, _crc_py], ids=["native", "pure"])

# RFC 3720 B.4 and the usual check value.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


def bitwise_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
    return crc ^ 0xFFFFFFFF


@MODULES
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_known_vectors(crc: ModuleType, data: bytes, expected: int) -> None:
    assert crc.crc32c(data) == expected
    assert crc.crc32c_portable(data) == expected


@MODULES
@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_model_and_continuation(crc: ModuleType, data: bytes, cut: int) -> None:
    whole = bitwise_crc32c(data)
    assert crc.crc32c(data) == whole
    head, tail = data[:cut], data[cut:]
    assert crc.crc32c(tail, crc.crc32c(head)) == whole
    assert crc.crc32c_combine(crc.crc32c(head), crc.crc32c(tail), len(tail)) == whole


def test_native_agrees_with_its_table_and_the_package_at_every_lane_boundary() -> None:
    data = random.Random(7).randbytes(3 * 4096 * 2 + 3 * 256 * 2 + 17)
    lanes = [3 * 256, 3 * 4096, 3 * 4096 + 3 * 256, 65536]
    lengths = {max(0, length + delta) for length in [*lanes, len(data)] for delta in range(-9, 10)}
    for length in sorted(lengths):
        for offset in (0, 1, 7):
            part = memoryview(data)[offset : offset + length]
            expected = _crc_py.crc32c(part, 0x1234)
            assert _crc.crc32c(part, 0x1234) == expected
            assert _crc.crc32c_portable(part, 0x1234) == expected


def test_native_agrees_above_the_length_at_which_it_releases_the_interpreter_lock() -> None:
    data = random.Random(8).randbytes(300_001)
    assert _crc.crc32c(data) == _crc_py.crc32c(data)


@MODULES
def test_combine_over_lengths_that_do_not_fit_in_memory(crc: ModuleType) -> None:
    first, second, length = 0xE3069283, 0x8A9136AA, (1 << 40) + 12345
    halves = crc.crc32c_combine(crc.crc32c_combine(first, 0, length // 2), second, length - length // 2)
    assert halves == crc.crc32c_combine(first, second, length)
    assert crc.crc32c_combine(first, second, 0) == first ^ second


@MODULES
def test_bad_arguments(crc: ModuleType) -> None:
    for value in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            crc.crc32c(b"x", value)
        with pytest.raises(OverflowError):
            crc.crc32c_combine(0, value, 1)
    for length in (-1, 1 << 63):
        with pytest.raises(ValueError, match="second_length"):
            crc.crc32c_combine(0, 0, length)
    with pytest.raises(TypeError):
        crc.crc32c("text")
    for function in (crc.crc32c, crc.is_zero, crc.zero_sectors):
        with pytest.raises(BufferError):
            function(memoryview(b"abcdef")[::2])
    for sector_bytes in (0, -512):
        with pytest.raises(ValueError, match="sector_bytes"):
            crc.zero_sectors(b"", sector_bytes)


@MODULES
def test_any_contiguous_buffer_is_taken(crc: ModuleType) -> None:
    numbers = array.array("I", [1, 2, 3])
    expected = crc.crc32c(numbers.tobytes())
    for data in (numbers, memoryview(numbers), bytearray(numbers.tobytes())):
        assert crc.crc32c(data) == expected


@MODULES
@given(zeros=st.integers(0, 80), place=st.integers(0, 79), byte=st.integers(0, 255))
def test_is_zero(crc: ModuleType, zeros: int, place: int, byte: int) -> None:
    data = bytearray(zeros)
    if place < zeros:
        data[place] = byte
    assert crc.is_zero(data) is (not any(data))


@MODULES
@given(
    sectors=st.lists(st.sampled_from([b"\0\0\0\0", b"\0\0\0\1", b"\1\0\0\0", b"\0\1\0\0"]), max_size=40),
    rest=st.sampled_from([b"", b"\0", b"\0\0\0", b"\1"]),
)
def test_zero_sectors(crc: ModuleType, sectors: list[bytes], rest: bytes) -> None:
    expected = [index for index, sector in enumerate(sectors) if sector == bytes(4)]
    assert crc.zero_sectors(b"".join(sectors) + rest, 4) == expected


@MODULES
def test_zero_sectors_of_512_bytes(crc: ModuleType) -> None:
    data = bytearray(b"\1" * 2048)
    data[512:1024] = bytes(512)
    data[1024 + 1 : 2048] = bytes(1023)
    assert crc.zero_sectors(data) == [1, 3]
    assert crc.zero_sectors(data[:2047]) == [1]
