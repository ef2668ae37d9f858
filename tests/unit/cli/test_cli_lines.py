"""Lines as events, and their routing keys."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.lines import LineSplitter, by_key, key_of, known_length, may_block, read_lines
from tailrace.common.errors import BadRequestError


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_lines_do_not_depend_on_how_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    splitter = LineSplitter()
    lines = [line for low, high in itertools.pairwise(edges) for line in splitter.feed(data[low:high])]
    lines += splitter.rest()
    assert lines == (data.removesuffix(b"\n").split(b"\n") if data else [])


def test_a_line_is_no_longer_than_an_event() -> None:
    splitter = LineSplitter(max_line_bytes=10)
    assert splitter.feed(b"0123456789\n01234") == [b"0123456789"]
    assert splitter.feed(b"56789") == []
    with pytest.raises(BadRequestError, match="line 2 is longer than 10 bytes"):
        splitter.feed(b"x")


async def test_a_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = [b"%d" % number for number in range(100_000)]
    file.write_bytes(b"\n".join(lines))
    chunks = [chunk async for chunk in read_lines(file)]
    assert [line for found, _ in chunks for line in found] == lines
    assert sum(length for _, length in chunks) == known_length(file) == file.stat().st_size


async def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await anext(read_lines(tmp_path / "none"))
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        await anext(read_lines(tmp_path))


def test_what_may_block(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        assert may_block(reading)
    finally:
        os.close(reading)
        os.close(writing)
    file = tmp_path / "file"
    file.write_bytes(b"")
    with file.open() as opened:
        assert not may_block(opened.fileno())


@pytest.mark.parametrize(
    ("line", "field", "key"),
    [
        (b'{"k": "a"}', "k", "a"),
        (b'{"k": 5}', "k", "5"),
        (b'{"k": true}', "k", "true"),
        (b'{"a": {"b": "c"}}', "a.b", "c"),
        ('{"k": "ü"}'.encode(), "k", "ü"),
    ],
)
def test_keys(line: bytes, field: str, key: str) -> None:
    assert key_of(line, field) == key


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"text", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "has no field k"),
        (b'{"l": 1}', "has no field k"),
        (b'{"k": null}', "has neither text nor a number in field k"),
        (b'{"k": {}}', "has neither text nor a number in field k"),
        (b'{"k": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "has too many objects or arrays within each other"),
    ],
)
def test_lines_without_a_key(line: bytes, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        key_of(line, "k")


def test_grouping_keeps_the_order_within_a_key() -> None:
    lines = [b'{"k":"%s","n":%d}' % (key, number) for number, key in enumerate([b"a", b"b", b"a", b"c", b"b"])]
    found = by_key([*lines[:2], b"", *lines[2:]], "k")
    assert found.groups == {"a": [lines[0], lines[2]], "b": [lines[1], lines[4]], "c": [lines[3]]}
    assert found.error is None


def test_a_line_without_a_key_is_named_and_those_before_it_are_kept() -> None:
    lines = [b'{"k":1}', b"", b'{"l":2}', b'{"k":3}']
    found = by_key(lines, "k", first_number=1001)
    assert found.groups == {"1": [lines[0]]}
    assert str(found.error) == "line 1,003 has no field k: '{\"l\":2}'"
