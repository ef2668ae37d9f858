"""Conditions of a group whose positions count for retention (docs/kubernetes.md#reader-groups). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.common.quantities import size_text
from tailrace.common.stream_policies import UNLIMITED, RetentionType
from tailrace_operator.kube.manifests import time_text
from tailrace_operator.reconcile.outcome import Condition, Status
from tailrace_operator.schema import grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def subscribed(group: str, found: Mapping[str, StreamDescription], now_ms: int) -> tuple[Condition, Condition]:
    """Return both conditions of a subscriber, ``scope/group``, by the present states of its streams.

    NotSubscribed where a stream with a policy does not know the group: it was deleted and made again, or the group is
    not the one that the resource describes.

    Unknown, NotListed, where a controller of an earlier version described a stream of so many subscribers that it may
    have left the group out: one that has read nearly all, or has published no position.
    """
    held = [
        _Held(stream, holder, one.config.retention, now_ms)
        for stream, one in sorted(found.items())
        for holder in one.holders
        if holder.subscriber == group
    ]
    known = {each.stream for each in held}
    left_out = [
        stream
        for stream, one in sorted(found.items())
        if not one.has_all_holders
        and len(one.holders) >= grammar.SUBSCRIBERS_FORMERLY_DESCRIBED_MAX
        and stream not in known
    ]
    lacking = [
        stream
        for stream, one in sorted(found.items())
        if one.config.retention is not None and stream not in left_out and stream not in known
    ]
    return _blocking(held, left_out, lacking), _dropped(held, left_out, lacking)


class _Held(NamedTuple):
    """What a group has not read of a stream, the stream's policy, and the present time."""

    stream: str
    holder: Holder
    policy: RetentionPolicy | None
    now_ms: int

    @property
    def kept(self) -> int:
        """What the policy measures of it: bytes, or ms since some of it was written."""
        if self.policy is None:
            return 0
        if self.policy.kind is RetentionType.SIZE:
            return self.holder.unread_bytes or 0
        return max(0, self.now_ms - self.holder.unread_before_ms) if self.holder.unread_before_ms else 0

    @property
    def text(self) -> str:
        """What it is, in words."""
        if self.policy is not None and self.policy.kind is RetentionType.TIME:
            return f"events of stream {self.stream} of before {time_text(self.holder.unread_before_ms)} unread"
        return f"{size_text(self.holder.unread_bytes or 0)} of stream {self.stream} unread"

    def bound(self, value: int) -> str:
        """Return one of the policy's figures in words."""
        by_size = self.policy is not None and self.policy.kind is RetentionType.SIZE
        return size_text(value) if by_size else f"{value / 1000:g} s"


def _not_listed(kind: str, left_out: Sequence[str], unknown_part: str) -> Condition:
    message = (
        f"{unknown_part} of {', '.join(left_out)} is not known: a controller of an earlier version lists "
        f"only the {grammar.SUBSCRIBERS_FORMERLY_DESCRIBED_MAX} subscribers that hold back most, and not the group."
    )
    return Condition(kind, Status.UNKNOWN, "NotListed", message, warn_on=Status.TRUE)


def _not_subscribed(kind: str, status: Status, lacking: Sequence[str]) -> Condition:
    message = (
        f"The group is no subscriber of {', '.join(lacking)}, so what it has not read may be deleted there. Either the "
        "stream was deleted and made again: then reset the group. Or the group has another configuration: see Ready."
    )
    return Condition(kind, status, "NotSubscribed", message, warn_on=status)


def _blocking(held: Sequence[_Held], left_out: Sequence[str], lacking: Sequence[str]) -> Condition:
    for each in held:
        if each.policy is not None and each.kept > each.policy.minimum:
            message = (
                f"This group has {each.text}, which keeps more than the minimum of its retention, "
                f"{each.bound(each.policy.minimum)}."
            )
            return Condition(BLOCKING, Status.TRUE, "HoldsData", message, warn_on=Status.TRUE)
    if left_out:
        return _not_listed(BLOCKING, left_out, "What the group holds back")
    if lacking:
        return _not_subscribed(BLOCKING, Status.FALSE, lacking)
    without = [each.stream for each in held if each.holder.unread_bytes is None]
    if without:
        message = (
            f"The group has published no position for {', '.join(without)}: it holds nothing back there, and what it "
            "has not read may be deleted."
        )
        return Condition(BLOCKING, Status.FALSE, "NoCutYet", message, warn_on=Status.TRUE)
    message = "The group has read what is beyond the minimum of its streams' retention."
    return Condition(BLOCKING, Status.FALSE, "KeepsUp", message, warn_on=Status.TRUE)


def _dropped(held: Sequence[_Held], left_out: Sequence[str], lacking: Sequence[str]) -> Condition:
    for each in held:
        if each.holder.lost_bytes > 0:
            lost = size_text(each.holder.lost_bytes)
            message = f"Stream {each.stream} deleted at least {lost} before the group read them."
            return Condition(DROPPED, Status.TRUE, "UnreadDeleted", message, warn_on=Status.TRUE)
    if left_out:
        return _not_listed(DROPPED, left_out, "What the group has lost")
    if lacking:
        return _not_subscribed(DROPPED, Status.UNKNOWN, lacking)
    for each in held:
        policy = each.policy
        if policy is not None and policy.most != UNLIMITED and each.kept >= _NEAR_MAX * policy.most:
            message = (
                f"The group has {each.text}; beyond {each.bound(policy.most)}, the maximum of its retention, the "
                "oldest are deleted."
            )
            return Condition(DROPPED, Status.FALSE, "NearMax", message, warn_on=Status.FALSE)
    message = "Nothing was deleted that the group has not read."
    return Condition(DROPPED, Status.FALSE, "NothingLost", message, warn_on=Status.TRUE)
