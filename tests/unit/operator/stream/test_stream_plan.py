"""What is done next for a stream, and where that leads."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.control.owners import Holder, Scaled, StreamDescription, Truncated
from tailrace.common.stream_policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig
from tailrace_operator.kube.manifests import Notice
from tailrace_operator.reconcile.outcome import READY, Outcome, Status
from tailrace_operator.schema.specs import RetentionSpec, ScalingSpec, StreamSpec
from tailrace_operator.stream import conditions
from tailrace_operator.stream.owner import Owner
from tailrace_operator.stream.plan import (
    Claim,
    Create,
    Refuse,
    Scale,
    Sealed,
    Step,
    Update,
    Wait,
    next_step,
    wanted_config,
)

ME = Owner("here", "orders", "uid-1")
OTHER = Owner("here", "other", "uid-2")
SPEC = StreamSpec("main", "scope", "orders", ScalingSpec(min_segments=2), tags=("b", "a"))
NOW_MS = 1_700_000_200_000
NOW = conditions.Moment(NOW_MS)
POLICIES = dataclasses.replace(SPEC, scaling=ScalingSpec("ByteRate", 1, 5, 2), retention=RetentionSpec("Size", 1))
FOUND = StreamDescription(wanted_config(SPEC, None), str(ME), 0, "active", 0, 2, 0, 0)


def step(spec: StreamSpec = SPEC, *, owner_is_deleted: bool = False, **found: Any) -> Step | None:
    """The next step for a stream that differs from what it should be."""
    return next_step(spec, ME, FOUND._replace(**found), owner_is_deleted=owner_is_deleted)


def test_a_missing_stream_is_created() -> None:
    made = next_step(SPEC, ME, None, owner_is_deleted=False)
    assert made == Create(StreamConfig(ScalingPolicy.fixed(2), None, ("a", "b")))


def test_a_stream_in_step_needs_nothing() -> None:
    assert step() is None
    assert step(head_bytes=5, tail_bytes=9, epoch=3) is None


@pytest.mark.parametrize(
    ("owner", "gone", "expected"),
    [
        ("", False, Claim(0, "")),
        (str(OTHER), False, Refuse(str(OTHER))),
        (str(OTHER), True, Claim(0, str(OTHER))),
        (str(ME._replace(uid="uid-0")), True, Claim(0, str(ME._replace(uid="uid-0")))),
    ],
)
def test_whose_stream_it_is_comes_first(owner: str, gone: bool, expected: Step) -> None:
    changed = dataclasses.replace(SPEC, tags=("other",))
    assert step(changed, owner=owner, owner_is_deleted=gone) == expected


def test_a_stream_that_is_being_changed_is_waited_for() -> None:
    changed = dataclasses.replace(SPEC, tags=("other",))
    assert step(changed, state="scaling") == Wait("scaling")
    assert step(state="updating", segments=1) == Wait("updating")
    assert step(state="scaling") is None, "nothing has to be changed"
    assert step(state="deleting", owner="") == Wait("deleting")
    assert step(changed, state="sealed") == Sealed()


def test_a_fixed_number_of_segments_is_kept_and_a_rate_is_not_fought() -> None:
    assert step(segments=5) == Scale(2)
    assert step(segments=1) == Scale(2)
    rate = dataclasses.replace(SPEC, scaling=ScalingSpec("EventRate", 2, 100, 2))
    config = wanted_config(rate, None)
    assert config.scaling == ScalingPolicy(ScaleType.BY_RATE_IN_EVENTS, 2, 100, 2)
    assert step(rate, config=config, segments=5) is None
    assert step(rate, config=config, segments=1) == Scale(2)


def test_what_differs_is_said() -> None:
    changed = dataclasses.replace(SPEC, tags=(), retention=RetentionSpec("Time", 5))
    found = step(changed)
    assert isinstance(found, Update)
    assert found.changes == "retention, tags"
    assert found.config.retention == RetentionPolicy(RetentionType.TIME, 5)


def test_a_number_of_segments_that_differs_is_said() -> None:
    more = step(dataclasses.replace(SPEC, scaling=ScalingSpec("Fixed", 8)))
    assert isinstance(more, Update)
    assert more.changes == "scaling (minSegments 8, before 2)"
    rate = step(dataclasses.replace(SPEC, scaling=ScalingSpec("EventRate", 2, 100, 2)))
    assert isinstance(rate, Update)
    assert rate.changes == "scaling"


SPECS = st.builds(
    StreamSpec,
    st.just("main"),
    st.just("scope"),
    st.just("orders"),
    st.one_of(
        st.builds(ScalingSpec, st.just("Fixed"), st.integers(1, 9)),
        st.builds(ScalingSpec, st.sampled_from(["EventRate", "ByteRate"]), st.integers(1, 9), st.integers(1, 9)),
    ),
    st.none() | st.builds(RetentionSpec, st.sampled_from(["Size", "Time"]), st.integers(0, 9)),
    st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    st.sampled_from([0, 1 << 20]),
)


@given(spec=SPECS, before=st.none() | SPECS, owner=st.sampled_from(["", str(ME), str(OTHER)]), more=st.integers(0, 3))
def test_steps_lead_to_a_stream_in_step(spec: StreamSpec, before: StreamSpec | None, owner: str, more: int) -> None:
    """A controller that does what is asked for; whatever was there before, four steps are enough."""
    found = None
    if before is not None:
        config = msgspec.structs.replace(wanted_config(before, None), timestamp_aggregation_timeout_ms=7)
        found = StreamDescription(config, owner, 0, "active", 0, before.scaling.min_segments + more, 0, 0)
    for _ in range(5):
        taken = next_step(spec, ME, found, owner_is_deleted=owner == str(OTHER))
        if taken is None:
            break
        found = carried_out(found, taken)
    assert found is not None
    assert taken is None
    assert found.owner == str(ME)
    assert found.config == wanted_config(spec, found.config)
    assert (found.config.timestamp_aggregation_timeout_ms == 7) is (before is not None)
    if spec.scaling.kind == "Fixed":
        assert found.segments == spec.scaling.min_segments
    else:
        assert found.segments >= spec.scaling.min_segments


def carried_out(found: StreamDescription | None, taken: Step) -> StreamDescription:
    """The stream after a step."""
    match taken:
        case Create(config):
            assert found is None
            return StreamDescription(config, "", 0, "active", 0, config.scaling.min_segments, 0, 0)
        case Claim(_, expected):
            assert found is not None
            assert found.owner == expected
            return found._replace(owner=str(ME))
        case Update(config, changes):
            assert found is not None
            assert changes
            scaling = config.scaling
            fits = found.segments == scaling.min_segments or (scaling.kind and found.segments > scaling.min_segments)
            return found._replace(config=config, segments=found.segments if fits else scaling.min_segments)
        case Scale(segments):
            assert found is not None
            return found._replace(segments=segments)
        case _:
            raise AssertionError(taken)


# -- owners


@given(st.text("ab-.", min_size=1), st.text("ab-.", min_size=1), st.text("ab-.", min_size=1))
def test_a_signature_is_read_back(namespace: str, name: str, uid: str) -> None:
    owner = Owner(namespace, name, uid)
    assert Owner.parse(str(owner)) == owner


@pytest.mark.parametrize("text", ["", "x", "a/b", "a/b/c/d", "a//c", "/b/c"])
def test_other_texts_are_nobodys_signature(text: str) -> None:
    assert Owner.parse(text) is None


# -- conditions


def test_policies_say_whether_they_are_enforced() -> None:
    rate = dataclasses.replace(SPEC, scaling=ScalingSpec("ByteRate", 1, 5, 2), retention=RetentionSpec("Size", 1))
    scaling, retention = conditions.scaling(rate, FOUND), conditions.retention(rate, FOUND, NOW)
    assert (scaling.status, scaling.reason, scaling.is_warning) == (Status.TRUE, "Enforced", False)
    assert (retention.status, retention.reason, retention.is_warning) == (Status.TRUE, "Enforced", False)
    fixed, kept = conditions.scaling(SPEC, FOUND), conditions.retention(SPEC, FOUND, NOW)
    assert (fixed.reason, kept.reason) == ("Fixed", "NoRetention")
    assert not fixed.is_warning
    assert not kept.is_warning
    assert (conditions.scaling(SPEC, None), conditions.retention(SPEC, None, NOW)) == (fixed, kept)


def test_policies_of_a_sealed_stream_are_not_enforced() -> None:
    sealed = FOUND._replace(state="sealed")
    for one in (conditions.scaling(POLICIES, sealed), conditions.retention(POLICIES, sealed, NOW)):
        assert (one.status, one.reason, one.is_warning) == (Status.FALSE, "Sealed", False)


def test_policies_of_a_stream_that_need_not_have_them_are_not_known() -> None:
    for one in (conditions.scaling(POLICIES, None), conditions.retention(POLICIES, None, NOW)):
        assert (one.status, one.reason, one.is_warning) == (Status.UNKNOWN, "NotCarriedOut", False)


def test_a_policy_that_the_rounds_do_not_apply_is_not_enforced() -> None:
    moment = conditions.Moment(NOW_MS, NOW_MS - 5000)
    late = conditions.retention(POLICIES, FOUND._replace(applied_ms=NOW_MS - 5001), moment)
    assert (late.status, late.reason, late.is_warning) == (Status.FALSE, "NotApplied", True)
    assert "; the last time was 2023-11-14T22:16:34Z: " in late.message
    never = conditions.retention(POLICIES, FOUND, moment)
    assert (never.reason, "last time" in never.message) == ("NotApplied", False)
    assert conditions.retention(POLICIES, FOUND._replace(applied_ms=NOW_MS - 5000), moment).is_true
    assert conditions.retention(POLICIES, FOUND, NOW).is_true, "the resource is new"
    young = FOUND._replace(created_ms=NOW_MS - 5000)
    assert conditions.retention(POLICIES, young, moment).is_true, "the stream was created long after its resource"
    assert not conditions.retention(POLICIES, young._replace(created_ms=NOW_MS - 5001), moment).is_true


@pytest.mark.parametrize(
    ("policy", "unread", "message"),
    [
        (RetentionSpec("Size", 100), 100, None),
        (RetentionSpec("Size", 100), None, None),
        (RetentionSpec("Time", 60_000), 5000, None),
        (RetentionSpec("Time", 59_999), 5000, "events of before 2023-11-14T22:15:40Z unread, which are older than"),
        (RetentionSpec("Time", 1000, 99_000), 5000, "they are kept until they are as old as spec.retention.max."),
        (RetentionSpec("Size", 100), 2048, "2.0 KiB unread, which is more than spec.retention.min; without"),
        (RetentionSpec("Size", 100, 4096), 2048, "the stream may grow to spec.retention.max, 4.0 KiB."),
    ],
)
def test_a_subscriber_that_holds_back_more_than_the_minimum_is_named(
    policy: RetentionSpec, unread: int | None, message: str | None
) -> None:
    spec = dataclasses.replace(SPEC, retention=policy)
    slow = Holder("s/slow", unread, 0, 1_700_000_100_000, 1_700_000_140_000)
    holders = (slow, Holder("s/faster", 1, 0, 1_700_000_100_000, 1_700_000_140_001), Holder("s/new", None))
    found = FOUND._replace(
        head_bytes=7,
        tail_bytes=5007,
        holders=holders,
        truncated=Truncated(1_700_000_000_123, "Consumption", 7),
        applied_ms=1_700_000_200_000,
        oldest_ms=1_700_000_050_000,
    )
    condition, status = conditions.retention(spec, found, NOW), conditions.measured(spec, found, NOW_MS)
    retained = status["retention"]
    held = retained.pop("heldBy", None)
    assert retained == {
        "retainedBytes": 5000,
        "oldestTime": "2023-11-14T22:14:10Z",
        "lastRun": "2023-11-14T22:16:40Z",
        "lastTruncation": {"time": "2023-11-14T22:13:20Z", "reason": "Consumption", "freedBytes": 7},
    }
    assert status["subscribers"][2] == {"name": "s/new"}
    if message is None:
        assert (condition.status, condition.reason, held) == (Status.TRUE, "Enforced", None)
        return
    assert (condition.status, condition.reason, condition.is_warning) == (Status.FALSE, "HeldBySubscriber", True)
    assert message in condition.message
    assert "s/slow" in condition.message
    assert held == {"subscriber": "s/slow", "heldBytes": unread, "cutTime": "2023-11-14T22:15:00Z"}


def test_without_a_policy_nothing_is_said_of_retention() -> None:
    status = conditions.measured(SPEC, FOUND, NOW_MS)
    assert (status["retention"], status["subscribers"]) == (None, None)
    assert conditions.controller_away(SPEC, "it does not answer") == ()


def test_bytes_in_the_object_store_are_said_once_they_are_known() -> None:
    assert "tier2Bytes" not in conditions.measured(SPEC, FOUND, NOW_MS), "what was said before stays"
    assert conditions.measured(SPEC, FOUND._replace(held_bytes=0), NOW_MS)["tier2Bytes"] == 0
    assert conditions.measured(SPEC, FOUND._replace(held_bytes=7_000), NOW_MS)["tier2Bytes"] == 7000


def test_what_has_not_happened_yet_is_left_out() -> None:
    spec = dataclasses.replace(SPEC, retention=RetentionSpec("Size", 100))
    assert conditions.measured(spec, FOUND, NOW_MS)["retention"] == {"retainedBytes": 0}


def test_a_controller_that_is_away_may_enforce_nothing() -> None:
    spec = dataclasses.replace(SPEC, retention=RetentionSpec("Size", 100))
    (condition,) = conditions.controller_away(spec, "the controller of cluster c does not answer")
    assert (condition.type, condition.status, condition.reason) == (
        conditions.RETENTION_ENFORCED,
        Status.FALSE,
        "ControllerAway",
    )
    assert "the controller of cluster c does not answer." in condition.message


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("Rate", " by the rates of its segments"),
        ("Policy", " because its policy was updated"),
        ("Manual", " by a call"),
        ("Later", ""),
    ],
)
def test_a_scale_says_why(reason: str, why: str) -> None:
    before = conditions.numbers(FOUND, ME)
    after = conditions.numbers(FOUND._replace(epoch=1, segments=5, scaled=Scaled(1_700_000_000_123, 2, 1, reason)), ME)
    assert after["lastScale"] == {"time": "2023-11-14T22:13:20Z", "splits": 2, "merges": 1, "reason": reason}
    notice = conditions.scaled_since(before, Outcome(status=after))
    assert notice is not None
    assert notice.message == f"The stream was scaled to 5 segments{why}: 2 split, 1 merged."


def test_a_scale_that_no_one_asked_the_operator_for_is_an_event() -> None:
    before = conditions.numbers(FOUND, ME)
    assert before["lastScale"] is None
    scaled = FOUND._replace(epoch=1, segments=5, scaled=Scaled(1_700_000_000_123, 2, 1))
    after = conditions.numbers(scaled, ME)
    assert after["lastScale"] == {"time": "2023-11-14T22:13:20Z", "splits": 2, "merges": 1}
    outcome = Outcome(status=after)
    notice = conditions.scaled_since(before, outcome)
    assert notice is not None
    assert notice.reason == "StreamScaled"
    assert "to 5 segments: 2 split, 1 merged" in notice.message
    assert conditions.scaled_since(after, outcome) is None, "it was said before"
    assert conditions.scaled_since({}, outcome) is None, "the resource is new, the scale is not"
    assert conditions.scaled_since({**before, "uid": "another"}, outcome) is None
    assert conditions.scaled_since(before, Outcome(status=before)) is None
    own = Outcome(status=after, notices=(Notice("StreamScaled", "Stream s/t was scaled to 5 segments."),))
    assert conditions.scaled_since(before, own) is None, "the operator's own step is an Event already"


def test_numbers_of_a_refused_stream_are_taken_back() -> None:
    outcome = conditions.refused("StreamOwnedByAnother", "It belongs to another.", uid="uid-2")
    assert outcome.status["uid"] == "uid-2"
    assert [name for name, value in outcome.status.items() if value is None] == [
        "epoch",
        "segments",
        "headBytes",
        "tailBytes",
        "bytes",
        "tier2Bytes",
        "rates",
        "lastScale",
        "retention",
        "subscribers",
        "measuredTime",
    ]
    assert [one.type for one in outcome.conditions] == ["Accepted", READY]
