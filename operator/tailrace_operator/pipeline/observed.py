"""What workload and pods of a Pipeline say; pure (docs/pipelines.md#conditions)."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace_operator.kube.manifests import is_time
from tailrace_operator.kube.objects import CRON_JOBS, JOBS
from tailrace_operator.pipeline import names
from tailrace_operator.pipeline.last_run import LastRun
from tailrace_operator.pipeline.pods import CONTAINER
from tailrace_operator.pipeline.render import SPECIFICATION_ANNOTATION

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Kind, Manifest

_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Observed:
    """What can be seen of a pipeline.

    ``driver``: the newest driver pod that has not ended and is not being deleted. ``left``: all pods that have not
    ended, drivers first. ``ended_executors``: those to remove, also of drivers that have ended: one that waits for a
    node would wait for ever. ``last``: the last run of a workload that ends.
    ``goes_on``: the newest Job has not ended, also when it waits for its next attempt.
    """

    driver: Manifest | None
    left: tuple[Manifest, ...]
    executors: int
    restarts: int
    ended_executors: tuple[Manifest, ...]
    last_error: str
    last: LastRun | None
    goes_on: bool

    @property
    def held_up(self) -> tuple[Manifest, ...]:
        """Return the drivers that are being deleted and hold up the next one."""
        return () if self.driver else tuple(pod for pod in self.left if _role(pod) == names.DRIVER)

    @property
    def is_running(self) -> bool:
        """Return whether the driver's program runs."""
        return self.driver is not None and bool(_state(self.driver).get("running"))

    def fails_again(self, now_ms: int) -> bool:
        """Return whether the last attempt failed, and this one has not run for long enough to count as a success."""
        started = _state(self.driver).get("running", {}).get("startedAt") if self.driver else None
        if not self.last_error or not is_time(started):
            return False
        age_s = now_ms / 1000 - datetime.datetime.fromisoformat(started).timestamp()
        return age_s < limits.OPERATOR_PIPELINE_SETTLED_S


def observe(kind: Kind, workload: Manifest | None, jobs: Iterable[Manifest], pods: Iterable[Manifest]) -> Observed:
    """Return what can be seen of a pipeline. ``jobs``: those of a CronJob; ``pods``: drivers and executors."""
    listed = list(pods)
    drivers = sorted((pod for pod in listed if _role(pod) == names.DRIVER), key=_created)
    executors = [pod for pod in listed if _role(pod) == names.EXECUTOR]
    jobs = [workload] if kind is JOBS and workload else list(jobs) if kind is CRON_JOBS else []
    job, ended = _newest(jobs), _newest(one for one in jobs if end_of_job(one) is not None)
    end = end_of_job(ended)
    gone = {pod["metadata"].get("uid") for pod in drivers if has_ended(pod)}
    alive = [pod for pod in drivers if not has_ended(pod) and not _is_going(pod)]
    restarts = _number(_status(job), "failed") if job is not None else sum(map(_restarts, alive[-1:]))
    return Observed(
        driver=alive[-1] if alive else None,
        left=left_of(listed),
        executors=sum(_phase(pod) == "Running" for pod in executors),
        restarts=restarts,
        ended_executors=tuple(pod for pod in executors if has_ended(pod) or _owners(pod) & gone),
        last_error=_last_error(drivers),
        last=_last_run(ended, end, [pod for pod in drivers if _is_of(pod, ended)]) if ended and end else None,
        goes_on=job is not None and end_of_job(job) is None,
    )


