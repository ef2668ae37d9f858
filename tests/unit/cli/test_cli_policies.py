"""What an update makes of policies and tags."""

import pytest
import typer

from tailrace.cli.commands.policies import changed_retention, changed_scaling, changed_tags, config_fields
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig

FIXED = ScalingPolicy.fixed(4)
EVENTS = ScalingPolicy.by_events(1000, 3, 2)
KBYTES = ScalingPolicy.by_kbytes(500, 4, 5)
NOTHING = (None, None, None, None, None)


@pytest.mark.parametrize(
    ("present", "options", "wanted"),
    [
        (FIXED, NOTHING, FIXED),
        (EVENTS, NOTHING, EVENTS),
        (FIXED, (6, None, None, None, None), ScalingPolicy.fixed(6)),
        (EVENTS, (6, None, None, None, None), ScalingPolicy.fixed(6)),
        (FIXED, (None, 10, None, None, None), ScalingPolicy.by_events(10, 2, 1)),
        (EVENTS, (None, 10, None, None, None), ScalingPolicy.by_events(10, 3, 2)),
        (EVENTS, (None, None, 10, None, 7), ScalingPolicy.by_kbytes(10, 3, 7)),
        (EVENTS, (None, None, None, 5, None), ScalingPolicy.by_events(1000, 5, 2)),
        (KBYTES, (None, None, None, None, 9), ScalingPolicy.by_kbytes(500, 4, 9)),
    ],
)
def test_scaling(present: ScalingPolicy, options: tuple[int | None, ...], wanted: ScalingPolicy) -> None:
    assert changed_scaling(present, *options) == wanted  # type: ignore[call-arg]  # five options


@pytest.mark.parametrize(
    ("present", "options"),
    [
        (FIXED, (None, None, None, 2, None)),
        (FIXED, (None, None, None, None, 2)),
        (EVENTS, (6, None, None, None, 2)),
        (EVENTS, (6, 10, None, None, None)),
        (EVENTS, (None, 10, 10, None, None)),
    ],
)
def test_options_that_do_not_go_together(present: ScalingPolicy, options: tuple[int | None, ...]) -> None:
    with pytest.raises(typer.BadParameter):
        changed_scaling(present, *options)  # type: ignore[call-arg]  # five options


def test_retention() -> None:
    present = RetentionPolicy.by_size_bytes(10)
    assert changed_retention(present, None, None, False) == present
    assert changed_retention(present, None, None, True) is None
    assert changed_retention(None, None, None, True) is None
    assert changed_retention(present, "1s:2s", None, False) == RetentionPolicy.by_time_ms(1000, 2000)
    assert changed_retention(None, None, "1KB", False) == RetentionPolicy.by_size_bytes(1000)
    with pytest.raises(typer.BadParameter):
        changed_retention(present, None, "1KB", True)


def test_tags() -> None:
    assert changed_tags(("a", "b"), [], []) == ("a", "b")
    assert changed_tags(("a", "b"), ["c", "a", "c"], ["b"]) == ("a", "c")
    assert changed_tags(("a",), ["a"], ["a"]) == ()


def test_one_segment_is_singular() -> None:
    assert config_fields(StreamConfig())[1]["scaling"] == "fixed, 1 segment"
    assert config_fields(StreamConfig(FIXED))[1]["scaling"] == "fixed, 4 segments"
