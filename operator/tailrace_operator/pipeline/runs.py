"""Decide whether a run is made again; pure (docs/pipelines.md#what-runs-when).

A Job's pods cannot be changed. One that has not ended is made again when anything in its pods changes, so that its run
goes on with the present image and object store. One that has ended is made again only for another specification: what
it has written would be written a second time. So a run in the status is not repeated when its Job has been removed, as
the TTL of Jobs and clean-ups of nodes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_operator.kube.objects import JOBS
from tailrace_operator.pipeline.observed import end_of_job
from tailrace_operator.pipeline.render import (
    RUN_ANNOTATION,
    SPECIFICATION_ANNOTATION,
    children,
    specification_of,
    workload_kind,
)

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace_operator.pipeline.last_run import LastRun
    from tailrace_operator.pipeline.plan import Plan


def is_current(plan: Plan, job: Manifest) -> bool:
    """Return whether a Job's pods are those that the plan asks for."""
    return _annotation(job, RUN_ANNOTATION) == _annotation(children(plan)[-1].manifest, RUN_ANNOTATION)


def has_run(plan: Plan, job: Manifest) -> bool:
    """Return whether a Job has ended and was a run of the plan's specification.

    Jobs of earlier versions do not say of which one they are: of the present one, if the operator has carried that out.
    """
    if end_of_job(job) is None:
        return False
    specification = _annotation(job, SPECIFICATION_ANNOTATION)
    if not specification:
        return plan.is_observed
    return specification == specification_of(plan)


def remembered(plan: Plan) -> LastRun | None:
    """Return the run of the plan's specification that has ended as the status says; None: it says of none.

    A run that did not end is not in the status: when its Job is removed, it begins again.
    """
    last = plan.last_run
    if last is None or not last.specification or workload_kind(plan) is not JOBS:
        return None
    return last if last.specification == specification_of(plan) else None


def is_forgotten(plan: Plan) -> bool:
    """Return whether the plan has another specification than the run in the status.

    What the plan's run begins to write, one of the earlier specification would have to write again.
    """
    last = plan.last_run
    return last is not None and bool(last.specification) and last.specification != specification_of(plan)


def _annotation(job: Manifest, name: str) -> str:
    return str((job["metadata"].get("annotations") or {}).get(name, ""))
