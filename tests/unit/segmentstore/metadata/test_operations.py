"""Operations survive their encoding; damage is named; incomplete ones are dropped only after a recovery."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.segmentstore.api import SegmentKind
from tailrace.segmentstore.metadata import operation_log
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.fields import ChunkRef

I64 = st.integers(-(2**63), 2**63 - 1)
KEY = st.binary(min_size=1, max_size=256)
ATTRIBUTES = st.lists(st.tuples(KEY, I64), max_size=5)
NAME = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=40)
REF = st.builds(ChunkRef, NAME, I64, I64, I64)
ROOT = st.builds(ops.IndexRoot, I64, I64, I64, I64, I64, I64)
CONTROL = st.one_of(
    st.builds(ops.Recovered, I64, I64),
    st.builds(ops.Create, I64, NAME, st.sampled_from(list(SegmentKind)), I64, I64, ATTRIBUTES),
    st.builds(ops.UpdateAttributes, I64, ATTRIBUTES),
    st.builds(ops.Seal, I64, I64),
    st.builds(ops.Truncate, I64, I64),
    st.builds(ops.Merge, I64, I64, I64, I64, I64, ATTRIBUTES),
    st.builds(ops.Delete, I64),
    st.builds(ops.AddChunks, st.lists(st.tuples(I64, REF), max_size=3), st.lists(NAME, max_size=3)),
    st.builds(ops.CommitIndex, I64, ROOT, st.lists(REF, max_size=2)),
    st.builds(ops.ObjectsDeleted, st.lists(NAME, max_size=3)),
    st.builds(ops.SwapChunks, I64, st.lists(REF, max_size=3), st.lists(REF, max_size=2)),
    st.builds(ops.SweepBarrier, I64, I64),
    st.builds(ops.MoveChunks, st.lists(st.builds(ops.ChunkMove, I64, REF, REF), max_size=3)),
)


@given(CONTROL)
def test_control_operations_survive_their_encoding(operation: ops.ControlOperation) -> None:
    assert ops.decode(operation.TYPE, operation.encode(), "here") == operation


@given(I64, I64, st.integers(0, 2**32 - 1), ATTRIBUTES, st.binary(max_size=300))
def test_appends_survive_their_encoding(
    segment_id: int, offset: int, crc: int, attributes: list[tuple[bytes, int]], data: bytes
) -> None:
    body = ops.append_header(segment_id, offset, len(data), crc, attributes) + data
    decoded = ops.decode(ops.OperationType.APPEND, body, "here")
    assert isinstance(decoded, ops.Append)
    assert (decoded.segment_id, decoded.offset, decoded.crc, decoded.attributes) == (
        segment_id,
        offset,
        crc,
        attributes,
    )
    assert bytes(decoded.data) == data


@given(CONTROL, st.data())
def test_a_shortened_body_is_corruption(operation: ops.ControlOperation, data: st.DataObject) -> None:
    body = operation.encode()
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises((CorruptionError, FormatVersionError)):
        ops.decode(operation.TYPE, body[:cut], "here")


@given(st.integers(0, 255), st.binary(max_size=200))
def test_any_bytes_are_an_operation_or_a_data_error(kind: int, body: bytes) -> None:
    try:
        ops.decode(kind, body, "here")
    except (CorruptionError, FormatVersionError):
        return


def test_a_newer_version_is_refused() -> None:
    body = bytearray(ops.Delete(5).encode())
    body[0] = 99
    with pytest.raises(FormatVersionError, match="version 99"):
        ops.decode(ops.OperationType.DELETE, body, "here")


def record(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return operation_log.RECORD.pack(kind, flags, 0, len(body), sequence) + body


def feed(assembler: operation_log.Assembler, frame: int, payload: bytes) -> list[operation_log.Placed]:
    return list(assembler.feed(frame, memoryview(payload), f"frame {frame}"))


def test_fragments_are_joined_and_their_places_kept() -> None:
    body = ops.Delete(77).encode()
    assembler = operation_log.Assembler()
    assert feed(assembler, 4, record(8, operation_log.BEGIN, 9, body[:3])) == []
    (placed,) = feed(assembler, 5, record(8, operation_log.END, 9, body[3:]))
    assert placed == operation_log.Placed(9, ops.Delete(77), ((4, 16, 3), (5, 16, len(body) - 3)))


def test_an_incomplete_operation_is_dropped_by_the_next_owner_only() -> None:
    body = ops.Delete(77).encode()
    other = record(8, operation_log.BEGIN | operation_log.END, 10, body)
    assembler = operation_log.Assembler()
    feed(assembler, 4, record(8, operation_log.BEGIN, 9, body[:3]))
    with pytest.raises(CorruptionError, match="has no end"):
        feed(assembler, 5, other)
    assembler = operation_log.Assembler()
    feed(assembler, 4, record(8, operation_log.BEGIN, 9, body[:3]))
    recovered = ops.Recovered(2, 9)
    (placed,) = feed(assembler, 5, record(1, operation_log.BEGIN | operation_log.END, 9, recovered.encode()))
    assert placed.operation == recovered


def test_fragments_whose_begin_was_truncated_are_skipped() -> None:
    body = ops.Delete(77).encode()
    assembler = operation_log.Assembler()
    whole = record(8, operation_log.BEGIN | operation_log.END, 10, body)
    placed = feed(assembler, 5, record(8, operation_log.END, 9, body[3:]) + whole)
    assert [item.sequence for item in placed] == [10]


def test_a_fragment_of_another_operation_is_corruption() -> None:
    body = ops.Delete(77).encode()
    assembler = operation_log.Assembler()
    feed(assembler, 4, record(8, operation_log.BEGIN, 9, body[:3]))
    with pytest.raises(CorruptionError, match="without its begin"):
        feed(assembler, 5, record(8, operation_log.END, 11, body[3:]))


def test_the_vectors_of_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs/formats/operations.md").read_text()
    vectors = dict(re.findall(r"Vector (\w+):.*?```text\n(.*?)```", text, re.DOTALL))
    ref = ChunkRef("c0/7/x", 70, 100, 10)
    expected: dict[str, bytes] = {
        "delete": record(8, 3, 9, ops.Delete(77).encode()),
        "append": record(3, 3, 5, ops.append_header(2, 100, 3, 0x01020304, [(b"w" * 16, 4)]) + b"abc"),
        "chunks": record(9, 3, 6, ops.AddChunks([(2, ref)]).encode()),
        "swap": record(
            13,
            3,
            7,
            ops.SwapChunks(2, [ref, ChunkRef("c0/7/y", 70, 110, 5)], [ChunkRef("c0/2/z", 70, 100, 15)]).encode(),
        ),
        "barrier": record(14, 3, 8, ops.SweepBarrier(3, 6).encode()),
        "move": record(
            15,
            3,
            9,
            ops.MoveChunks([ops.ChunkMove(2, ref, ChunkRef("c0/2/z", 70, 104, 6))]).encode(),
        ),
    }
    assert {name: bytes.fromhex(value) for name, value in vectors.items()} == expected
    assert struct.calcsize(">BBHIq") == operation_log.RECORD.size


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 15, 16, 17, 256]), st.integers(-(2**63), 2**63 - 1)), max_size=4),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 400),
)
def test_an_append_is_decoded_wherever_it_stands(
    attributes: list[tuple[int, int]], data: bytes, behind: bytes, cut: int
) -> None:
    """Keys are of any length; what is cut off is damage, whatever comes behind it."""
    values = [(bytes([number]) * length, value) for number, (length, value) in enumerate(attributes)]
    body = ops.append_header(7, 100, len(data), 5, values) + data
    payload = memoryview(b"before" + body + behind)
    append = ops.decode_append(payload, 6, 6 + len(body), "place")
    assert append == ops.Append(7, 100, 5, values, memoryview(data))
    assert append == ops.decode(ops.OperationType.APPEND, body, "place")
    if 0 < cut <= len(body):
        with pytest.raises(CorruptionError, match="place"):
            ops.decode_append(payload, 6, 6 + len(body) - cut, "place")
