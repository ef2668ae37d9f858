"""What the conditions of a group say of its part in retention: before data goes, and when it is gone."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.control.owners import Holder, StreamDescription
from tailrace.common.stream_policies import RetentionPolicy, ScalingPolicy, StreamConfig
from tailrace_operator.readergroup import conditions, retention
from tailrace_operator.reconcile.outcome import Condition, Status
from tailrace_operator.schema.grammar import SUBSCRIBERS_FORMERLY_DESCRIBED_MAX

GROUP = "scope/group"
SIZE = RetentionPolicy.by_size_bytes(1000, 10_000)
NO_MAXIMUM = RetentionPolicy.by_size_bytes(1000)
TIME = RetentionPolicy.by_time_ms(1000, 10_000)


NOW_MS = 1_700_000_000_000


def stream(policy: RetentionPolicy | None, *holders: Holder) -> StreamDescription:
    config = StreamConfig(ScalingPolicy.fixed(1), policy)
    return StreamDescription(config, "", 0, "active", 0, 1, 0, 0, None, holders)


def holder(unread: int | None, lost: int = 0, name: str = GROUP) -> Holder:
    return Holder(name, unread, lost)


def late(by_ms: int) -> Holder:
    """One that has not read events of so long ago."""
    return Holder(GROUP, 5, 0, NOW_MS, NOW_MS - by_ms)


def summary(found: tuple[Condition, Condition]) -> list[tuple[Any, ...]]:
    return [(each.status.value, each.reason, each.is_warning) for each in found]


@pytest.mark.parametrize(
    ("policy", "mine", "blocking", "dropped"),
    [
        (SIZE, holder(0), ("False", "KeepsUp", False), ("False", "NothingLost", False)),
        (SIZE, holder(1000), ("False", "KeepsUp", False), ("False", "NothingLost", False)),
        (SIZE, holder(1001), ("True", "HoldsData", True), ("False", "NothingLost", False)),
        (SIZE, holder(7999), ("True", "HoldsData", True), ("False", "NothingLost", False)),
        (SIZE, holder(8000), ("True", "HoldsData", True), ("False", "NearMax", True)),
        (SIZE, holder(9999, 1), ("True", "HoldsData", True), ("True", "UnreadDeleted", True)),
        (SIZE, holder(0, 1), ("False", "KeepsUp", False), ("True", "UnreadDeleted", True)),
        (SIZE, holder(None), ("False", "NoCutYet", False), ("False", "NothingLost", False)),
        (NO_MAXIMUM, holder(10**12), ("True", "HoldsData", True), ("False", "NothingLost", False)),
        (TIME, holder(10**12), ("False", "KeepsUp", False), ("False", "NothingLost", False)),
        (TIME, late(1000), ("False", "KeepsUp", False), ("False", "NothingLost", False)),
        (TIME, late(1001), ("True", "HoldsData", True), ("False", "NothingLost", False)),
        (TIME, late(8000), ("True", "HoldsData", True), ("False", "NearMax", True)),
        (TIME, holder(5, 7), ("False", "KeepsUp", False), ("True", "UnreadDeleted", True)),
        (None, holder(10**12), ("False", "KeepsUp", False), ("False", "NothingLost", False)),
    ],
)
def test_conditions_of_a_subscriber(
    policy: RetentionPolicy | None, mine: Holder, blocking: tuple[Any, ...], dropped: tuple[Any, ...]
) -> None:
    other = holder(10**9, 10**9, "scope/other")
    found = retention.subscribed(GROUP, {"scope/s": stream(policy, other, mine)}, NOW_MS)
    assert summary(found) == [blocking, dropped]
    for each in found:
        assert ("scope/s" in each.message) is (each.is_warning or each.reason == "NoCutYet")


def test_the_worst_of_several_streams_is_named() -> None:
    found = {
        "scope/a": stream(SIZE, holder(None)),
        "scope/b": stream(SIZE, holder(9000)),
        "scope/c": stream(SIZE, holder(2048, 2048)),
    }
    blocking, dropped = retention.subscribed(GROUP, found, NOW_MS)
    assert blocking.message.startswith("This group has 8.8 KiB of stream scope/b unread")
    assert "minimum of its retention, 1,000 B" in blocking.message
    assert dropped.message == "Stream scope/c deleted at least 2.0 KiB before the group read them."


def test_a_group_is_found_in_a_list_of_all_subscribers() -> None:
    others = [holder(10**9, 0, f"scope/other{number}") for number in range(999)]
    full = stream(SIZE, *others, holder(1001, 1))._replace(has_all_holders=True)
    assert summary(retention.subscribed(GROUP, {"scope/full": full}, NOW_MS)) == [
        ("True", "HoldsData", True),
        ("True", "UnreadDeleted", True),
    ]
    without = {"scope/full": stream(SIZE, *others)._replace(has_all_holders=True), "scope/a": stream(SIZE, holder(0))}
    found = retention.subscribed(GROUP, without, NOW_MS)
    assert summary(found) == [("False", "NotSubscribed", True), ("Unknown", "NotSubscribed", True)]
    assert all("is no subscriber of scope/full, so" in each.message for each in found)


@pytest.mark.parametrize("policy", [SIZE, TIME, NO_MAXIMUM], ids=["size", "time", "no maximum"])
def test_a_group_that_a_full_list_leaves_out_is_unknown(policy: RetentionPolicy) -> None:
    others = [holder(10**9, 0, f"scope/other{number}") for number in range(SUBSCRIBERS_FORMERLY_DESCRIBED_MAX)]
    full = {"scope/full": stream(policy, *others)}
    found = retention.subscribed(GROUP, full, NOW_MS)
    assert summary(found) == [("Unknown", "NotListed", False)] * 2
    assert all("scope/full" in each.message for each in found)
    for quiet in (holder(None), holder(0), holder(9000)):
        listed = {"scope/a": stream(NO_MAXIMUM, quiet)} if quiet.unread_bytes != 9000 else {}
        found = retention.subscribed(GROUP, {**full, **listed}, NOW_MS)
        assert summary(found) == [("Unknown", "NotListed", False)] * 2
    certain = {**full, "scope/a": stream(SIZE, holder(1001, 1))}
    assert summary(retention.subscribed(GROUP, certain, NOW_MS)) == [
        ("True", "HoldsData", True),
        ("True", "UnreadDeleted", True),
    ]
    near = {**full, "scope/a": stream(SIZE, holder(9000))}
    assert summary(retention.subscribed(GROUP, near, NOW_MS)) == [
        ("True", "HoldsData", True),
        ("Unknown", "NotListed", False),
    ]


def test_a_group_in_a_full_list_is_known_and_one_that_a_short_list_lacks_does_not_subscribe() -> None:
    others = [holder(10**9, 0, f"scope/other{number}") for number in range(SUBSCRIBERS_FORMERLY_DESCRIBED_MAX - 1)]
    keeps_up = [("False", "KeepsUp", False), ("False", "NothingLost", False)]
    assert summary(retention.subscribed(GROUP, {"scope/a": stream(SIZE, *others, holder(0))}, NOW_MS)) == keeps_up
    assert summary(retention.subscribed(GROUP, {"scope/a": stream(SIZE, *others)}, NOW_MS)) == [
        ("False", "NotSubscribed", True),
        ("Unknown", "NotSubscribed", True),
    ]
    assert summary(retention.subscribed(GROUP, {"scope/a": stream(None)}, NOW_MS)) == keeps_up, "it needs no subscriber"


def test_what_other_streams_hold_counts_before_one_that_does_not_know_the_group() -> None:
    found = {"scope/a": stream(SIZE), "scope/b": stream(SIZE, holder(1001, 1))}
    assert summary(retention.subscribed(GROUP, found, NOW_MS)) == [
        ("True", "HoldsData", True),
        ("True", "UnreadDeleted", True),
    ]


def test_by_time_the_age_of_the_unread_events_is_said() -> None:
    blocking, dropped = retention.subscribed(GROUP, {"scope/a": stream(TIME, late(9000))}, NOW_MS)
    assert blocking.message == (
        "This group has events of stream scope/a of before 2023-11-14T22:13:11Z unread, which keeps more than the "
        "minimum of its retention, 1 s."
    )
    assert dropped.message.endswith("unread; beyond 10 s, the maximum of its retention, the oldest are deleted.")


def test_a_group_that_publishes_nothing_holds_nothing() -> None:
    assert summary(retention.no_subscriber()) == [("False", "NotASubscriber", False)] * 2


def test_what_cannot_be_measured_is_unknown() -> None:
    for outcome in (
        conditions.refused("ClusterNotFound", "It does not exist."),
        conditions.unmeasured("GroupNotFound", "It does not exist.", uid=None),
    ):
        found = {each.type: each for each in outcome.conditions}
        for kind in (retention.BLOCKING, retention.DROPPED):
            assert found[kind].status is Status.UNKNOWN
            assert not found[kind].is_warning
