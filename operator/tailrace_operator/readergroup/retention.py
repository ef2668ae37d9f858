"""Conditions of a group whose positions count for retention (docs/kubernetes.md#reader-groups). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

from tailrace.common.quantities import size_text
from tailrace.common.stream_policies import UNLIMITED, RetentionType
from tailrace_operator.reconcile.outcome import Condition, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.control.owners import Holder, StreamDescription
    from tailrace.common.stream_policies import RetentionPolicy

BLOCKING: Final = "BlockingRetention"
DROPPED: Final = "DataDropped"
_NEAR_MAX: Final = 0.8
"""Part of the maximum from which on there is a warning, before unread data is deleted."""


def unknown(reason: str) -> tuple[Condition, Condition]:
    """Return both conditions for a group that cannot be measured."""
    return (
        Condition(BLOCKING, Status.UNKNOWN, reason, "What the group holds back is not known.", warn_on=Status.TRUE),
        Condition(DROPPED, Status.UNKNOWN, reason, "What the group has lost is not known.", warn_on=Status.TRUE),
    )


def no_subscriber() -> tuple[Condition, Condition]:
    """Return both conditions for a group that publishes no positions."""
    message = "spec.retentionType is None: streams are truncated without regard to this group."
    return (
        Condition(BLOCKING, Status.FALSE, "NotASubscriber", message, warn_on=Status.TRUE),
        Condition(DROPPED, Status.FALSE, "NotASubscriber", message, warn_on=Status.TRUE),
    )


def subscribed(group: str, found: Mapping[str, StreamDescription]) -> tuple[Condition, Condition]:
    """Return both conditions of a subscriber, ``scope/group``, by the present states of its streams."""
    held = {
        stream: (holder, one.config.retention)
        for stream, one in sorted(found.items())
        for holder in one.holders
        if holder.subscriber == group
    }
    return _blocking(held), _dropped(held)


def _blocking(held: Mapping[str, tuple[Holder, RetentionPolicy | None]]) -> Condition:
    for stream, (holder, policy) in held.items():
        unread_bytes = holder.unread_bytes or 0
        if _is_by_size(policy) and unread_bytes > policy.minimum:
            message = (
                f"This group has {size_text(unread_bytes)} of stream {stream} unread, which keeps more than the "
                f"minimum of its retention, {size_text(policy.minimum)}."
            )
            return Condition(BLOCKING, Status.TRUE, "HoldsData", message, warn_on=Status.TRUE)
    without = [stream for stream, (holder, _) in held.items() if holder.unread_bytes is None]
    if without:
        message = (
            f"The group has published no position for {', '.join(without)}: it holds nothing back there, and what it "
            "has not read may be deleted."
        )
        return Condition(BLOCKING, Status.FALSE, "NoCutYet", message, warn_on=Status.TRUE)
    message = "The group has read what is beyond the minimum of its streams' retention."
    return Condition(BLOCKING, Status.FALSE, "KeepsUp", message, warn_on=Status.TRUE)


def _dropped(held: Mapping[str, tuple[Holder, RetentionPolicy | None]]) -> Condition:
    for stream, (holder, _) in held.items():
        if holder.lost_bytes > 0:
            message = f"Stream {stream} deleted at least {size_text(holder.lost_bytes)} before the group read them."
            return Condition(DROPPED, Status.TRUE, "UnreadDeleted", message, warn_on=Status.TRUE)
    for stream, (holder, policy) in held.items():
        unread_bytes = holder.unread_bytes or 0
        if _is_by_size(policy) and policy.most != UNLIMITED and unread_bytes >= _NEAR_MAX * policy.most:
            message = (
                f"The group has {size_text(unread_bytes)} of stream {stream} unread; beyond {size_text(policy.most)}, "
                "the maximum of its retention, the oldest are deleted."
            )
            return Condition(DROPPED, Status.FALSE, "NearMax", message, warn_on=Status.FALSE)
    message = "Nothing was deleted that the group has not read."
    return Condition(DROPPED, Status.FALSE, "NothingLost", message, warn_on=Status.TRUE)


def _is_by_size(policy: RetentionPolicy | None) -> TypeGuard[RetentionPolicy]:
    return policy is not None and policy.kind is RetentionType.SIZE
