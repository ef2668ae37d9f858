"""Conditions and status of a Stream (docs/design.md#resources). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.common import limits
from tailrace.common.quantities import size_text
from tailrace.common.stream_policies import WHY_SCALED
from tailrace_operator.kube.manifests import Notice, time_text
from tailrace_operator.reconcile.outcome import MEASURED_TIME, READY, Condition, Outcome, Status
from tailrace_operator.schema import grammar
from tailrace_operator.stream.rates import RATES, rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.client.control.owners import Holder, Scaled, StreamDescription, Truncated
    from tailrace_operator.schema.specs import RetentionSpec, StreamSpec
    from tailrace_operator.stream.owner import Owner

ACCEPTED: Final = "Accepted"
CONTAINERS_NOT_OPEN: Final = "ContainersNotOpen"
AUTO_SCALING: Final = "AutoScaling"
RETENTION_ENFORCED: Final = "RetentionEnforced"
LAST_SCALE: Final = "lastScale"
RETENTION: Final = "retention"
SEALED: Final = "Sealed"


class Moment(NamedTuple):
    """When a stream is looked at. A policy that was applied last before ``late_ms`` is late; None: none is."""

    now_ms: int
    late_ms: int | None = None


def scaling(spec: StreamSpec, found: StreamDescription | None) -> Condition:
    """Return whether the scaling policy is enforced; ``found``: the present stream, None while it has another one."""
    if spec.scaling.kind == "Fixed":
        return _not_wanted(AUTO_SCALING, "Fixed", "spec.scaling.type Fixed keeps the number of segments.")
    if found is None:
        return _not_carried_out(AUTO_SCALING, "spec.scaling")
    if found.is_sealed:
        return _not_wanted(AUTO_SCALING, SEALED, "The controllers do not scale a stream that is sealed.")
    return Condition(
        AUTO_SCALING,
        Status.TRUE,
        "Enforced",
        f"The controllers split and merge segments by their rates, and keep {spec.scaling.min_segments} at least.",
    )


def retention(spec: StreamSpec, found: StreamDescription | None, moment: Moment) -> Condition:
    """Return whether the retention policy is enforced; ``found``: as for `scaling`."""
    if spec.retention is None:
        return _not_wanted(RETENTION_ENFORCED, "NoRetention", "Without spec.retention all data is kept.")
    if found is None:
        return _not_carried_out(RETENTION_ENFORCED, "spec.retention")
    if found.is_sealed:
        return _not_wanted(RETENTION_ENFORCED, SEALED, "The controllers delete no data of a stream that is sealed.")
    if moment.late_ms is not None and max(found.applied_ms, found.created_ms) < moment.late_ms:
        last = f"; the last time was {time_text(found.applied_ms)}" if found.applied_ms else ""
        message = f"The controllers have not applied spec.retention for several periods{last}: their logs say why."
        return Condition(RETENTION_ENFORCED, Status.FALSE, "NotApplied", message)
    holder = held_by(spec.retention, found, moment.now_ms)
    if holder is None:
        return Condition(
            RETENTION_ENFORCED, Status.TRUE, "Enforced", "The controllers delete old data by spec.retention."
        )
    text = _held_text(spec.retention, holder)
    return Condition(RETENTION_ENFORCED, Status.FALSE, "HeldBySubscriber", text, is_measured=True)


def _not_wanted(condition_type: str, reason: str, message: str) -> Condition:
    return Condition(condition_type, Status.FALSE, reason, message, warn_on=None)


def _not_carried_out(condition_type: str, field: str) -> Condition:
    """Return the condition of a policy that the stream need not have; Ready says why."""
    message = f"Whether {field} is enforced is not known while the specification is not carried out."
    return Condition(condition_type, Status.UNKNOWN, "NotCarriedOut", message, warn_on=None)


def _held_text(policy: RetentionSpec, holder: Holder) -> str:
    """Return the sentence on a subscriber that holds data back."""
    until = "without spec.retention.max all of it is kept"
    if policy.kind == "Size":
        unread = f"{size_text(holder.unread_bytes or 0)} unread, which is more than spec.retention.min"
        if policy.maximum is not None:
            until = f"the stream may grow to spec.retention.max, {size_text(policy.maximum)}"
    else:
        before = time_text(holder.unread_before_ms)
        unread = f"events of before {before} unread, which are older than spec.retention.min"
        if policy.maximum is not None:
            until = "they are kept until they are as old as spec.retention.max"
    return f"Reader group {holder.subscriber} has {unread}; {until}."


def controller_away(spec: StreamSpec, message: str) -> tuple[Condition, ...]:
    """Return the condition of retention while no controller answers: what it would delete stays, and may grow."""
    if spec.retention is None:
        return ()
    text = f"Whether spec.retention is enforced is not known: {message}."
    return (Condition(RETENTION_ENFORCED, Status.FALSE, "ControllerAway", text),)


def unavailable(spec: StreamSpec, message: str) -> tuple[Condition, ...]:
    """Return the condition of retention while controllers answer, and not all that a look at the stream needs."""
    if spec.retention is None:
        return ()
    text = f"Whether spec.retention is enforced is not known: {message}."
    return (Condition(RETENTION_ENFORCED, Status.UNKNOWN, "Unavailable", text, warn_on=Status.UNKNOWN),)


def containers_not_open(spec: StreamSpec, error: str, reported: str) -> Outcome:
    """Return the outcome for a stream that does not answer while workers report containers that they cannot open."""
    text = f"The stream does not answer: {error}. {reported}"
    found = [not_ready(CONTAINERS_NOT_OPEN, text)]
    if spec.retention is not None:
        unknown = f"Whether spec.retention is enforced is not known: {error}. {reported}"
        found.append(Condition(RETENTION_ENFORCED, Status.FALSE, CONTAINERS_NOT_OPEN, unknown))
    return Outcome(tuple(found), retry_after_s=limits.OPERATOR_WAIT_S, carried_out=False)


def held_by(policy: RetentionSpec, found: StreamDescription, now_ms: int) -> Holder | None:
    """Return the subscriber that holds back most, if the stream keeps more than the policy's minimum for it."""
    if policy.kind == "Size":
        holders = [each for each in found.holders if (each.unread_bytes or 0) > policy.minimum]
        return holders[0] if holders else None
    holders = [each for each in found.holders if 0 < each.unread_before_ms < now_ms - policy.minimum]
    return min(holders, key=lambda each: each.unread_before_ms, default=None)


