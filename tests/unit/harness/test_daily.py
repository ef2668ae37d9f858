"""What CI leaves out by the day has its turn on others, and nothing is left out without a day."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import pytest

from harness import daily

GROUPS = (("a/test_one.py",), ("a/test_two.py::test_x", "a/test_two.py::test_y[z-"), ("b/",))
IDS = [
    "tests/a/test_one.py::test_x",
    "tests/a/test_two.py::test_x",
    "tests/a/test_two.py::test_y[z-1]",
    "tests/a/test_two.py::test_y[w-1]",
    "tests/b/test_one.py::test_x",
    "tests/c/test_one.py::test_x",
]


def kept(count: int) -> list[str]:
    items = [SimpleNamespace(nodeid=name) for name in IDS]
    deselected: list[SimpleNamespace] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    daily.leave_out(SimpleNamespace(hook=hook), items, GROUPS, count)  # type: ignore[arg-type]
    assert sorted(item.nodeid for item in (*items, *deselected)) == sorted(IDS)
    return [item.nodeid for item in items]


@pytest.mark.parametrize("count", [1, 2])
def test_each_group_has_its_turn_as_often_as_the_others(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_TEST_PROFILE", "ci")
    first = datetime.date(2026, 11, 26)
    turns = dict.fromkeys(IDS, 0)
    for number in range(3):
        monkeypatch.setenv("TAILRACE_TEST_DAY", (first + datetime.timedelta(days=number)).isoformat())
        for name in kept(count):
            turns[name] += 1
    assert turns == {name: 3 if "[w-" in name or "/c/" in name else count for name in IDS}


@pytest.mark.parametrize(("profile", "day"), [("ci", ""), ("full", "2026-11-26")])
def test_all_run_without_a_day_and_in_the_long_form(profile: str, day: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_TEST_PROFILE", profile)
    monkeypatch.setenv("TAILRACE_TEST_DAY", day)
    assert kept(1) == IDS
