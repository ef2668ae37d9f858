"""The receive buffer: frames whole however the bytes arrive, held blocks, bounded memory (docs/design.md#receive)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import ProtocolError
from tailrace.wire import codec
from tailrace.wire import commands as c
from tailrace.wire.receiver import BufferPool, Receiver

W = bytes(range(16))


def feed(receiver: Receiver, data: bytes, step: int) -> list[tuple[int, bytes]]:
    """Receive `data` in reads of at most `step` bytes; all frames found."""
    found = []
    position = 0
    while position < len(data):
        buffer = receiver.get_buffer()
        length = min(step, len(buffer), len(data) - position)
        assert length > 0
        buffer[:length] = data[position : position + length]
        receiver.received(length)
        position += length
        while frames := receiver.frames():
            found += [(code, bytes(receiver.view[start : start + size])) for code, start, size in frames]
        receiver.settle()
    return found


PAYLOADS = st.lists(st.tuples(st.integers(-200, 200), st.binary(max_size=300)), max_size=30)


@given(PAYLOADS, st.integers(1, 700))
def test_frames_are_found_however_they_arrive(payloads: list[tuple[int, bytes]], step: int) -> None:
    receiver = Receiver(BufferPool())
    data = b"".join(codec.frame_header(code, len(payload)) + payload for code, payload in payloads)
    assert feed(receiver, data, step) == payloads


@pytest.mark.parametrize("step", [1000, 60_000, 10**9])
def test_large_frames_get_larger_buffers_and_give_them_back(step: int) -> None:
    pool = BufferPool()
    receiver = Receiver(pool)
    sizes = [10, 300_000, 5_000_000, 7, 100_000, 0, 700_000]
    payloads = [(index, bytes([index]) * size) for index, size in enumerate(sizes)]
    data = b"".join(codec.frame_header(code, len(payload)) + payload for code, payload in payloads)
    assert feed(receiver, data, step) == payloads
    assert 0 < pool.idle_bytes <= limits.RECEIVE_POOL_IDLE_MAX_BYTES


def test_an_idle_connection_holds_no_buffer() -> None:
    pool = BufferPool()
    receivers = [Receiver(pool) for _ in range(10)]
    for receiver in receivers:
        feed(receiver, codec.encode(c.KeepAlive()), 100)
    assert pool.idle_bytes == limits.RECEIVE_BUFFER_BYTES


def test_buffers_are_reused() -> None:
    pool = BufferPool()
    buffer = pool.take(limits.RECEIVE_BUFFER_BYTES + 1)
    pool.give(buffer)
    assert pool.take(limits.RECEIVE_BUFFER_BYTES * 2) is buffer
    assert pool.idle_bytes == 0


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    pool = BufferPool(idle_max_bytes=limits.RECEIVE_BUFFER_BYTES * 3)
    buffers = [pool.take(1) for _ in range(5)]
    for buffer in buffers:
        pool.give(buffer)
    assert pool.idle_bytes == limits.RECEIVE_BUFFER_BYTES * 3


@given(st.integers(0, 200_000), st.integers(1, 200_000), st.integers(1, 300_000))
def test_a_held_block_survives_what_arrives_after_it(block: int, after: int, step: int) -> None:
    receiver = Receiver(BufferPool())
    content = bytes(range(256)) * (block // 256) + bytes(block % 256)
    data = codec.frame_header(3, block) + content
    # Frames handled between the block and its end, which must not pile up, then one that needs room.
    data += codec.encode(c.KeepAlive()) * 50 + codec.frame_header(4, after) + b"\x77" * after
    position = 0
    ends = 0
    while position < len(data):
        buffer = receiver.get_buffer()
        length = min(step, len(buffer), len(data) - position)
        buffer[:length] = data[position : position + length]
        receiver.received(length)
        position += length
        while frames := receiver.frames():
            for code, start, size in frames:
                if code == 3:
                    receiver.hold(start, size)
                if code == 4:
                    held = receiver.held_start
                    assert receiver.view[held : held + block] == content
                    assert receiver.view[start : start + size] == b"\x77" * after
                    ends += 1
        receiver.settle()
    assert ends == 1
    receiver.release_held()
    receiver.settle()


def test_frames_between_a_block_and_its_end_do_not_grow_the_buffer() -> None:
    receiver = Receiver(BufferPool())
    feed(receiver, codec.frame_header(3, 100) + bytes(100), 200)
    receiver.hold(8, 100)
    for _ in range(100):
        feed(receiver, codec.encode(c.KeepAlive()) * 1000, 8000)
    assert len(receiver.view) <= 2 * limits.RECEIVE_BUFFER_BYTES


def test_rewind_hands_out_again() -> None:
    receiver = Receiver(BufferPool())
    data = b"".join(codec.frame_header(code, 3) + b"abc" for code in range(5))
    buffer = receiver.get_buffer()
    buffer[: len(data)] = data
    receiver.received(len(data))
    frames = receiver.frames()
    receiver.rewind(frames[2][1])
    assert receiver.frames() == frames[2:]


@pytest.mark.parametrize("length", [-1, -(2**31), codec.PAYLOAD_MAX_BYTES + 1, 2**31 - 1])
def test_bad_lengths_are_refused_before_any_room_is_made(length: int) -> None:
    pool = BufferPool()
    receiver = Receiver(pool)
    with pytest.raises(ProtocolError):
        feed(receiver, (7).to_bytes(4, "big") + length.to_bytes(4, "big", signed=True), 8)
    receiver.close()
    assert pool.idle_bytes == limits.RECEIVE_BUFFER_BYTES


@given(st.binary(max_size=400), st.integers(1, 50))
def test_random_bytes_are_frames_or_refused(data: bytes, step: int) -> None:
    try:
        feed(Receiver(BufferPool()), data, step)
    except ProtocolError:
        return


def begin(receiver: Receiver, length: int, sent: int) -> None:
    """Receive the header of a frame and the first `sent` bytes of its payload."""
    data = codec.frame_header(74, length) + bytes(sent)
    assert feed(receiver, data, 1 << 30) == []


def test_a_header_alone_takes_no_room() -> None:
    pool = BufferPool()
    receiver = Receiver(pool)
    begin(receiver, codec.PAYLOAD_MAX_BYTES, 10)
    assert len(receiver.get_buffer()) <= limits.RECEIVE_BUFFER_BYTES
    begin_at = 10
    for _ in range(200):
        buffer = receiver.get_buffer()
        assert len(receiver.view) <= max(limits.RECEIVE_BUFFER_BYTES, 8 * begin_at)
        receiver.received(len(buffer))
        begin_at += len(buffer)
        if begin_at > 3 * limits.MIB:
            break
    assert receiver.frames() == []
    receiver.close()


def test_large_frames_are_promised_their_room() -> None:
    pool = BufferPool(max_bytes=16 * limits.MIB)
    one, two, three = (Receiver(pool) for _ in range(3))
    for receiver in (one, two, three):
        begin(receiver, 5 * limits.MIB, 100)
    assert [receiver.may_receive() for receiver in (one, two, three)] == [True, True, False]
    assert pool.promised_bytes == 16 * limits.MIB
    woken: list[int] = []
    pool.on_room = lambda: woken.append(pool.promised_bytes)
    assert len(feed(one, bytes(5 * limits.MIB - 100), 1 << 30)) == 1
    assert woken[-1] == 8 * limits.MIB
    assert three.may_receive()
    two.close()
    three.close()
    assert pool.promised_bytes == 0
    assert pool.promised == {}


def test_a_frame_above_the_bound_is_received_alone() -> None:
    pool = BufferPool(max_bytes=2 * limits.MIB)
    small, large = Receiver(pool), Receiver(pool)
    begin(small, limits.MIB // 2, 10)
    assert small.may_receive()
    begin(large, 5 * limits.MIB, 10)
    assert not large.may_receive()
    small.close()
    assert large.may_receive()
    assert len(feed(large, bytes(5 * limits.MIB - 10), 100_000)) == 1
    assert pool.promised_bytes == 0


def test_busy_connections_get_large_buffers_only_while_half_is_left() -> None:
    pool = BufferPool(max_bytes=2 * limits.MIB)
    receivers = [Receiver(pool) for _ in range(10)]
    noise = codec.frame_header(1, 100_000) + bytes(100_000)
    for receiver in receivers:
        feed(receiver, noise * 30 + noise[:1000], 1 << 30)
    assert pool.promised_bytes <= limits.MIB
    assert all(receiver.may_receive() for receiver in receivers)
    for receiver in receivers:
        receiver.close()
    assert pool.promised_bytes == 0


def test_a_large_buffer_is_given_back_by_a_connection_that_never_pauses() -> None:
    pool = BufferPool()
    receiver = Receiver(pool)
    small = codec.frame_header(1, 90) + bytes(90)
    feed(receiver, codec.frame_header(1, 8 * limits.MIB) + bytes(8 * limits.MIB) + small[:50], 1 << 30)
    assert receiver.may_receive()
    for _ in range(30 * limits.MIB // 60_000):  # always with a part of the next frame, so that it is never settled
        feed(receiver, small[50:] + small * 600 + small[:50], 1 << 30)
    assert len(receiver.view) <= limits.RECEIVE_BUFFER_BUSY_BYTES
    assert pool.promised_bytes <= limits.RECEIVE_BUFFER_BUSY_BYTES


def test_very_many_connections_have_small_buffers() -> None:
    pool = BufferPool()
    receivers = [Receiver(pool) for _ in range(2 * limits.RECEIVE_BUFFERS_MANY)]
    for receiver in receivers:
        begin(receiver, 100, 1)
    total = sum(len(receiver.view) for receiver in receivers)
    assert total <= limits.RECEIVE_BUFFERS_MANY * (limits.RECEIVE_BUFFER_BYTES + limits.RECEIVE_MIN_BYTES)
