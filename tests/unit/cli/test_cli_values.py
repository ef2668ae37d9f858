"""Sizes, durations, bounds and positions of the command line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.commands.arguments import place_of
from tailrace.cli.values import (
    INT64_MAX,
    Bounds,
    count_text,
    duration_text,
    parse_bounds,
    parse_duration_ms,
    parse_position,
    parse_size,
)
from tailrace.common.errors import BadRequestError
from tailrace.common.quantities import size_text
from tailrace.common.stream_cut import StreamCut


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("12b", 12),
        ("256MiB", 256 * 2**20),
        ("256 mib", 256 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("0.1KiB", 102),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e3", "1..5KB", "5 XB", "1,000", "99999999999TiB", "1.KB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("500ms", 500), ("90s", 90_000), ("1.5m", 90_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1W", 604_800_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 years", "10MiB"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_duration_ms(text)


@given(st.integers(0, INT64_MAX))
def test_a_duration_reads_as_it_was_written(duration_ms: int) -> None:
    assert parse_duration_ms(duration_text(duration_ms)) == duration_ms


def test_bounds() -> None:
    assert parse_bounds("1d", parse_duration_ms) == Bounds(86_400_000)
    assert parse_bounds("1KiB:2KiB", parse_size) == Bounds(1024, 2048)
    for text in ("2KiB:1KiB", "1KiB:", ":1KiB", "1:2:3"):
        with pytest.raises(BadRequestError):
            parse_bounds(text, parse_size)


def test_positions() -> None:
    cut = StreamCut("demo", "sensors", {0: 12, 1 << 32 | 3: 0})
    assert parse_position("head") == "head"
    assert parse_position("TAIL") == "tail"
    assert parse_position("UNBOUNDED") == "head"
    assert parse_position(cut.to_text()) == cut
    with pytest.raises(BadRequestError, match="is not head, tail or a stream cut"):
        parse_position("middle")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (2**50, "1,024.0 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (5000, "5,000 events")])
def test_counts_for_people(count: int, text: str) -> None:
    assert count_text(count, "event") == text


def test_a_path_for_spark_is_absolute_and_not_escaped() -> None:
    assert place_of("/data/my folder/*.parquet") == "file:///data/my folder/*.parquet"
    assert place_of("out") == f"file://{Path.cwd()}/out"
    assert place_of("s3a://bucket/out") == "s3a://bucket/out"
    assert place_of("s3://bucket/out") == "s3a://bucket/out"
