"""Explain from the status of pods and of their workload why they are not ready; pure (docs/design.md#resources).

A running process reports on its own ``/readyz`` what it waits for. This module finds what keeps a process from running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace_operator.kube.manifests import time_ms
from tailrace_operator.kube.objects import DEPLOYMENTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tailrace.cluster.kubernetes import Manifest

_TEXT_MAX_LENGTH: Final = 200
_NAMES_MAX: Final = 5
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
_BACK_OFF: Final = "CrashLoopBackOff"


def pod_problem(pods: Iterable[Manifest]) -> str:
    """Return why the first pod with a problem is not ready, and how many more have one; empty: none has."""
    found = {}
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp") is None and not _is_ready(pod) and (why := _why_not(pod)):
            found[str(metadata["name"])] = why
    if not found:
        return ""
    first = min(found)
    more = f", and {len(found) - 1} more pods are not ready" if len(found) > 1 else ""
    return f"pod {first}: {found[first]}{more}"


def terminating_pods(pods: Iterable[Manifest], wanted: Collection[str]) -> str:
    """Return which pods of wanted names still terminate, so that no new ones can be created; empty: none."""
    names = [str(pod["metadata"]["name"]) for pod in pods if pod["metadata"].get("deletionTimestamp") is not None]
    ending = sorted({*names} & {*wanted}, key=lambda name: (len(name), name))
    if not ending:
        return ""
    more = f", and {len(ending) - _NAMES_MAX} more" if len(ending) > _NAMES_MAX else ""
    return f"waiting for terminating pods: {', '.join(ending[:_NAMES_MAX])}{more}"


@dataclass(frozen=True, slots=True)
class Missing:
    """Pods that Kubernetes does not create. ``why``: empty while that may pass. ``is_lasting``: it has not passed."""

    why: str
    is_lasting: bool


def missing_pods(workload: Manifest, since: object, now_ms: int) -> Missing | None:
    """Return why pods of a workload are not created, as by a quota or a webhook; None: as far as it says they are.

    A Deployment has the reason. A StatefulSet has it in its Events only, which the operator may not read. `since`: the
    time since when pods of the StatefulSet are not ready, as Kubernetes writes it. `now_ms`: in ms since 1970.
    """
    status = _status(workload)
    if workload.get("kind") == DEPLOYMENTS.kind:
        for condition in _list(status, "conditions"):
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                why = _line(condition.get("message") or condition.get("reason") or "pods are not created")
                return Missing(why, _lasts(condition.get("lastTransitionTime"), now_ms))
        return None
    count = _number(_mapping(workload, "spec"), "replicas") - _number(status, "replicas")
    rolling = _number(status, "observedGeneration") < _number(workload["metadata"], "generation")
    if count <= 0 or rolling:  # until a change is observed, the number of pods is that of before
        return None
    if not _lasts(since, now_ms):
        return Missing("", is_lasting=False)
    pods = "1 pod is" if count == 1 else f"{count} pods are"
    return Missing(f"{pods} not created, kubectl describe sts/{workload['metadata']['name']} says why", is_lasting=True)


def _lasts(since: object, now_ms: int) -> bool:
    begun_ms = time_ms(since)
    return begun_ms > 0 and now_ms - begun_ms > limits.OPERATOR_PODS_MISSING_S * 1000


def _is_ready(pod: Manifest) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in _list(_status(pod), "conditions"))


def _why_not(pod: Manifest) -> str:
    status = _status(pod)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _with_message(status["reason"], status.get("message"))
    for condition in _list(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _with_message(condition.get("reason") or "Unschedulable", condition.get("message"))
    containers = [*_list(status, "initContainerStatuses"), *_list(status, "containerStatuses")]
    return next((why for container in containers if (why := _why_container(container))), "")


def _why_container(container: Mapping[str, Any]) -> str:
    """Return what a container waits for or exited with; empty: it runs without restarts, or is starting."""
    state, last = _mapping(container, "state"), _mapping(_mapping(container, "lastState"), "terminated")
    waiting, ended = _mapping(state, "waiting"), _mapping(state, "terminated")
    reason = waiting.get("reason")
    if reason == _BACK_OFF:  # its message only gives the pause
        return f"{_BACK_OFF} after {_end(last)}" if last else _BACK_OFF
    if reason and reason not in _STARTING:
        return _with_message(reason, waiting.get("message"))
    if ended and ended.get("exitCode"):
        return _end(ended)
    if last and not container.get("ready"):
        return f"restarted after {_end(last)}"
    return ""


def _end(terminated: Mapping[str, Any]) -> str:
    return f"{_line(terminated.get('reason') or 'Error')} (exit code {terminated.get('exitCode')})"


def _with_message(reason: object, message: object) -> str:
    return f"{_line(reason)} ({_line(message)})" if message else _line(reason)


def _line(text: object) -> str:
    """Return a foreign text as one line, shortened, without a final full stop."""
    line = " ".join(str(text).split()).rstrip(".")
    return line if len(line) <= _TEXT_MAX_LENGTH else f"{line[: _TEXT_MAX_LENGTH - 3]}..."


def _status(pod: Manifest) -> Mapping[str, Any]:
    return _mapping(pod, "status")


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _number(of: Mapping[str, Any], name: str) -> int:
    found = of.get(name)
    return found if type(found) is int else 0


def _list(of: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = of.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
