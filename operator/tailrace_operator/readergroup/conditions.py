"""Conditions and status of a ReaderGroup (design §11). Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
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
    """What is asked for cannot be done; nothing was changed."""
    conditions = (
        Condition(ACCEPTED, Status.FALSE, reason, message),
        Condition(READY, Status.FALSE, reason, message),
        Condition(LAGGING, Status.UNKNOWN, reason, "The lag is not measured.", warn_on=Status.TRUE),
    )
    return Outcome(conditions, dict.fromkeys(_FIELDS), retry_after_s=retry_after_s)


def unmeasured(reason: str, message: str, *, uid: str | None, retry_after_s: float | None = None) -> Outcome:
    """The group cannot be looked at."""
    conditions = (
        Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification can be carried out."),
        Condition(READY, Status.FALSE, reason, message),
        Condition(LAGGING, Status.UNKNOWN, reason, "The lag is not measured.", warn_on=Status.TRUE),
    )
    return Outcome(conditions, {**dict.fromkeys(_FIELDS), "uid": uid}, retry_after_s=retry_after_s)


def measured(sample: Sample, threshold: LagThreshold | None, ready: Condition, uid: str | None) -> Outcome:
    """The group as it is; ``uid`` is that of the resource that the group belongs to, if it is one."""
    accepted = Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification can be carried out.")
    return Outcome((accepted, ready, lagging(sample, threshold)), {**numbers(sample), "uid": uid})


def in_step(group: str) -> Condition:
    """The group is as asked for."""
    return Condition(READY, Status.TRUE, "InStep", f"Reader group {group} is as specified.")


def observed(group: str) -> Condition:
    """The group is there; the operator makes none of its flavour."""
    return Condition(READY, Status.TRUE, "Observed", f"Reader group {group} of the Rust flavour is there.")


def not_ready(reason: str, message: str) -> Condition:
    """The group is not as asked for."""
    return Condition(READY, Status.FALSE, reason, message)


def lagging(sample: Sample, threshold: LagThreshold | None) -> Condition:
    """Whether the group is further behind than one of the thresholds."""
    if threshold is None:
        return Condition(LAGGING, Status.FALSE, "NoThreshold", "spec.lagThreshold is not set.", warn_on=Status.TRUE)
    if threshold.bytes is not None and sample.lag_bytes > threshold.bytes:
        message = f"More than {threshold.bytes} bytes are unread, the bound of spec.lagThreshold.bytes."
        return Condition(LAGGING, Status.TRUE, "LagBytes", message, warn_on=Status.TRUE)
    if threshold.seconds is not None:
        if sample.age.least_s > threshold.seconds:
            message = f"Data older than {threshold.seconds} s is unread, the bound of spec.lagThreshold.seconds."
            return Condition(LAGGING, Status.TRUE, "LagSeconds", message, warn_on=Status.TRUE)
        if sample.age.most_s is None:
            message = "The oldest unread data is older than the operator's memory, its age is not known yet."
            return Condition(LAGGING, Status.UNKNOWN, "AgeUnknown", message, warn_on=Status.TRUE)
    return Condition(LAGGING, Status.FALSE, "KeepsUp", "The lag is within spec.lagThreshold.", warn_on=Status.TRUE)


def numbers(sample: Sample) -> dict[str, Any]:
    """Fields of the status; ``lagSeconds`` is left out while only a least age is known."""
    seconds = sample.age.most_s
    return {
        "onlineReaders": sample.online_readers,
        "unassignedSegments": sample.unassigned_segments,
        "lagBytes": sample.lag_bytes,
        "lagSeconds": None if seconds is None else math.ceil(seconds),
        "lastPublishedCut": cuts(sample.published) or None,
    }


def cuts(published: Mapping[str, StreamCut]) -> list[dict[str, str]]:
    """Cuts by stream; those that are too large for a status are left out."""
    found: list[dict[str, str]] = []
    left_bytes = limits.OPERATOR_CUTS_STATUS_MAX_BYTES
    for stream, cut in sorted(published.items()):
        text = cut.to_text()
        if len(text) <= min(grammar.CUT_MAX_LENGTH, left_bytes):
            found.append({"stream": stream, "cut": text})
            left_bytes -= len(text)
    return found
