"""Frame scan, event packing and splitting: both implementations, against each other and against plain struct code."""

import array
import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import _frames, _frames_py

MODULES = pytest.mark.parametrize("frames", [_frames, _frames_py], ids=["native", "pure"])
PAYLOADS = st.lists(st.binary(max_size=40), max_size=12)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">ii", kind, len(payload)) + payload


@MODULES
@given(
    sent=st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40)), max_size=12),
    before=st.binary(max_size=9),
    cut=st.integers(0, 60),
)
def test_scan_finds_what_is_complete(
    frames: ModuleType, sent: list[tuple[int, bytes]], before: bytes, cut: int
) -> None:
    data = before + b"".join(frame(kind, payload) for kind, payload in sent)
    end = max(len(before), len(data) - cut)
    expected, position = [], len(before)
    for kind, payload in sent:
        if position + 8 + len(payload) > end:
            break
        expected.append((kind, position + 8, len(payload)))
        position += 8 + len(payload)
    assert frames.scan_frames(bytearray(data), len(before), end, 40) == (expected, position)


@MODULES
def test_scan_is_bounded_and_goes_on_from_next(frames: ModuleType) -> None:
    data = frame(7, b"ab") * 1500
    first, position = frames.scan_frames(data, 0, len(data), 100)
    assert (len(first), position) == (1024, 1024 * 10)
    second, position = frames.scan_frames(data, position, len(data), 100)
    assert (len(second), position) == (476, 15000)
    assert frames.scan_frames(data, position, len(data), 100) == ([], 15000)
    assert frames.scan_frames(data, 0, len(data), 100, 3) == ([(7, 8, 2), (7, 18, 2), (7, 28, 2)], 30)
    assert frames.scan_frames(data, 0, len(data), 100, max_frames=0) == ([], 0)


@MODULES
def test_a_bad_length_is_refused_from_its_header_alone(frames: ModuleType) -> None:
    good = frame(1, b"abc")
    for length, word in [(-1, "negative"), (-(2**31), "negative"), (101, "too long"), (2**31 - 1, "too long")]:
        data = good + struct.pack(">ii", 9, length)
        with pytest.raises(ValueError, match=f"frame at 11 .*{word}"):
            frames.scan_frames(data, 0, len(data), 100)
        assert frames.scan_frames(data, 0, len(data) - 1, 100) == ([(1, 8, 3)], 11)
    assert frames.scan_frames(struct.pack(">ii", 9, 100), 0, 8, 100) == ([], 0)


@MODULES
@pytest.mark.parametrize(("start", "end"), [(-1, 4), (0, 5), (3, 2), (5, 5), (0, -1)])
def test_a_range_outside_of_the_buffer_is_refused(frames: ModuleType, start: int, end: int) -> None:
    for call in (frames.split_events, frames.split_events_bytes):
        with pytest.raises(ValueError, match="outside of a buffer"):
            call(b"abcd", start, end)
    with pytest.raises(ValueError, match="outside of a buffer"):
        frames.scan_frames(b"abcd", start, end, 100)


@MODULES
@given(payloads=PAYLOADS, before=st.binary(max_size=5), cut=st.integers(0, 60))
def test_what_is_packed_splits_again(frames: ModuleType, payloads: list[bytes], before: bytes, cut: int) -> None:
    kinds = (bytes, bytearray, memoryview)
    packed = frames.pack_events(kinds[index % 3](payload) for index, payload in enumerate(payloads))
    assert packed == b"".join(frame(0, payload) for payload in payloads)
    data = memoryview(before + packed)
    end = max(len(before), len(data) - cut)
    spans, position = frames.split_events(data, len(before), end)
    copies, same_position = frames.split_events_bytes(data, len(before), end)
    assert position == same_position
    assert copies == payloads[: len(copies)]
    assert [bytes(data[first : first + length]) for first, length in spans] == copies
    assert all(type(copy) is bytes for copy in copies)
    assert position == len(before) + sum(8 + len(copy) for copy in copies)
    if len(copies) < len(payloads):
        assert end - position < 8 + len(payloads[len(copies)])


