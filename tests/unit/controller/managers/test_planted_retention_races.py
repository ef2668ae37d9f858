"""Bugs of "Pravega Stream Retention" in what surrounds a decision, planted one at a time: the tests must find each.

A test that passes with a bug would prove nothing about the product. The decisions themselves have their own
(`retention/test_planted_retention_bugs.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tailrace.common.errors import DeadlineError
from tailrace.controller.managers import retention, retention_places
from tailrace.controller.managers.streams import StreamManager
from tailrace.controller.metadata.stream_store import StreamStore

from . import test_retention_behind_head as behind_head
from . import test_retention_manager as tests

Plant = Callable[[pytest.MonkeyPatch], None]
Find = Callable[[tests.Bench, pytest.MonkeyPatch], Awaitable[None]]


def policy_of_yesterday(patch: pytest.MonkeyPatch) -> None:
    """A stream is truncated by the policy that was read before the decision."""
    truncate, change = retention.RetentionManager._truncate, StreamStore.change
    policies: dict[Any, Any] = {}

    async def truncate_by(self: Any, stream: Any, *arguments: Any) -> Any:
        policies[stream.key, stream.record_key] = stream.policy
        return await truncate(self, stream, *arguments)

    async def change_by(self: Any, key: Any, extra_keys: Any, decide: Any, **options: Any) -> Any:
        policy = policies.get((key, extra_keys[-1])) if key.subscribers in extra_keys else None

        def decided(now: Any, snapshot: Any) -> Any:
            if policy is not None:
                now = msgspec.structs.replace(now, config=msgspec.structs.replace(now.config, retention=policy))
            return decide(now, snapshot)

        return await change(self, key, extra_keys, decided, **options)

    patch.setattr(retention.RetentionManager, "_truncate", truncate_by)
    patch.setattr(StreamStore, "change", change_by)


def subscriber_of_this_moment_overlooked(patch: pytest.MonkeyPatch) -> None:
    """A group that publishes its first cut during the decision is not looked at."""
    patch.setattr(retention, "_has_same_subscribers", lambda stream, snapshot: True)


def cut_beyond_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A subscriber's cut is taken literally, also where the segment is shorter."""

    async def unchecked(*_: Any) -> None:
        return None

    patch.setattr(StreamManager, "check_truncation", unchecked)
    unknown = property(lambda self: {}, lambda self, lengths: None)
    patch.setattr(retention_places.Places, "lengths", unknown, raising=False)


def ghost_subscriber(patch: pytest.MonkeyPatch) -> None:
    """The cut of a group counts on after its group was deleted."""
    real = retention.subscribers_in
    known: dict[str, Any] = {}

    async def with_ghosts(*arguments: Any) -> Any:
        async for name, subscriber in real(*arguments):
            known[name] = subscriber
        for item in known.items():
            yield item

    patch.setattr(retention, "subscribers_in", with_ghosts)


def the_head_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A subscriber's cut that lies behind the head in some segments is used unchanged."""
    patch.setattr(retention_places, "latest", lambda cuts, ranges: cuts[0])


def changed_during_a_decision(what: str) -> Find:
    return lambda bench, patch: tests.test_what_changes_during_a_decision_stops_it(bench, what, patch)


async def beyond_the_tail(bench: tests.Bench, _: pytest.MonkeyPatch) -> None:
    """The segment refuses the truncation, so the stream's workflow repeats it for ever."""
    await tests.test_a_subscriber_beyond_the_tail_has_read_up_to_the_tail(bench)


async def deleted_group(bench: tests.Bench, _: pytest.MonkeyPatch) -> None:
    await tests.test_a_deleted_group_holds_nothing(bench)


async def deleted_beyond_a_subscriber(bench: tests.Bench, _: pytest.MonkeyPatch) -> None:
    await behind_head.test_what_is_deleted_beyond_a_subscriber_does_not_count_as_kept(bench)


@pytest.mark.parametrize(
    ("plant", "find", "words"),
    [
        (policy_of_yesterday, changed_during_a_decision("policy"), r"assert RetentionTruncation\(.*\) is None"),
        (subscriber_of_this_moment_overlooked, changed_during_a_decision("subscriber"), "assert Retention.* is None"),
        (cut_beyond_the_tail, beyond_the_tail, "stream scope/stream is busy after .* its workflow continues"),
        (the_head_is_forgotten, deleted_beyond_a_subscriber, "assert None is not None"),
        (ghost_subscriber, deleted_group, r"assert \{0: 5\} == \{0: 50\}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_planted_bug_is_found(
    world: Any, make_api: Any, plant: Plant, find: Find, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, DeadlineError), match=words):
        await find(tests.Bench(world, make_api), monkeypatch)
