"""What an update makes of policies and tags."""

import pytest
import typer

from tailrace.cli.commands.policies import ScalingOptions, changed_retention, changed_tags, config_fields
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig

FIXED = ScalingPolicy.fixed(4)
EVENTS = ScalingPolicy.by_events(1000, 3, 2)
KBYTES = ScalingPolicy.by_kbytes(500, 4, 5)
NOTHING = ScalingOptions()


@pytest.mark.parametrize(
    ("present", "options", "wanted"),
    [
        (FIXED, NOTHING, FIXED),
        (EVENTS, NOTHING, EVENTS),
        (FIXED, ScalingOptions(segments=6), ScalingPolicy.fixed(6)),
        (EVENTS, ScalingOptions(segments=6), ScalingPolicy.fixed(6)),
        (FIXED, ScalingOptions(event_rate=10), ScalingPolicy.by_events(10, 2, 1)),
        (EVENTS, ScalingOptions(event_rate=10), ScalingPolicy.by_events(10, 3, 2)),
        (EVENTS, ScalingOptions(kb_rate=10, minimum=7), ScalingPolicy.by_kbytes(10, 3, 7)),
        (EVENTS, ScalingOptions(factor=5), ScalingPolicy.by_events(1000, 5, 2)),
        (KBYTES, ScalingOptions(minimum=9), ScalingPolicy.by_kbytes(500, 4, 9)),
    ],
)
def test_scaling(present: ScalingPolicy, options: ScalingOptions, wanted: ScalingPolicy) -> None:
    assert options.changed(present) == wanted


@pytest.mark.parametrize(
    ("present", "options"),
    [
        (FIXED, ScalingOptions(factor=2)),
        (FIXED, ScalingOptions(minimum=2)),
        (EVENTS, ScalingOptions(segments=6, minimum=2)),
        (EVENTS, ScalingOptions(segments=6, event_rate=10)),
        (EVENTS, ScalingOptions(event_rate=10, kb_rate=10)),
    ],
)
def test_options_that_do_not_go_together(present: ScalingPolicy, options: ScalingOptions) -> None:
    with pytest.raises(typer.BadParameter):
        options.changed(present)


def test_retention() -> None:
    present = RetentionPolicy.by_size_bytes(10)
    assert changed_retention(present, None, None, False) == present
    assert changed_retention(present, None, None, True) is None
    assert changed_retention(None, None, None, True) is None
    assert changed_retention(present, "1s:2s", None, False) == RetentionPolicy.by_time_ms(1000, 2000)
    assert changed_retention(None, None, "1KB", False) == RetentionPolicy.by_size_bytes(1000)
    with pytest.raises(typer.BadParameter):
        changed_retention(present, None, "1KB", True)


@pytest.mark.parametrize(
    ("time", "size", "noted"),
    [
        ("0s", None, "--retention-time 0s"),
        (None, "0", "--retention-size 0"),
        (None, "0:1KB", "--retention-size 0:1KB"),
        ("1s", None, ""),
        (None, "1KB:2KB", ""),
    ],
)
def test_retention_that_keeps_nothing_is_noted(
    time: str | None, size: str | None, noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is allowed: with subscribers it keeps what they have not read."""
    policy = changed_retention(None, time, size, False)
    assert policy is not None
    assert (policy.minimum == 0) == bool(noted)
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"{noted}: events are deleted that no subscribed reader group has yet to read, all of them"
        " without one; a minimum keeps some\n"
        if noted
        else "",
    )


def test_tags() -> None:
    assert changed_tags(("a", "b"), [], []) == ("a", "b")
    assert changed_tags(("a", "b"), ["c", "a", "c"], ["b"]) == ("a", "c")
    assert changed_tags(("a",), ["a"], ["a"]) == ()


def test_one_segment_is_singular() -> None:
    assert config_fields(StreamConfig())[1]["scaling"] == "fixed, 1 segment"
    assert config_fields(StreamConfig(FIXED))[1]["scaling"] == "fixed, 4 segments"