@MODULES
def test_split_refuses_what_is_no_event(frames: ModuleType) -> None:
    good = frame(0, b"abc")
    bad = [
        (struct.pack(">ii", 1, 3), "no event begins at 11: type 1"),
        (struct.pack(">ii", 0, -3), "event at 11 has a negative length"),
        (frame(0, b"12345"), "event at 11 is too long"),
    ]
    for header, message in bad:
        data = good + header
        for call in (frames.split_events, frames.split_events_bytes):
            with pytest.raises(ValueError, match=message):
                call(data, 0, len(data), 4)


@MODULES
def test_pack_takes_buffers_only(frames: ModuleType) -> None:
    assert frames.pack_events([]) == b""
    assert frames.pack_events((b"",)) == bytes(8)
    with pytest.raises(TypeError):
        frames.pack_events(["text"])
    with pytest.raises(TypeError):
        frames.pack_events(b"abc")
    with pytest.raises(BufferError):
        frames.pack_events([memoryview(b"abcd")[::2]])


@given(data=st.binary(max_size=80), start=st.integers(-1, 10), end=st.integers(-1, 81), limit=st.integers(0, 2**31 - 1))
def test_both_agree_on_arbitrary_bytes(data: bytes, start: int, end: int, limit: int) -> None:
    for name in ("scan_frames", "split_events", "split_events_bytes"):
        outcomes = []
        for module in (_frames, _frames_py):
            try:
                outcomes.append(getattr(module, name)(data, start, end, limit))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@MODULES
@given(events=PAYLOADS, before=st.integers(0, 5), cut=st.integers(0, 60), stop=st.integers(0, 600))
def test_gather_takes_the_payloads_of_whole_events_before_a_stop(
    frames: ModuleType, events: list[bytes], before: int, cut: int, stop: int
) -> None:
    data = bytes(before) + frames.pack_events(events)
    end = max(before, len(data) - cut)
    spans, _ = frames.split_events(data, before, end)
    kept = [(first, length) for first, length in spans if first - 8 < stop]
    payloads, ends, offsets, position = frames.gather_events(bytearray(data), before, end, stop, 10**15)
    assert payloads == b"".join(data[first : first + length] for first, length in kept)
    assert list(array.array("i", ends)) == [sum(length for _, length in kept[:count]) for count in range(len(kept) + 1)]
    assert list(array.array("q", offsets)) == [first - 8 + 10**15 for first, _ in kept]
    assert position == (sum(kept[-1]) if kept else before)


@MODULES
def test_gather_names_what_is_no_event_only_before_the_stop(frames: ModuleType) -> None:
    data = frame(0, b"abc") + frame(1, b"")
    with pytest.raises(ValueError, match="no event begins at 11: type 1"):
        frames.gather_events(data, 0, len(data), 12, 0)
    assert frames.gather_events(data, 0, len(data), 11, 0)[3] == 11
    with pytest.raises(ValueError, match="too long"):
        frames.gather_events(data, 0, len(data), 11, 0, 2)
    for start, end in ((-1, 4), (0, len(data) + 1), (3, 2)):
        with pytest.raises(ValueError, match="outside of a buffer"):
            frames.gather_events(data, start, end, 100, 0)


@given(
    data=st.binary(max_size=80),
    start=st.integers(-1, 10),
    end=st.integers(-1, 81),
    stop=st.integers(-5, 90),
    shift=st.integers(0, 2**62),
    limit=st.integers(0, 2**31 - 1),
)
def test_both_gather_the_same(data: bytes, start: int, end: int, stop: int, shift: int, limit: int) -> None:
    outcomes = []
    for module in (_frames, _frames_py):
        try:
            outcomes.append(module.gather_events(data, start, end, stop, shift, limit))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
