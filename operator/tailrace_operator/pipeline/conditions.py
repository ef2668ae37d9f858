"""Derive the conditions and the status of a Pipeline; pure (docs/pipelines.md#conditions)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tailrace_operator.cluster.pod_diagnostics import pod_problem
from tailrace_operator.pipeline import names
from tailrace_operator.pipeline.observed import named
from tailrace_operator.reconcile.outcome import Condition, Outcome, Status, ready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.pipeline.observed import Observed
    from tailrace_operator.schema.pipeline_spec import PipelineSpec

ACCEPTED: Final = "Accepted"
RUNNING: Final = "Running"
SUSPENDED: Final = "Suspended"
"""Reason of condition Running when no pods are to run, and none do."""
_OF_DRIVER: Final = ("driver", "sparkUi", "executors", "restarts", "progress")
"""Fields of the status that say something of the present driver."""
_ACCEPTED: Final = Condition(ACCEPTED, Status.TRUE, "Accepted", "The specification is accepted.")
_DONE_FOR_NOW: Final = ("Complete", "Scheduled")
"""Reasons for which a driver need not run."""


def refused(reason: str, message: str, retry_after_s: float | None = None) -> Outcome:
    """Return the outcome for a specification that is not carried out; what runs goes on.

    With `retry_after_s` it waits for something, so its generation is not observed yet.
    """
    accepted = Condition(ACCEPTED, Status.FALSE, reason, message)
    parts = (accepted, not_observed(reason), ready([accepted], "", ""))
    waits = retry_after_s is not None
    return Outcome(parts, dict.fromkeys(_OF_DRIVER), retry_after_s=retry_after_s, carried_out=not waits)


def not_observed(reason: str) -> Condition:
    """Return condition Running while the operator does not look at the driver."""
    return Condition(RUNNING, Status.UNKNOWN, reason, "Whether the driver runs is not observed.", warn_on=None)


def suspended(left: Sequence[Manifest]) -> Condition:
    """Return condition Running when no pods are to run. `left`: those that have not ended."""
    if left:
        return _stopping(f"the end of {named(left)}")
    message = "spec.suspend is set; the next run goes on where this one was."
    return Condition(RUNNING, Status.FALSE, SUSPENDED, message, warn_on=None)


def not_stopped(why: str) -> Condition:
    """Return condition Running when no pods are to run and the operator cannot stop them."""
    message = f"spec.suspend is set, but what runs cannot be stopped: {why}."
    return Condition(RUNNING, Status.UNKNOWN, "NotStopped", message, warn_on=Status.UNKNOWN)


def is_observed(found: Outcome) -> bool:
    """Return whether an outcome says something of the driver."""
    return all(one != not_observed(one.reason) for one in found.conditions if one.type == RUNNING)


def with_running(found: Outcome, running: Condition) -> Outcome:
    """Return an outcome that does not say whether the driver runs with a condition that does."""
    parts = tuple(running if one.type == RUNNING else one for one in found.conditions)
    return replace(found, conditions=parts)


def waiting(what: str, retry_after_s: float) -> Outcome:
    """Return the outcome while something has to end before the specification can be carried out."""
    running = _stopping(what)
    parts = (_ACCEPTED, running, _summary(_ACCEPTED, running))
    return Outcome(parts, dict.fromkeys(_OF_DRIVER), retry_after_s=retry_after_s, carried_out=False)


def outcome(
    spec: PipelineSpec, seen: Observed, progress: Mapping[str, Any] | None, now_ms: int, message: str = ""
) -> Outcome:
    """Return conditions and status.

    `progress`: what the driver says; None: it does not run, or does not answer. `message`: what the Kubernetes API
    refuses; empty: nothing.
    """
    accepted = Condition(ACCEPTED, Status.FALSE, "ChildRefused", message) if message else _ACCEPTED
    failing = seen.fails_again(now_ms) and not (progress or {}).get("batches")
    running = _running(spec, seen, failing=failing)
    summary = _summary(accepted, running)
    status: dict[str, Any] = {
        "driver": seen.driver["metadata"]["name"] if seen.driver else None,
        "sparkUi": _ui(seen),
        "executors": seen.executors,
        "restarts": seen.restarts,
        "progress": None if progress is None else dict(progress),
    }
    if seen.last is not None:
        status["lastRun"] = seen.last.as_status()
    return Outcome((accepted, running, summary), status)


def _running(spec: PipelineSpec, seen: Observed, *, failing: bool) -> Condition:
    def not_running(reason: str, message: str, *, warn: bool = False) -> Condition:
        return Condition(RUNNING, Status.FALSE, reason, message, warn_on=Status.FALSE if warn else None)

    failed = f"The last attempt failed: {seen.last_error}." if seen.last_error else ""
    is_between = seen.driver is None and not seen.goes_on
    if seen.last is not None and not seen.last.succeeded and (spec.schedule is None or is_between):
        return not_running("Failed", f"The run has failed: {seen.last.message or 'no reason given'}.", warn=True)
    if spec.suspend:
        return suspended(seen.left)
    if seen.driver is None and seen.last is not None and spec.schedule is None:
        return not_running("Complete", "The job has written all there was.")
    if seen.held_up:
        return _stopping(f"the end of {named(seen.held_up)}")
    if seen.is_running and not failing:
        wanted = spec.executors.instances
        message = f"The driver runs, with {seen.executors} of {wanted} executors." if wanted else "The driver runs."
        return Condition(RUNNING, Status.TRUE, "Running", message)
    problem = pod_problem([seen.driver]) if seen.driver else ""
    if problem or failed:
        message = " ".join(filter(None, (f"{problem[:1].upper()}{problem[1:]}." if problem else "", failed)))
        return not_running("DriverFailed", message, warn=True)
    if spec.schedule is not None and seen.driver is None:
        return not_running("Scheduled", f"The next run is due by the schedule {spec.schedule}.")
    return not_running("Starting", "The driver is starting.")


def _stopping(what: str) -> Condition:
    """Return condition Running while pods are to end: it is not known whether one on a lost node still runs."""
    return Condition(RUNNING, Status.UNKNOWN, "Stopping", f"Waiting for {what}.", warn_on=None)


def _summary(accepted: Condition, running: Condition) -> Condition:
    """Return condition Ready: the job runs, or has done what it should, or waits for its time."""
    if running.reason in _DONE_FOR_NOW:
        return ready([accepted], running.reason, running.message)
    return ready([accepted, running], "Running", running.message)


def _ui(seen: Observed) -> str | None:
    address = (seen.driver or {}).get("status", {}).get("podIP") if seen.is_running else None
    return f"http://{address}:{names.UI_PORT}" if address else None
