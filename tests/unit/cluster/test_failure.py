"""Failure detection: silence on the observer's own clock, and the doubt when more than half fall silent.

See docs/design.md#failure-detection.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.failure import FailureDetector, Renewal, Verdict


class Fleet:
    """Workers that renew once a second, and an observer that looks once a second."""

    def __init__(self, names: str, start_s: float = 1000.0) -> None:
        self.detector = FailureDetector(lapse_s=5.0, together_s=2.0)
        self.now_s = start_s
        self.renewals = {name: Renewal("i", 0) for name in names}
        self.silent: set[str] = set()
        self.verdict = Verdict()

    def look(self, *, reachable: bool = True, expected: str = "") -> Verdict:
        """One second later."""
        self.now_s += 1.0
        for name, renewal in self.renewals.items():
            if name not in self.silent:
                self.renewals[name] = Renewal(renewal.incarnation, renewal.number + 1)
        if not reachable:
            self.detector.lost_contact()
            return self.verdict
        self.detector.look(self.now_s, dict(self.renewals), frozenset(expected))
        self.verdict = self.detector.verdict(self.now_s)
        return self.verdict

    def until(self, state: Callable[[Verdict], object], looks_max: int = 60) -> int:
        """Looks until the verdict is so."""
        for looks in range(1, looks_max + 1):
            if state(self.look()):
                return looks
        raise AssertionError(self.verdict)


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet("abcde")
    fleet.look()
    fleet.look()
    return fleet


def test_no_worker_is_known_alive_before_a_renewal_was_seen() -> None:
    fleet = Fleet("ab")
    assert fleet.look().unheard == ("a", "b")
    assert fleet.look() == Verdict(alive=("a", "b"))


def test_who_falls_silent_alone_is_dead_after_the_lapse(fleet: Fleet) -> None:
    fleet.silent.add("c")
    assert fleet.until(lambda verdict: verdict.dead) == 5
    assert fleet.verdict == Verdict(alive=("a", "b", "d", "e"), dead=("c",))


def test_a_renewal_just_in_time_is_one(fleet: Fleet) -> None:
    fleet.silent.add("c")
    for _ in range(4):
        assert not fleet.look().dead
    fleet.silent.clear()
    for _ in range(10):
        assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_who_comes_back_lives(fleet: Fleet) -> None:
    fleet.silent.add("c")
    fleet.until(lambda verdict: verdict.dead)
    fleet.renewals["c"] = Renewal("next", 0)
    assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_more_than_half_at_once_are_held_for_a_period_and_then_asked(fleet: Fleet) -> None:
    fleet.silent.update("abc")
    assert fleet.until(lambda verdict: verdict.held) == 5
    for _ in range(4):
        assert fleet.look() == Verdict(alive=("d", "e"), held=("a", "b", "c"))
    assert fleet.look().ask == ("a", "b", "c")
    for name in "abc":
        fleet.detector.answered(name, fleet.now_s, alive=name != "b")
    assert fleet.detector.verdict(fleet.now_s) == Verdict(alive=("d", "e"), held=("a", "c"), dead=("b",))
    # Those that answered stay held, whatever the others are by now, and are asked once a period.
    asked = [look for look in range(1, 21) if fleet.look().ask]
    assert asked[0] == 5
    assert fleet.verdict.held == ("a", "c")
    assert fleet.verdict.dead == ("b",)


def test_half_is_not_more_than_half() -> None:
    fleet = Fleet("abcd")
    fleet.look()
    fleet.look()
    fleet.silent.update("ab")
    fleet.until(lambda verdict: verdict.dead)
    assert fleet.verdict == Verdict(alive=("c", "d"), dead=("a", "b"))


def test_who_falls_silent_one_after_the_other_lapses_together(fleet: Fleet) -> None:
    """An outage that only the workers see: their last renewals are up to a period apart."""
    for name in "ab":
        fleet.silent.add(name)
    fleet.look()
    fleet.silent.update("cde")
    assert fleet.until(lambda verdict: verdict.held) == 4
    for _ in range(3):
        assert not fleet.look().dead
    assert fleet.verdict.held == tuple("abcde")


def test_who_was_only_late_does_not_save_who_is_dead(fleet: Fleet) -> None:
    fleet.silent.add("a")
    fleet.look()
    fleet.silent.update("bc")
    assert fleet.until(lambda verdict: verdict.held) == 4
    fleet.silent.difference_update("bc")
    assert fleet.look() == Verdict(alive=("b", "c", "d", "e"), dead=("a",))


def test_who_comes_back_before_the_first_lapses_was_only_late() -> None:
    """A short outage that the workers alone see may end for one of two at the look that the other lapses with."""
    fleet = Fleet("ab")
    fleet.look()
    fleet.look()
    fleet.silent.update("ab")
    for _ in range(4):
        assert fleet.look() == Verdict(alive=("a", "b"))
    fleet.silent.discard("b")
    assert fleet.look() == Verdict(alive=("b",), dead=("a",))
    fleet.silent.clear()
    assert fleet.look() == Verdict(alive=("a", "b"))


def test_those_that_come_back_first_do_not_condemn_the_others(fleet: Fleet) -> None:
    fleet.silent.update("abc")
    fleet.until(lambda verdict: verdict.held)
    fleet.silent.discard("a")
    for _ in range(3):
        assert fleet.look() == Verdict(alive=("a", "d", "e"), held=("b", "c"))
    fleet.silent.clear()
    assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_the_last_worker_is_never_given_up_unasked() -> None:
    fleet = Fleet("a")
    fleet.look()
    fleet.look()
    fleet.silent.add("a")
    fleet.until(lambda verdict: verdict.ask)
    assert fleet.verdict.held == ("a",)


def test_the_end_of_the_silence_is_the_end_of_the_doubt(fleet: Fleet) -> None:
    fleet.silent.update("abc")
    fleet.until(lambda verdict: verdict.held)
    fleet.silent.clear()
    assert fleet.look() == Verdict(alive=tuple("abcde"))
    fleet.silent.add("a")
    fleet.until(lambda verdict: verdict.dead)
    assert fleet.verdict.dead == ("a",)


def test_an_outage_of_the_api_is_nobodys_silence(fleet: Fleet) -> None:
    for _ in range(60):
        fleet.look(reachable=False)
    assert fleet.look().unheard == tuple("abcde")
    assert fleet.look().alive == tuple("abcde")


def test_who_died_during_an_outage_is_given_a_whole_lapse_after_it(fleet: Fleet) -> None:
    for _ in range(60):
        fleet.silent.add("a")
        fleet.look(reachable=False)
    assert fleet.until(lambda verdict: verdict.dead) == 6
    assert fleet.verdict.dead == ("a",)


def test_a_pause_of_the_observer_is_nobodys_silence(fleet: Fleet) -> None:
    fleet.now_s += 300
    assert not fleet.look().dead
    assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_few_looks_prove_nothing_however_long_they_take(fleet: Fleet) -> None:
    fleet.silent.add("a")
    fleet.now_s += 3.9
    fleet.look()
    assert not fleet.verdict.dead
    fleet.now_s += 3.9
    assert not fleet.look().dead
    assert fleet.look().dead == ("a",)


def test_an_old_list_is_no_renewal(fleet: Fleet) -> None:
    old = dict(fleet.renewals)
    fleet.look()
    fleet.renewals["a"] = Renewal("next", 1)
    fleet.look()
    fleet.silent.add("a")
    for look in range(8):
        fleet.look()
        if look % 2:  # what is listed twice a second: the state of now, and an old one
            fleet.detector.look(fleet.now_s, old)
            fleet.verdict = fleet.detector.verdict(fleet.now_s)
    assert fleet.verdict.dead == ("a",)


def test_a_process_of_before_that_renews_again_lives(fleet: Fleet) -> None:
    """Two processes of one worker, of which the older one has the Lease in the end."""
    fleet.renewals["a"] = Renewal("j", 1)
    assert "a" in fleet.look().alive
    fleet.renewals["a"] = Renewal("i", 10)
    fleet.silent.add("a")
    assert "a" in fleet.look().alive
    fleet.silent.clear()
    for _ in range(20):
        assert "a" in fleet.look().alive


def test_a_worker_without_a_lease_lapses_too() -> None:
    fleet = Fleet("abc")
    for _ in range(5):
        assert fleet.look(expected="abcx").unheard[-1:] in (("x",), ("c",))
        assert not fleet.verdict.dead
    assert fleet.look(expected="abcx") == Verdict(alive=tuple("abc"), dead=("x",))
    assert fleet.look() == Verdict(alive=tuple("abc"))


def test_a_wiped_lease_that_is_made_again_in_time_is_nothing(fleet: Fleet) -> None:
    gone = fleet.renewals.pop("a")
    for _ in range(3):
        assert fleet.look() == Verdict(alive=tuple("abcde"))
    fleet.renewals["a"] = gone
    assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_a_new_worker_lives_at_once(fleet: Fleet) -> None:
    fleet.renewals["f"] = Renewal("i", 0)
    assert "f" in fleet.look().alive


def test_who_is_silent_and_refuses_connections_is_dead_before_the_lapse(fleet: Fleet) -> None:
    fleet.silent.add("c")
    fleet.look()
    assert not fleet.detector.suspects(fleet.now_s), "one look proves nothing"
    fleet.look()
    assert fleet.detector.suspects(fleet.now_s) == ("c",)
    fleet.detector.refused("c", fleet.now_s)
    assert fleet.detector.verdict(fleet.now_s) == Verdict(alive=("a", "b", "d", "e"), dead=("c",))
    assert not fleet.detector.suspects(fleet.now_s)
    fleet.renewals["c"] = Renewal("next", 0)
    assert fleet.look() == Verdict(alive=tuple("abcde"))


def test_who_renews_meanwhile_lives_whatever_its_address_said(fleet: Fleet) -> None:
    fleet.silent.add("c")
    fleet.look()
    fleet.look()
    fleet.silent.clear()
    fleet.look()
    fleet.detector.refused("c", fleet.now_s)
    assert fleet.detector.verdict(fleet.now_s) == Verdict(alive=tuple("abcde"))


def test_more_than_half_are_not_suspected_together_nor_one_after_the_other(fleet: Fleet) -> None:
    """What refuses connections to most of the workers may be the network between them and the observer."""
    fleet.silent.update("abc")
    for _ in range(4):
        fleet.look()
        assert not fleet.detector.suspects(fleet.now_s)
    fleet.silent.clear()
    fleet.look()
    fleet.silent.update("ab")
    fleet.look()
    fleet.silent.add("c")
    fleet.look()
    assert fleet.detector.suspects(fleet.now_s) == ("a", "b")
    for name in "ab":
        fleet.detector.refused(name, fleet.now_s)
    fleet.look()
    assert not fleet.detector.suspects(fleet.now_s)
    assert fleet.look().dead == ("a", "b")
    assert not fleet.detector.suspects(fleet.now_s)
    fleet.look()
    assert fleet.detector.suspects(fleet.now_s) == ("c",), "the others lapsed by now, whichever worker answers"


def test_half_of_the_workers_may_be_suspected() -> None:
    fleet = Fleet("abcd")
    fleet.look()
    fleet.look()
    fleet.silent.update("ab")
    fleet.look()
    fleet.look()
    assert fleet.detector.suspects(fleet.now_s) == ("a", "b")


def test_an_outage_of_the_api_makes_no_worker_suspect(fleet: Fleet) -> None:
    fleet.silent.add("a")
    for _ in range(10):
        fleet.look(reachable=False)
    fleet.look()
    assert not fleet.detector.suspects(fleet.now_s)


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcde")), st.booleans(), st.sampled_from([1.0, 2.5, 7.0]))))
def test_no_worker_is_dead_without_a_whole_lapse_of_looks_at_the_silence(
    looks: list[tuple[set[str], bool, float]],
) -> None:
    """Whatever is renewed, reached and delayed; and the verdict names each worker once."""
    fleet = Fleet("abcde")
    seen_s = dict.fromkeys("abcde", fleet.now_s)
    dead: set[str] = set()
    for silent, reachable, delay_s in looks:
        before = dict(fleet.renewals)
        fleet.silent = silent
        fleet.now_s += delay_s - 1.0
        verdict = fleet.look(reachable=reachable)
        for name in "abcde":
            if not reachable or delay_s > 5 or fleet.renewals[name] != before[name]:
                seen_s[name] = fleet.now_s
        if reachable:
            states = [*verdict.alive, *verdict.unheard, *verdict.held, *verdict.dead]
            assert sorted(states) == list("abcde")
            assert not [name for name in verdict.dead if name not in dead and fleet.now_s - seen_s[name] < 5.0]
            dead = set(verdict.dead)
