"""How long the oldest unread event has waited: bounds by recorded cuts, against the times of single bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.control.history import TimedCut
from tailrace.client.group.lag import NOTHING_UNREAD, Lag, lag_of, longest
from tailrace.common.names import segment_id


@given(st.data())
def test_bounds_are_true_and_the_nearest_that_cuts_give(data: st.DataObject) -> None:
    """A segment that is replaced by another one at some time; a byte is written at each second."""
    total = data.draw(st.integers(1, 40))
    sealed = data.draw(st.integers(1, total))
    segments = (segment_id(0, 0), segment_id(1, 1))
    times = sorted(data.draw(st.sets(st.integers(0, total), max_size=8)))
    cuts = [
        TimedCut(1000 * time, {segments[0]: time} if time <= sealed else {segments[1]: time - sealed}) for time in times
    ]
    read = data.draw(st.integers(0, total))
    unread = {}
    if read < sealed:
        unread[segments[0]] = read
    if max(read, sealed) < total:
        unread[segments[1]] = max(read, sealed) - sealed
    now = total + data.draw(st.integers(0, 10))
    found = lag_of(unread, cuts, 1000 * now)
    if read == total:
        assert found == NOTHING_UNREAD
        return
    before, behind = [time for time in times if time <= read], [time for time in times if time > read]
    assert found == Lag(now - min(behind) if behind else None, now - max(before) if before else None)


def test_a_group_waits_as_long_as_the_slowest_of_its_streams() -> None:
    assert longest([]) == NOTHING_UNREAD
    assert longest([NOTHING_UNREAD, Lag(3.0, 9.0), Lag(5.0, 7.0)]) == Lag(5.0, 9.0)
    assert longest([Lag(3.0, None), Lag(5.0, 7.0)]) == Lag(5.0, None)
    assert longest([Lag(None, 4.0), NOTHING_UNREAD]) == Lag(None, 4.0), "something is unread, for how long is unknown"
    assert longest([Lag(None, 4.0), Lag(2.0, 3.0)]) == Lag(2.0, 4.0)