def refused(reason: str, message: str, *, retry_after_s: float | None = None, uid: str | None = None) -> Outcome:
    """Return the outcome for a specification that cannot be carried out; ``uid``: of the stream's owner, if any.

    With `retry_after_s` it waits for something, so its generation is not observed yet.
    """
    conditions = (
        Condition(ACCEPTED, Status.FALSE, reason, message),
        Condition(READY, Status.FALSE, reason, message),
    )
    status: dict[str, Any] = {"uid": uid, **dict.fromkeys(_ALL)}
    return Outcome(conditions, status, retry_after_s=retry_after_s, carried_out=retry_after_s is None)


def accepted() -> Condition:
    """Return condition Accepted for a stream that belongs to the resource."""
    return Condition(ACCEPTED, Status.TRUE, "Accepted", "The stream belongs to this resource.")


def ready(found: StreamDescription) -> Condition:
    """Return condition Ready for a stream that matches its specification."""
    noun = "segment" if found.segments == 1 else "segments"
    return Condition(
        READY, Status.TRUE, "InStep", f"The stream matches its specification and has {found.segments} {noun}."
    )


def not_ready(reason: str, message: str) -> Condition:
    """Return condition Ready for a stream that does not match its specification."""
    return Condition(READY, Status.FALSE, reason, message)


