"""Conditions, Events, finalizers: what an outcome changes in an object (Kubernetes API conventions)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.kube.manifests import FINALIZER
from tailrace_operator.reconcile.outcome import (
    Condition,
    Outcome,
    Status,
    changes_of,
    condition_of,
    merged,
    ready,
    transitions,
)

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def stored(kind: str, status: str = "True", reason: str = "Fine", generation: int = 1) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "As it was.",
        "lastTransitionTime": THEN,
        "observedGeneration": generation,
    }


def manifest(status: Any = None, generation: int = 1, **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"metadata": {"generation": generation, **metadata}}
    return found if status is None else {**found, "status": status}


CONDITIONS = st.builds(
    Condition,
    st.sampled_from(["Ready", "Accepted", "Lagging"]),
    st.sampled_from(Status),
    st.sampled_from(["Fine", "Broken"]),
    st.sampled_from(["One.", "Two."]),
)
OWN = st.lists(CONDITIONS, unique_by=lambda condition: condition.type)


def test_the_time_of_a_condition_is_that_of_its_status() -> None:
    before = [stored("Ready")]
    (same,) = merged(before, [Condition("Ready", Status.TRUE, "Better", "Still.")], 2, NOW)
    assert (same["lastTransitionTime"], same["reason"], same["observedGeneration"]) == (THEN, "Better", 2)
    (other,) = merged(before, [Condition("Ready", Status.FALSE, "Broken", "Not now.")], 2, NOW)
    assert (other["lastTransitionTime"], other["status"]) == (NOW, "False")


def test_conditions_of_others_stay() -> None:
    foreign = {**stored("Foreign"), "extra": 1}
    found = merged([foreign, stored("Ready")], [Condition("Ready", Status.FALSE, "Broken", "No.")], 1, NOW)
    assert found[0] == foreign
    assert [item["type"] for item in found] == ["Foreign", "Ready"]


@pytest.mark.parametrize("damaged", [None, "x", 7, {}, [1, "a", None, {"status": "True"}], {"type": "Ready"}])
def test_conditions_that_cannot_be_read_count_as_lost(damaged: Any) -> None:
    found = merged(damaged, [Condition("Ready", Status.TRUE, "Fine", "Yes.")], 1, NOW)
    assert [item["type"] for item in found] == ["Ready"]


@given(OWN, OWN)
def test_what_is_written_is_written_once(first: list[Condition], second: list[Condition]) -> None:
    """The same outcome again changes nothing, and creates no Event."""
    status: dict[str, Any] = {}
    for outcome in (Outcome(tuple(first)), Outcome(tuple(second))):
        changes = changes_of(manifest(status), outcome, 1, NOW)
        status = {**status, **(changes.status or {})}
        again = changes_of(manifest(status), outcome, 1, NOW)
        assert (again.status, again.notices) == (None, ())


@given(OWN, OWN)
def test_each_changed_condition_creates_at_most_one_event(first: list[Condition], second: list[Condition]) -> None:
    before = merged([], first, 1, THEN)
    notices = transitions(before, second)
    changed = {
        condition.type
        for condition in second
        for item in before
        if item["type"] == condition.type and (item["status"], item["reason"]) != (condition.status, condition.reason)
    }
    new = {condition.type for condition in second} - {item["type"] for item in before}
    assert len(notices) <= len(changed | new)
    assert not (notices and not changed and not new)


def test_ready_does_not_repeat_what_another_condition_says() -> None:
    part = Condition("Tier2Ready", Status.FALSE, "SecretMissing", "There is no Secret.")
    notices = transitions([], [part, ready([part], "Serving", "Yes.")])
    assert [(notice.reason, notice.warning) for notice in notices] == [("SecretMissing", True)]


def test_ready_sums_up() -> None:
    good = Condition("A", Status.TRUE, "Fine", "Yes.")
    unknown = Condition("B", Status.UNKNOWN, "NotChecked", "Who knows.")
    bad = Condition("C", Status.FALSE, "Broken", "No.")
    assert ready([good], "Serving", "All.").status is Status.TRUE
    assert ready([good, unknown], "Serving", "All.").reason == "NotChecked"
    assert (ready([unknown, bad], "Serving", "All.").status, ready([unknown, bad], "S", "A.").reason) == (
        Status.FALSE,
        "Broken",
    )


def test_only_what_changes_is_written() -> None:
    status = {"observedGeneration": 1, "epoch": 3, "foreign": "stays"}
    changes = changes_of(manifest(status), Outcome(status={"epoch": 3, "segments": 2, "gone": None}), 1, NOW)
    assert changes.status == {"segments": 2}
    assert changes_of(manifest(status), Outcome(status={"epoch": None}), 1, NOW).status == {"epoch": None}


def test_a_field_that_is_gone_from_an_object_is_removed() -> None:
    """A merge patch keeps what it does not name, so a holder that lets go would stay for ever."""
    before = {"retention": {"bytes": 5, "held": {"by": "s/slow", "since": THEN}}, "observedGeneration": 1}
    after = Outcome(status={"retention": {"bytes": 5}})
    assert changes_of(manifest(before), after, 1, NOW).status == {"retention": {"bytes": 5, "held": None}}
    other = Outcome(status={"retention": {"bytes": 6, "held": {"by": "s/other"}}})
    wanted = {"retention": {"bytes": 6, "held": {"by": "s/other", "since": None}}}
    assert changes_of(manifest(before), other, 1, NOW).status == wanted
    same = Outcome(status={"retention": before["retention"]})
    assert changes_of(manifest(before), same, 1, NOW).status is None


def test_the_generation_is_the_one_that_was_looked_at() -> None:
    changes = changes_of(manifest({"observedGeneration": 1}, generation=9), Outcome(), 2, NOW)
    assert changes.status == {"observedGeneration": 2}


def test_a_generation_that_waits_is_not_observed() -> None:
    before = manifest({"observedGeneration": 1}, 2)
    waits = Outcome((Condition("Ready", Status.FALSE, "Waits", "Not yet."),), carried_out=False)
    changed = changes_of(before, waits, 2, NOW).status
    assert changed is not None
    assert "observedGeneration" not in changed
    assert changed["conditions"][0]["observedGeneration"] == 2, "the condition is of that generation"
    assert changes_of(before, Outcome(), 2, NOW).status == {"observedGeneration": 2}


def test_finalizers_come_and_go_beside_those_of_others() -> None:
    bare, ours = manifest(finalizers=["other/one"]), manifest(finalizers=["other/one", FINALIZER])
    assert changes_of(bare, Outcome(finalizer=True), 1, NOW).finalizers == ["other/one", FINALIZER]
    assert changes_of(ours, Outcome(finalizer=True), 1, NOW).finalizers is None
    assert changes_of(ours, Outcome(finalizer=False), 1, NOW).finalizers == ["other/one"]
    assert changes_of(ours, Outcome(), 1, NOW).finalizers is None
    leaving = manifest(deletionTimestamp=NOW)
    assert changes_of(leaving, Outcome(finalizer=True), 1, NOW).finalizers is None, "none may be added then"


def test_a_condition_counts_for_the_specification_that_it_saw() -> None:
    found = manifest({"conditions": [stored("Ready", generation=1)]}, generation=2)
    assert condition_of(found, "Ready") is None
    found["metadata"]["generation"] = 1
    assert condition_of(found, "Ready") is Status.TRUE
    assert condition_of(found, "Other") is None


def test_reasons_are_for_programs() -> None:
    with pytest.raises(ValueError, match="CamelCase"):
        Condition("Ready", Status.TRUE, "not camel", "Text.")
    with pytest.raises(ValueError, match="message"):
        Condition("Ready", Status.TRUE, "Fine", "")


AT = "2026-03-01T12:00:00Z"
MINUTES = {"1": "2026-03-01T12:01:00Z", "5": "2026-03-01T12:05:00Z"}
MEASURED = {
    "bytes": 1000,
    "retention": {"retainedBytes": 1000, "lastRun": "2026-03-01T11:00:00Z", "heldBy": {"subscriber": "s/g"}},
    "subscribers": [{"name": "s/g", "unreadBytes": 500}],
}


def with_measured(**changed: object) -> dict[str, object]:
    return {**MEASURED, **changed}


@pytest.mark.parametrize(
    "found",
    [
        with_measured(bytes=1099),
        with_measured(bytes=901),
        with_measured(subscribers=[{"name": "s/g", "unreadBytes": 549}]),
        with_measured(retention={**MEASURED["retention"], "lastRun": "2026-03-01T12:00:59Z"}),  # type: ignore[dict-item]
    ],
    ids=["more", "less", "nested", "time"],
)
def test_a_small_change_of_what_is_measured_is_written_after_five_minutes(found: dict[str, object]) -> None:
    before = {**MEASURED, "measuredTime": AT, "observedGeneration": 1}
    outcome = Outcome(measured=found)
    assert changes_of(manifest(before), outcome, 1, MINUTES["1"]).status is None
    written = changes_of(manifest(before), outcome, 1, MINUTES["5"]).status
    assert written is not None
    assert written.pop("measuredTime") == MINUTES["5"]
    assert written.keys() == {name for name in found if found[name] != MEASURED[name]}
    with_more = changes_of(manifest(before), Outcome(status={"epoch": 2}, measured=found), 1, MINUTES["1"]).status
    assert with_more == {"epoch": 2, "measuredTime": MINUTES["1"], **written}, "it costs nothing beside another change"


@pytest.mark.parametrize(
    "found",
    [
        with_measured(bytes=1100),
        with_measured(bytes=900),
        with_measured(bytes=0),
        with_measured(retention={"retainedBytes": 1000, "lastRun": "2026-03-01T11:00:00Z"}),
        with_measured(retention={**MEASURED["retention"], "heldBy": {"subscriber": "s/h"}}),  # type: ignore[dict-item]
        with_measured(subscribers=[*MEASURED["subscribers"], {"name": "s/h"}]),  # type: ignore[misc]
        with_measured(subscribers=[{"name": "s/g"}]),
        with_measured(subscribers=None),
    ],
    ids=["more", "less", "zero", "holder-gone", "another-holder", "subscriber", "no-cut", "no-subscribers"],
)
def test_a_large_change_of_what_is_measured_is_written_at_once(found: dict[str, object]) -> None:
    before = {**MEASURED, "measuredTime": AT, "observedGeneration": 1}
    written = changes_of(manifest(before), Outcome(measured=found), 1, MINUTES["1"]).status
    assert written is not None
    assert written["measuredTime"] == MINUTES["1"]
    assert len(written) == 2


def test_a_field_may_have_a_rule_of_its_own() -> None:
    before = {**MEASURED, "rates": 10, "measuredTime": AT, "observedGeneration": 1}

    def changed(rates: int, **more: object) -> dict[str, object] | None:
        outcome = Outcome(measured=with_measured(rates=rates, **more), near={"rates": lambda found, new: new != 100})
        return changes_of(manifest(before), outcome, 1, MINUTES["1"]).status

    assert changed(50) is None
    assert changed(100) == {"rates": 100, "measuredTime": MINUTES["1"]}
    assert changed(50, bytes=2000) == {"rates": 50, "bytes": 2000, "measuredTime": MINUTES["1"]}


@pytest.mark.parametrize("time", [None, "yesterday", "2026-03-01T12:02:00Z"], ids=["never", "no-time", "ahead"])
def test_what_was_measured_at_an_unknown_time_is_written(time: str | None) -> None:
    before = {**MEASURED, "observedGeneration": 1, **({} if time is None else {"measuredTime": time})}
    outcome = Outcome(measured=with_measured(bytes=1001))
    assert changes_of(manifest(before), outcome, 1, MINUTES["1"]).status == {
        "bytes": 1001,
        "measuredTime": MINUTES["1"],
    }
    assert changes_of(manifest(before), Outcome(measured=MEASURED), 1, MINUTES["1"]).status is None, "nothing changed"
