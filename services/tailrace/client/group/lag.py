"""How long a group's oldest unread event has waited, by the stream cuts that retention recorded; pure.

Events have no times. A recorded cut says what a stream had at a time, so each bounds the times of what lies before it
and of what lies behind it (docs/cli.md#reader-groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.client.control.history import TimedCut


class Lag(NamedTuple):
    """The oldest unread event has waited for ``least_s`` to ``most_s`` seconds; 0 without one, None: not known."""

    least_s: float | None
    most_s: float | None


NOTHING_UNREAD = Lag(0.0, 0.0)


def lag_of(unread: Mapping[int, int], cuts: Sequence[TimedCut], now_ms: int) -> Lag:
    """Return the lag of a position in one stream.

    `unread`: by segment with unread bytes, where they begin. `cuts`: oldest first.
    """
    if not unread:
        return NOTHING_UNREAD
    most_s = None
    for cut in cuts:
        age_s = max(0, now_ms - cut.recorded_ms) / 1000
        if any((end := cut.end_of(each)) is None or end > offset for each, offset in unread.items()):
            return Lag(age_s, most_s)
        most_s = age_s
    return Lag(None, most_s)


def longest(lags: Iterable[Lag]) -> Lag:
    """Return the lag of a group from those of its streams."""
    found = list(lags)
    least = [each.least_s for each in found if each.least_s is not None]
    most = [each.most_s for each in found if each.most_s is not None]
    known = len(least) == len(found) or any(least)
    return Lag(
        max(least, default=0.0) if known else None,
        max(most, default=0.0) if len(most) == len(found) else None,
    )