_RETAINED: Final = (RETENTION, "subscribers")
_BYTES: Final = ("headBytes", "tailBytes", "bytes")
_HELD: Final = "tier2Bytes"
_ALL: Final = ("epoch", "segments", *_BYTES, _HELD, RATES, LAST_SCALE, *_RETAINED, MEASURED_TIME)


def numbers(found: StreamDescription, me: Owner) -> dict[str, Any]:
    """Return the fields of the status that change with the stream's segments."""
    scaled = None if found.scaled is None else _scaled(found.scaled)
    return {"uid": me.uid, "epoch": found.epoch, "segments": found.segments, LAST_SCALE: scaled}


def measured(spec: StreamSpec, found: StreamDescription, now_ms: int) -> dict[str, Any]:
    """Return the fields of the status that change with each event."""
    values = (found.head_bytes, found.tail_bytes, found.tail_bytes - found.head_bytes)
    # A controller that has just started does not know it yet: what another one said stays.
    held = {} if found.held_bytes is None else {_HELD: found.held_bytes}
    bytes_ = dict(zip(_BYTES, values, strict=True))
    return {**bytes_, **held, **rates(found), **_retained(spec.retention, found, now_ms)}


def scaled_since(status: Mapping[str, Any], outcome: Outcome) -> Notice | None:
    """Return the Event of a scale that the operator did not ask for, by what the status said before."""
    last, segments = outcome.status.get(LAST_SCALE), outcome.status.get("segments")
    if last is None or status.get(LAST_SCALE) == last or outcome.status["epoch"] <= status.get("epoch", math.inf):
        return None
    if status.get("uid") != outcome.status.get("uid") or outcome.notices:
        return None
    why = WHY_SCALED.get(last.get("reason", ""))
    reached = f"{segments} segments {why}" if why else f"{segments} segments"
    return Notice(
        "StreamScaled", f"The stream was scaled to {reached}: {last['splits']} split, {last['merges']} merged."
    )


def _retained(policy: RetentionSpec | None, found: StreamDescription, now_ms: int) -> dict[str, Any]:
    """Return what retention did and what holds data back, and the subscribers; None when there is nothing to say."""
    return {
        RETENTION: None if policy is None else _enforced(policy, found, now_ms),
        "subscribers": [_subscriber(each) for each in found.holders[: grammar.SUBSCRIBERS_LISTED_MAX]] or None,
    }


def _enforced(policy: RetentionSpec, found: StreamDescription, now_ms: int) -> dict[str, Any]:
    """Return ``status.retention``."""
    enforced: dict[str, Any] = {"retainedBytes": found.tail_bytes - found.head_bytes}
    if found.oldest_ms:
        enforced["oldestTime"] = time_text(found.oldest_ms)
    if found.applied_ms:
        enforced["lastRun"] = time_text(found.applied_ms)
    if found.truncated is not None:
        enforced["lastTruncation"] = _truncation(found.truncated)
    holder = held_by(policy, found, now_ms)
    if holder is not None:
        cut = {"cutTime": time_text(holder.published_ms)} if holder.published_ms else {}
        enforced["heldBy"] = {"subscriber": holder.subscriber, "heldBytes": holder.unread_bytes or 0, **cut}
    return enforced


def _scaled(last: Scaled) -> dict[str, Any]:
    why = {"reason": last.reason} if last.reason else {}
    return {"time": time_text(last.scaled_ms), "splits": last.splits, "merges": last.merges, **why}


def _truncation(last: Truncated) -> dict[str, Any]:
    return {"time": time_text(last.truncated_ms), "reason": last.reason, "freedBytes": last.freed_bytes}


def _subscriber(holder: Holder) -> dict[str, Any]:
    unread = {} if holder.unread_bytes is None else {"unreadBytes": holder.unread_bytes}
    return {"name": holder.subscriber, **unread}
