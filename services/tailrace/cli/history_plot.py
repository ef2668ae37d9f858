"""Draw a stream's segments over time as a PNG, with its head and the positions of its subscribers."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from tailrace.cli.history import cut_lines
from tailrace.common.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from tailrace.cli.history import SegmentSpan
    from tailrace.client.control.history import StreamHistory

_COLORS: Final = ("#b5442c", "#5b3f8f", "#2c7a4b", "#a8741a", "#1f7f8f", "#8f2f6a")
SEALED_COLOR: Final = "#c9d8e4"
ACTIVE_COLOR: Final = "#8fb8d6"
"""Of the boxes of sealed segments, and of the others."""
_LABELED_MAX: Final = 60
"""Segments that are labeled with their numbers; more labels would cover each other."""


def plot(stream: str, found: StreamHistory, spans: Sequence[SegmentSpan], file: Path) -> None:
    """Write `figure_of` as a PNG.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    figure_of(stream, found, spans).savefig(file, format="png", dpi=120)


def figure_of(stream: str, found: StreamHistory, spans: Sequence[SegmentSpan]) -> Figure:
    """Draw time to the right, routing keys upwards, a box for each segment, the present head, a line for each cut.

    The group id (``gid``) of each of them says what it is: ``segment ID``, ``truncated``, ``read by SCOPE/GROUP``.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib import dates
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: install tailrace[dev]") from error
    figure = Figure(figsize=(11, 5), layout="constrained")
    panel: Any = figure.subplots()
    _draw_segments(panel, spans)
    _draw_head(panel, found, spans)
    for number, (name, cut) in enumerate(found.subscribers.items()):
        if cut:
            _draw_cut(panel, cut_lines(spans, cut), _COLORS[number % len(_COLORS)], f"read by {name}")
    of_dates: Any = dates  # it has no types
    locator = of_dates.AutoDateLocator(tz=datetime.UTC)
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(of_dates.ConciseDateFormatter(locator, tz=datetime.UTC))
    panel.set(ylim=(0, 1), ylabel="routing keys, hashed", xlabel="time, UTC")
    panel.set_title(f"{stream}: {len(found.epochs)} epochs, {len(spans)} segments", fontsize=10)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(loc="upper left", fontsize=8)
    return figure


def _draw_segments(panel: Any, spans: Sequence[SegmentSpan]) -> None:
    for span in spans:
        begin, end = _time(span.from_ms), _time(span.to_ms)
        color = SEALED_COLOR if span.is_sealed else ACTIVE_COLOR
        panel.fill_between(
            [begin, end], span.low, span.high, facecolor=color, edgecolor="#ffffff", linewidth=1.2,
            gid=f"segment {span.identifier}",
        )  # fmt: skip
        if len(spans) <= _LABELED_MAX:
            middle = begin + (end - begin) / 2
            number = span.identifier & 0xFFFFFFFF
            panel.text(middle, (span.low + span.high) / 2, str(number), ha="center", va="center", fontsize=8)


def _draw_head(panel: Any, found: StreamHistory, spans: Sequence[SegmentSpan]) -> None:
    """Shade what lies before the present head, key by key. Earlier heads are not recorded."""
    lines = cut_lines(spans, found.head)
    if not lines:
        return
    first = _time(found.epochs[0].created_ms)
    for number, (low, high, at_ms) in enumerate(lines):
        label = "truncated" if number == 0 else None
        panel.fill_between(
            [first, _time(at_ms)], low, high, facecolor="#ffffff", alpha=0.75, hatch="///", edgecolor="#999999",
            linewidth=0, label=label, gid="truncated",
        )  # fmt: skip


def _draw_cut(panel: Any, lines: Sequence[tuple[float, float, float]], color: str, label: str) -> None:
    times, keys = [], []
    for low, high, at_ms in lines:
        times += [_time(at_ms)] * 2
        keys += [low, high]
    panel.plot(times, keys, color=color, linewidth=2, label=label, gid=label)


def _time(ms: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