def left_of(pods: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the pods that have not ended: drivers, oldest first, and then executors."""
    left = [pod for pod in pods if not has_ended(pod)]
    drivers = sorted((pod for pod in left if _role(pod) == names.DRIVER), key=_created)
    return (*drivers, *(pod for pod in left if _role(pod) == names.EXECUTOR))


def has_ended(pod: Manifest) -> bool:
    """Return whether no container of a pod runs any more."""
    return _phase(pod) in _ENDED


def named(pods: Sequence[Manifest]) -> str:
    """Return the first of pods with its node, and how many more there are."""
    node = (pods[0].get("spec") or {}).get("nodeName")
    place = f" on node {node}" if node else ""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"pod {pods[0]['metadata']['name']}{place}{more}"


def end_of_job(job: Manifest | None) -> Mapping[str, Any] | None:
    """Return the condition that a Job has ended; None: it has not."""
    for condition in _status(job).get("conditions") or []:
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return dict(condition)
    return None


def _last_error(drivers: list[Manifest]) -> str:
    """Return the error of the newest driver that has one, unless a newer one has succeeded."""
    for pod in reversed(drivers):
        error = _error(pod)
        if error or _phase(pod) == "Succeeded":
            return error
    return ""


def _last_run(job: Manifest, end: Mapping[str, Any], drivers: list[Manifest]) -> LastRun:
    specification = str((job["metadata"].get("annotations") or {}).get(SPECIFICATION_ANNOTATION, ""))
    succeeded = end["type"] == "Complete"
    time = str(end.get("lastTransitionTime", ""))
    phase = "Succeeded" if succeeded else "Failed"
    pod = next((pod for pod in reversed(drivers) if _phase(pod) == phase), None)
    said = str(_terminated(pod).get("message") or "") if pod is not None else ""
    if not succeeded:
        message = _line(said) or _line(end.get("message"))
        return LastRun(False, time, message=message, specification=specification)
    numbers = _numbers(said)
    return LastRun(True, time, numbers.get("rows"), numbers.get("batches"), specification=specification)


def _numbers(said: str) -> Mapping[str, int]:
    """Return the numbers of a termination message; none: it is not JSON."""
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if type(value) is int} if isinstance(found, dict) else {}


def _error(pod: Manifest) -> str:
    """Return why the program of a driver ended last; empty: it did not, or all was well."""
    ended = _terminated(pod)
    if not ended or ended.get("exitCode") == 0:
        return ""
    reason = _line(ended.get("reason") or "Error")
    said = _line(ended.get("message"))
    return said or f"{reason} (exit code {ended.get('exitCode')})"


def _terminated(pod: Manifest) -> Mapping[str, Any]:
    return _state(pod).get("terminated") or (_container(pod).get("lastState") or {}).get("terminated") or {}


def _state(pod: Manifest) -> Mapping[str, Any]:
    return _container(pod).get("state") or {}


def _container(pod: Manifest) -> Mapping[str, Any]:
    found = [one for one in _status(pod).get("containerStatuses") or [] if one.get("name") == CONTAINER]
    return found[0] if found else {}


def _restarts(pod: Manifest) -> int:
    return _number(_container(pod), "restartCount")


def _newest(jobs: Iterable[Manifest]) -> Manifest | None:
    return max(jobs, key=_created, default=None)


def _created(item: Manifest) -> str:
    return str(item["metadata"].get("creationTimestamp", ""))


def _owners(item: Manifest) -> set[str]:
    return {str(owner.get("uid")) for owner in item["metadata"].get("ownerReferences") or ()}


def _is_of(pod: Manifest, job: Manifest) -> bool:
    """Return whether a driver is of a Job, as far as it says."""
    owners = _owners(pod)
    return not owners or job["metadata"].get("uid") in owners


def _role(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.ROLE_LABEL, ""))


def _phase(pod: Manifest) -> str:
    return str(_status(pod).get("phase", ""))


def _is_going(pod: Manifest) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def _status(item: Manifest | None) -> Mapping[str, Any]:
    return (item or {}).get("status") or {}


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return value if type(value) is int else 0


def _line(text: object) -> str:
    """Return the last line that says something: of a program that wrote no message, Kubernetes gives its log."""
    lines = [line for line in str(text or "").splitlines() if line.strip()]
    last = " ".join(lines[-1].split()) if lines else ""
    return last.removeprefix("tailrace: ").rstrip(".")[: limits.CONDITION_MESSAGE_MAX_LENGTH // 2]
