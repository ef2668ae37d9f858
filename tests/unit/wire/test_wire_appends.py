"""Reassembly of append blocks in all three forms, and what breaks the protocol (docs/protocol/wire.md#appends)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common import limits
from tailrace.common.errors import ProtocolError
from tailrace.wire import codec
from tailrace.wire import commands as c
from tailrace.wire.appends import BlockAssembler, WireAppend, decode_conditional, encode_append

W = bytes(range(16))
OTHER = bytes(16)


def payload(command: c.Command) -> bytes:
    return codec.encode(command)[8:]


def assemble(block: bytes | None, end: bytes) -> WireAppend:
    """Feed one append, its parts at different places of one buffer."""
    assembler = BlockAssembler()
    view = memoryview(bytearray(b"\xee" * 5 + (block or b"") + b"\xee" * 3 + end))
    end_start = len(view) - len(end)
    if block is not None:
        assert assembler.begin(view, 5, len(block)) == block[:16]
    append = assembler.end(view, end_start, len(end), 5)
    assembler.close()
    return append


def data_of(append: WireAppend) -> bytes:
    data = b"".join(append.data)
    assert len(data) == append.length
    return data


def block_of(whole: bytes, trailer: c.Command | None) -> bytes:
    return W + whole + (codec.encode(trailer) if trailer is not None else b"")


def test_form_a_is_an_end_alone() -> None:
    append = assemble(None, payload(c.AppendBlockEnd(W, 12345, b"abc", 2, 9, 7)))
    assert data_of(append) == b"abc"
    assert (append.writer_id, append.num_events, append.last_event_number, append.request_id) == (W, 2, 9, 7)
    assert append.expected_offset == -1


def test_form_b_is_a_block_and_an_empty_end() -> None:
    assert data_of(assemble(block_of(b"abc", None), payload(c.AppendBlockEnd(W, 3, b"", 1, 9, 7)))) == b"abc"


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=50))
def test_form_c_joins_whole_events_partial_event_and_rest(whole: bytes, partial: bytes, rest: bytes) -> None:
    end = payload(c.AppendBlockEnd(W, len(whole), rest if partial else b"", 1, 9, 7))
    append = assemble(block_of(whole, c.PartialEvent(partial)), end)
    assert data_of(append) == whole + partial + (rest if partial else b"")


@given(st.binary(max_size=50), st.integers(0, 60))
def test_form_c_with_padding_is_its_whole_events(whole: bytes, padding: int) -> None:
    append = assemble(block_of(whole, c.Padding(padding)), payload(c.AppendBlockEnd(W, len(whole), b"", 1, 9, 7)))
    assert data_of(append) == whole


def test_missing_request_id_is_minus_one() -> None:
    assert assemble(None, payload(c.AppendBlockEnd(W, 0, b"abc", 2, 9, 7))[:-8]).request_id == -1


def test_no_copy_of_the_data() -> None:
    raw = bytearray(payload(c.AppendBlockEnd(W, 0, b"abc", 2, 9, 7)))
    append = BlockAssembler().end(memoryview(raw), 0, len(raw), -1)
    raw[24:27] = b"xyz"
    assert data_of(append) == b"xyz"


@pytest.mark.parametrize(
    ("block", "end"),
    [
        pytest.param(block_of(b"abc", None), c.AppendBlockEnd(OTHER, 3, b"", 1, 9, 7), id="other writer"),
        pytest.param(block_of(b"abc", None), c.AppendBlockEnd(W, 4, b"", 1, 9, 7), id="more than the block"),
        pytest.param(block_of(b"abc", None), c.AppendBlockEnd(W, -1, b"", 1, 9, 7), id="negative size"),
        pytest.param(block_of(b"abc", None), c.AppendBlockEnd(W, 2, b"", 1, 9, 7), id="trailer too short"),
        pytest.param(block_of(b"abc", c.Padding(4)), c.AppendBlockEnd(W, 3, b"x", 1, 9, 7), id="data after padding"),
        pytest.param(block_of(b"abc", c.PartialEvent(b"xxxx")), c.AppendBlockEnd(W, 2, b"", 1, 9, 7), id="misplaced"),
        pytest.param(block_of(b"", c.KeepAlive()), c.AppendBlockEnd(W, 0, b"", 1, 9, 7), id="other trailer"),
        pytest.param(
            block_of(b"", c.Padding(3)) + b"\0", c.AppendBlockEnd(W, 0, b"", 1, 9, 7), id="trailer does not fill"
        ),
        pytest.param(None, c.AppendBlockEnd(W, 0, b"abc", 0, 9, 7), id="no events"),
        pytest.param(None, c.AppendBlockEnd(W, 0, b"abc", -1, 9, 7), id="negative events"),
        pytest.param(None, c.AppendBlockEnd(W, 0, b"abc", 1, -(2**63), 7), id="number that means none"),
    ],
)
def test_parts_that_do_not_fit_are_refused(block: bytes | None, end: c.AppendBlockEnd) -> None:
    with pytest.raises(ProtocolError):
        assemble(block, payload(end))


def test_a_block_too_short_for_its_writer_is_refused() -> None:
    with pytest.raises(ProtocolError):
        BlockAssembler().begin(memoryview(bytes(15)), 0, 15)


def test_a_block_is_followed_by_its_end_only() -> None:
    assembler = BlockAssembler()
    view = memoryview(block_of(b"abc", None))
    assembler.begin(view, 0, len(view))
    with pytest.raises(ProtocolError):
        assembler.begin(view, 0, len(view))
    with pytest.raises(ProtocolError):
        assembler.refuse_open_block()


def test_an_append_above_the_limit_is_refused() -> None:
    largest = codec.PAYLOAD_MAX_BYTES
    block = bytearray(largest)
    block[:16] = W
    partial = largest - 16 - 8
    block[16:24] = struct.pack(">ii", c.PartialEvent.CODE, partial)
    fitting = limits.APPEND_BLOCK_MAX_BYTES - partial
    end = bytearray(payload(c.AppendBlockEnd(W, 0, b"", 1, 9, 7)))
    end[20:24] = struct.pack(">i", fitting + 1)
    end[24:24] = bytes(fitting + 1)
    with pytest.raises(ProtocolError):
        assemble(bytes(block), bytes(end))


@given(st.one_of(st.none(), st.binary(max_size=80)), st.binary(max_size=80))
def test_random_parts_are_assembled_or_refused(block: bytes | None, end: bytes) -> None:
    try:
        append = assemble(block, end)
    except ProtocolError:
        return
    data_of(append)


@given(st.binary(max_size=60), st.integers(-2, 70), st.binary(max_size=30), st.integers(-1, 2))
def test_random_blocks_of_one_writer_are_assembled_or_refused(
    rest: bytes, whole: int, data: bytes, events: int
) -> None:
    try:
        append = assemble(W + rest, payload(c.AppendBlockEnd(W, whole, data, events, 9, 7)))
    except ProtocolError:
        return
    assert events > 0
    assert data_of(append).startswith(rest[:whole])


def test_conditional_append_gets_the_event_header() -> None:
    raw = payload(c.ConditionalAppend(W, 4, 16, b"ab", 7))
    append = decode_conditional(c.ConditionalAppend.CODE, memoryview(raw), 0, len(raw))
    assert data_of(append) == bytes.fromhex("0000000000000002") + b"ab"
    assert (append.num_events, append.last_event_number, append.expected_offset, append.request_id) == (1, 4, 16, 7)


def test_conditional_block_end_is_raw() -> None:
    raw = payload(c.ConditionalBlockEnd(W, 4, 16, b"ab", 7))
    append = decode_conditional(c.ConditionalBlockEnd.CODE, memoryview(raw), 0, len(raw))
    assert data_of(append) == b"ab"
    assert (append.num_events, append.last_event_number, append.expected_offset, append.request_id) == (1, 4, 16, 7)


@pytest.mark.parametrize(
    "command", [c.ConditionalBlockEnd(W, 4, -1, b"ab", 7), c.ConditionalBlockEnd(W, -(2**63), 0, b"ab", 7)]
)
def test_bad_conditional_appends_are_refused(command: c.Command) -> None:
    raw = payload(command)
    with pytest.raises(ProtocolError):
        decode_conditional(command.CODE, memoryview(raw), 0, len(raw))


def test_the_client_side_writes_form_a() -> None:
    frame = b"".join(encode_append(W, [b"ab", memoryview(b"cd")], 4, 2, 9, 7))
    assert frame == codec.encode(c.AppendBlockEnd(W, 4, b"abcd", 2, 9, 7))
    append = BlockAssembler().end(memoryview(frame), 8, len(frame) - 8, -1)
    assert data_of(append) == b"abcd"
