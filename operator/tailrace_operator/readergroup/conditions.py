"""Conditions and status of a ReaderGroup (docs/design.md#resources). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace_operator.readergroup import retention
from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status
from tailrace_operator.schema import grammar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.common.stream_cut import StreamCut
    from tailrace_operator.readergroup.measure import Sample
    from tailrace_operator.schema.specs import LagThreshold

ACCEPTED: Final = "Accepted"
LAGGING: Final = "Lagging"
_FIELDS: Final = ("uid", "onlineReaders", "unassignedSegments", "lagBytes", "lagSeconds", "lastPublishedCut")


def refused(reason: str, message: str, *, retry_after_s: float | None = None) -> Outcome:
    """Return the outcome for a specification that cannot be carried out; nothing was changed.

    With `retry_after_s` it waits for something, so its generation is not observed yet.
    """
    conditions = (
        Condition(ACCEPTED, Status.FALSE, reason, message),
        Condition(READY, Status.FALSE, reason, message),
        *_unknown(reason),
    )
    waits = retry_after_s is not None
    return Outcome(conditions, dict.fromkeys(_FIELDS), retry_after_s=retry_after_s, carried_out=not waits)


def unmeasured(reason: str, message: str, *, uid: str | None, retry_after_s: float | None = None) -> Outcome:
    """Return the outcome for a group that cannot be measured."""
    conditions = (
        Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification is accepted."),
        Condition(READY, Status.FALSE, reason, message),
        *_unknown(reason),
    )
    return Outcome(conditions, {**dict.fromkeys(_FIELDS), "uid": uid}, retry_after_s=retry_after_s)


def away(*, subscribes: bool) -> tuple[Condition, ...]:
    """Return the conditions that cannot be known while controllers or segment stores do not answer.

    ``subscribes``: the group's positions count for retention. What it has lost stays as it was found last.
    """
    lag, blocking, _ = _unknown("Unavailable")
    return (lag, blocking) if subscribes else (lag,)


def _unknown(reason: str) -> tuple[Condition, ...]:
    return (
        Condition(LAGGING, Status.UNKNOWN, reason, "The lag is not measured.", warn_on=Status.TRUE),
        *retention.unknown(reason),
    )


def measured(
    sample: Sample, threshold: LagThreshold | None, ready: Condition, held: tuple[Condition, ...], uid: str | None
) -> Outcome:
    """Return the outcome for a measured group.

    ``held``: the conditions of its part in retention. ``uid``: of the resource that owns the group, if one does.
    """
    accepted = Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification is accepted.")
    return Outcome((accepted, ready, lagging(sample, threshold), *held), {**numbers(sample), "uid": uid})


def matching(group: str) -> Condition:
    """Return condition Ready for a group that matches its specification."""
    return Condition(READY, Status.TRUE, "InStep", f"Reader group {group} matches its specification.")


def observed(group: str) -> Condition:
    """Return condition Ready for a group of the Rust flavour, which the operator only observes."""
    return Condition(READY, Status.TRUE, "Observed", f"Reader group {group} of the Rust flavour exists.")


def mismatch(group: str, fields: str, *, edit_waits: bool) -> Condition:
    """Return condition Ready for a group that differs in these fields of its specification.

    ``edit_waits``: the resource was edited, and the group belongs to another one.
    """
    message = (
        f"Reader group {group} belongs to another resource, and {fields} differ. This edit is carried out when that "
        "resource is gone and has left the group. Or adapt this resource to the group."
        if edit_waits
        else f"Reader group {group} exists with another configuration: {fields} differ. Adapt the resource to the "
        "group, or edit one of its fields that configure the group to reset it, or delete the group."
    )
    return Condition(READY, Status.FALSE, "ConfigurationMismatch", message)


def lagging(sample: Sample, threshold: LagThreshold | None) -> Condition:
    """Return whether the lag exceeds one of the thresholds."""
    if threshold is None:
        return Condition(LAGGING, Status.FALSE, "NoThreshold", "spec.lagThreshold is not set.", warn_on=Status.TRUE)
    if threshold.bytes is not None and sample.lag_bytes > threshold.bytes:
        message = f"More than {threshold.bytes} bytes are unread, the limit in spec.lagThreshold.bytes."
        return Condition(LAGGING, Status.TRUE, "LagBytes", message, warn_on=Status.TRUE)
    if threshold.seconds is not None:
        if sample.age.least_s > threshold.seconds:
            message = f"Data older than {threshold.seconds} s is unread, the limit in spec.lagThreshold.seconds."
            return Condition(LAGGING, Status.TRUE, "LagSeconds", message, warn_on=Status.TRUE)
        if sample.age.most_s is None:
            message = (
                "The age of the oldest unread data is unknown: it was written before the operator's first measurement."
            )
            return Condition(LAGGING, Status.UNKNOWN, "AgeUnknown", message, warn_on=Status.TRUE)
    return Condition(LAGGING, Status.FALSE, "KeepsUp", "The lag is within spec.lagThreshold.", warn_on=Status.TRUE)


def numbers(sample: Sample) -> dict[str, Any]:
    """Return the fields of the status; ``lagSeconds`` is left out while only a minimum age is known."""
    seconds = sample.age.most_s
    return {
        "onlineReaders": sample.online_readers,
        "unassignedSegments": sample.unassigned_segments,
        "lagBytes": sample.lag_bytes,
        "lagSeconds": None if seconds is None else math.ceil(seconds),
        "lastPublishedCut": cuts(sample.published) or None,
    }


def cuts(published: Mapping[str, StreamCut]) -> list[dict[str, str]]:
    """Return the published cuts by stream; those that are too large for a status are left out."""
    found: list[dict[str, str]] = []
    left_bytes = limits.OPERATOR_CUTS_STATUS_MAX_BYTES
    for stream, cut in sorted(published.items()):
        text = cut.to_text()
        if len(text) <= min(grammar.CUT_MAX_LENGTH, left_bytes):
            found.append({"stream": stream, "cut": text})
            left_bytes -= len(text)
    return found
