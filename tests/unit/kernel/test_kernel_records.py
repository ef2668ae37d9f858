"""The scan of a log's records against the decoder of operations, in both implementations and between them."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.kernel import _records, _records_py
from tailrace.kernel._records_common import RUNS_MAX, AppendRun
from tailrace.segmentstore.metadata import operation_log
from tailrace.segmentstore.metadata import operations as ops
from tailrace.segmentstore.metadata.operations import OperationType

MODULES = pytest.mark.parametrize("records", [_records, _records_py], ids=["native", "pure"])
KEYS = st.sampled_from([bytes([number]) * 16 for number in (0, 1, 128, 255)])
ATTRIBUTES = st.lists(st.tuples(KEYS, st.integers(-(2**63), 2**63 - 1)), max_size=3)
FIRST = 7


def record(sequence: int, body: bytes, kind: int = OperationType.APPEND, flags: int = operation_log.WHOLE) -> bytes:
    return operation_log.RECORD.pack(kind, flags, 0, len(body), sequence) + body


def append(
    sequence: int, segment_id: int, offset: int, data: bytes, attributes: list[tuple[bytes, int]], crc: int = 0
) -> bytes:
    return record(sequence, ops.append_header(segment_id, offset, len(data), crc, attributes) + data)


@st.composite
def appends(draw: st.DrawFn) -> bytes:
    """Successive appends to some segments."""
    lengths: dict[int, int] = {}
    payload = b""
    for number in range(draw(st.integers(0, 12))):
        segment_id = draw(st.sampled_from([0, 1, 2, 2**63 - 1]))
        data = draw(st.binary(max_size=9))
        offset = lengths.setdefault(segment_id, draw(st.integers(0, 2**40)))
        payload += append(FIRST + number, segment_id, offset, data, draw(ATTRIBUTES), draw(st.integers(0, 2**32 - 1)))
        lengths[segment_id] += len(data)
    return payload


Last = dict[int, dict[bytes, tuple[int, int]]]
"""By segment and attribute: its last value, and the number of the append that set it."""


def by_decoder(payload: bytes, start: int, count: int) -> tuple[int, list[AppendRun], Last]:
    """The same from the first `count` operations that `Assembler` finds."""
    runs: dict[int, AppendRun] = {}
    last: Last = {}
    columns: dict[int, list[array[int]]] = {}
    position = start
    found = operation_log.Assembler().feed(0, memoryview(payload)[start:], "test")
    for _, (sequence, operation, ((_, body_start, length),)) in zip(range(count), found, strict=False):
        assert isinstance(operation, ops.Append)
        position = start + body_start + length
        segment_id, size = operation.segment_id, len(operation.data)
        fresh = AppendRun(segment_id, sequence, operation.offset, b"", b"", b"", b"", b"")
        run = runs.setdefault(segment_id, fresh)
        its = columns.setdefault(segment_id, [array("q"), array("I"), array("I"), array("I")])
        if size:
            for column, value in zip(its, (operation.offset, size, operation.crc, position - size), strict=True):
                column.append(value)
        for key, value in operation.attributes:
            last.setdefault(segment_id, {})[key] = value, sequence
        runs[segment_id] = run._replace(data=run.data + bytes(operation.data))
    return position, [run._replace(**_as_bytes(columns[key])) for key, run in runs.items()], last


def _as_bytes(columns: list[array[int]]) -> dict[str, Any]:
    return dict(zip(("offsets", "lengths", "crcs", "starts"), map(bytes, columns), strict=True))


def taken(gathered: dict[int, Any]) -> Last:
    """What was gathered, by segment."""
    found: Last = {}
    for segment_id, attributes in gathered.items():
        count = len(attributes)
        values, sequences = attributes.take()
        assert count == len(values)
        assert list(values) == list(sequences)
        assert (len(attributes), attributes.take()) == (0, ({}, {}))
        if values:
            found[segment_id] = {key: (value, sequences[key]) for key, value in values.items()}
    return found


@MODULES
@given(payload=appends(), before=st.binary(max_size=3), count=st.integers(0, 13))
def test_appends(records: ModuleType, payload: bytes, before: bytes, count: int) -> None:
    gathered: dict[int, Any] = {}
    position, following, runs = records.scan_appends(memoryview(before + payload), len(before), FIRST, count, gathered)
    expected_position, expected, last = by_decoder(before + payload, len(before), count)
    assert (position, runs) == (expected_position, expected)
    assert taken(gathered) == last
    assert records.scan_appends(memoryview(before + payload), len(before), FIRST, count) == (position, following, runs)
    assert following - FIRST == min(count, len(list(operation_log.Assembler().feed(0, memoryview(payload), "test"))))
    assert all(type(run) is AppendRun and type(run.data) is bytes for run in runs)


@given(payload=appends(), changes=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=3))
def test_both_end_at_the_same_damage(payload: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(payload)
    for position, value in changes:
        if position < len(damaged):
            damaged[position] = value
    cut = bytes(damaged[: len(damaged) - len(changes)])
    for start in range(min(len(cut), 40) + 1):
        both: list[Any] = []
        for module in (_records, _records_py):
            gathered: dict[int, Any] = {}
            both.append((module.scan_appends(cut, start, FIRST, 100, gathered), taken(gathered)))
        assert both[0] == both[1]
        assert _records.skip_records(cut, start, 12) == _records_py.skip_records(cut, start, 12)


A, B = bytes(16), bytes([1]) * 16
USUAL = append(FIRST, 1, 0, b"abc", [(A, 5)])
LONG_KEY = record(FIRST + 1, ops.append_header(1, 3, 1, 0, [(bytes(17), 5)]) + b"d")


@MODULES
@pytest.mark.parametrize(
    "following",
    [
        pytest.param(b"", id="the end"),
        pytest.param(append(FIRST + 2, 1, 3, b"d", []), id="a gap in the numbers"),
        pytest.param(append(FIRST, 1, 3, b"d", []), id="the same number"),
        pytest.param(append(FIRST + 1, 1, 4, b"d", []), id="a gap in the segment"),
        pytest.param(append(FIRST + 1, 1, 2, b"d", []), id="an overlap in the segment"),
        pytest.param(append(FIRST + 1, 2, -1, b"d", []), id="a negative offset"),
        pytest.param(append(FIRST + 1, 2, 2**63 - 1, b"d", []), id="an end beyond int64"),
        pytest.param(LONG_KEY, id="an id of 17 bytes"),
        pytest.param(record(FIRST + 1, b"", OperationType.SEAL), id="another type"),
        pytest.param(record(FIRST + 1, USUAL[16:], flags=operation_log.BEGIN), id="a fragment"),
        pytest.param(record(FIRST + 1, b"\x02" + append(0, 1, 3, b"d", [])[17:]), id="another version"),
        pytest.param(record(FIRST + 1, append(0, 1, 3, b"d", [])[16:-1]), id="a body that is too short"),
        pytest.param(record(FIRST + 1, append(0, 1, 3, b"d", [])[16:] + b"e"), id="a body that is too long"),
        pytest.param(record(FIRST + 1, b"\x01"), id="no header of an append"),
        pytest.param(append(FIRST + 1, 1, 3, b"d", [(B, 1)])[:-1], id="cut off"),
        pytest.param(append(FIRST + 1, 1, 3, b"", [])[:15], id="a header that is cut off"),
    ],
)
def test_what_ends_a_scan(records: ModuleType, following: bytes) -> None:
    gathered: dict[int, Any] = {}
    position, number, (run,) = records.scan_appends(USUAL + following, 0, FIRST, 100, gathered)
    assert (position, number) == (len(USUAL), FIRST + 1)
    assert run.data == b"abc"
    assert taken(gathered) == {1: {A: (5, FIRST)}}


@MODULES
def test_bounds(records: ModuleType) -> None:
    payload = b"".join(append(FIRST + number, number, 0, b"x", []) for number in range(RUNS_MAX + 1))
    position, number, runs = records.scan_appends(payload, 0, FIRST, 1000)
    assert (number, len(runs)) == (FIRST + RUNS_MAX, RUNS_MAX)
    _, number, (run,) = records.scan_appends(payload, position, number, 1000)
    assert (number, run.segment_id) == (FIRST + RUNS_MAX + 1, RUNS_MAX)
    last = append(2**63 - 1, 1, 0, b"x", [])
    assert records.scan_appends(last, 0, 2**63 - 1, 100) == (0, 2**63 - 1, [])
    many = b"".join(append(FIRST + number, 1, 10 * number, b"y" * 10, []) for number in range(1000))
    _, _, (run,) = records.scan_appends(many, 0, FIRST, 2000)
    assert (len(run.data), len(run.offsets), len(run.starts)) == (10_000, 8000, 4000)
    for start in (-1, len(payload) + 1):
        with pytest.raises(ValueError, match="outside"):
            records.scan_appends(payload, start, 0, 1)
        with pytest.raises(ValueError, match="outside"):
            records.skip_records(payload, start, 0)
    assert records.scan_appends(b"", 0, 0, 1) == (0, 0, [])
    assert records.skip_records(b"", 0, 0) == 0


@MODULES
def test_attributes_of_several_writers(records: ModuleType) -> None:
    """The last value counts."""
    written = [[(A, 1), (B, 1)], [(A, 2)], [], [(B, 2), (A, 3)], [(A, 4), (B, 3)], [(A, 5), (A, 6)]]
    payload = b"".join(append(FIRST + number, 1, 0, b"", values) for number, values in enumerate(written))
    gathered: dict[int, Any] = {}
    _, _, (run,) = records.scan_appends(payload, 0, FIRST, 100, gathered)
    assert taken(gathered) == {1: {B: (3, FIRST + 4), A: (6, FIRST + 5)}}
    assert (run.data, run.offsets) == (b"", b"")


@MODULES
def test_attributes_are_gathered_over_many_scans(records: ModuleType) -> None:
    """More than a table has room for at first, of two segments, some of them set again by a later scan."""
    gathered: dict[int, Any] = {}
    expected: Last = {1: {}, 2: {}}
    for scan in range(5):
        first = FIRST + 10 * scan
        payload = b""
        for number in range(10):
            segment_id, keys = 1 + number % 2, range(100 * scan + number, 100 * scan + number + 200, 3)
            values = [(key.to_bytes(16, "big"), key * scan - number) for key in keys]
            payload += append(first + number, segment_id, 0, b"", values)
            expected[segment_id].update({key: (value, first + number) for key, value in values})
        _, following, _ = records.scan_appends(payload, 0, first, 100, gathered)
        assert following == first + 10
    assert taken(gathered) == expected


@MODULES
def test_skipped_records(records: ModuleType) -> None:
    checkpoint, seal = int(OperationType.CHECKPOINT), int(OperationType.SEAL)
    payload = USUAL + record(8, b"12345", seal) + USUAL
    assert records.skip_records(payload, 0, checkpoint) == len(payload)
    assert records.skip_records(payload, 0, seal) == len(USUAL)
    assert records.skip_records(payload, len(USUAL), seal) == len(USUAL)
    assert records.skip_records(payload[:-1], 0, checkpoint) == len(payload) - len(USUAL)
    assert records.skip_records(payload + b"123", 0, checkpoint) == len(payload)
    fragment = record(9, b"123", seal, operation_log.BEGIN)
    assert records.skip_records(payload + fragment + payload, 0, checkpoint) == len(payload)
