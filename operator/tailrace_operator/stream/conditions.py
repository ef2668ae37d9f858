"""Conditions and status of a Stream (docs/design.md#resources). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.reconcile.outcome import READY, Condition, Outcome, Status

if TYPE_CHECKING:
    from tailrace.client.control.owners import StreamDescription
    from tailrace_operator.schema.specs import StreamSpec
    from tailrace_operator.stream.owner import Owner

ACCEPTED: Final = "Accepted"
AUTO_SCALING: Final = "AutoScaling"
RETENTION_ENFORCED: Final = "RetentionEnforced"


def policy_conditions(spec: StreamSpec) -> tuple[Condition, ...]:
    """Return whether the policies of the spec are enforced. The controller stores both and enforces neither yet."""
    if spec.scaling.kind == "Fixed":
        scaling = Condition(
            AUTO_SCALING, Status.FALSE, "Fixed", "spec.scaling.type Fixed keeps the number of segments.", warn_on=None
        )
    else:
        scaling = Condition(
            AUTO_SCALING,
            Status.FALSE,
            "NotImplemented",
            f"spec.scaling.type {spec.scaling.kind} is stored, but this version does not scale streams automatically. "
            "To add segments, raise spec.scaling.minSegments, for example with kubectl scale.",
        )
    if spec.retention is None:
        retention = Condition(
            RETENTION_ENFORCED, Status.FALSE, "NoRetention", "Without spec.retention all data is kept.", warn_on=None
        )
    else:
        retention = Condition(
            RETENTION_ENFORCED,
            Status.FALSE,
            "NotImplemented",
            "spec.retention is stored, but this version does not delete old data automatically.",
        )
    return scaling, retention


def refused(reason: str, message: str, *, retry_after_s: float | None = None, uid: str | None = None) -> Outcome:
    """Return the outcome for a specification that cannot be carried out; ``uid``: of the stream's owner, if any."""
    conditions = (
        Condition(ACCEPTED, Status.FALSE, reason, message),
        Condition(READY, Status.FALSE, reason, message),
    )
    status: dict[str, Any] = {"uid": uid, **dict.fromkeys(_NUMBERS)}
    return Outcome(conditions, status, retry_after_s=retry_after_s)


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


_NUMBERS: Final = ("epoch", "segments", "headBytes", "tailBytes", "bytes")


def numbers(found: StreamDescription, me: Owner) -> dict[str, Any]:
    """Return the fields of the status."""
    values = (
        found.epoch,
        found.segments,
        found.head_bytes,
        found.tail_bytes,
        found.tail_bytes - found.head_bytes,
    )
    return {"uid": me.uid, **dict(zip(_NUMBERS, values, strict=True))}
