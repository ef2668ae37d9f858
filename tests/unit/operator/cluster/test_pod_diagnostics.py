"""Why pods are not ready: Kubernetes' own words, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.cluster.pod_diagnostics import pod_problem, terminating_pods
from tailrace_operator.cluster.state import pods_condition

KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


def pod(name: str = "main-store-0", *, ready: bool = False, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {"metadata": {"name": name}, "status": {"phase": "Pending", "conditions": conditions, **status}}


def container(state: dict[str, Any], last: dict[str, Any] | None = None, *, ready: bool = False) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "c", "ready": ready, "state": state, "lastState": last or {}}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient memory.",
}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (pod(), ""),
        (pod(**container({"running": {}})), ""),
        (pod(**container(waiting("ContainerCreating"))), ""),
        (pod(**container({"terminated": {"reason": "Completed", "exitCode": 0}})), ""),
        (pod(ready=True, **container({"running": {}}, KILLED, ready=True)), ""),
        (pod(conditions=[UNSCHEDULABLE]), "Unschedulable (0/1 nodes are available: 1 Insufficient memory)"),
        (pod(conditions=[{"type": "PodScheduled", "status": "False"}]), "Unschedulable"),
        (
            pod(**container(waiting("ImagePullBackOff", 'Back-off pulling image "a/b:1"'))),
            'ImagePullBackOff (Back-off pulling image "a/b:1")',
        ),
        (
            pod(**container(waiting("CreateContainerConfigError", 'secret "minio" not found'))),
            'CreateContainerConfigError (secret "minio" not found)',
        ),
        (
            pod(**container(waiting("CrashLoopBackOff", "back-off 5m0s restarting"), KILLED)),
            "CrashLoopBackOff after OOMKilled (exit code 137)",
        ),
        (pod(**container(waiting("CrashLoopBackOff"))), "CrashLoopBackOff"),
        (pod(**container(KILLED)), "OOMKilled (exit code 137)"),
        (pod(**container({"terminated": {"exitCode": 1}})), "Error (exit code 1)"),
        (pod(**container({"running": {}}, KILLED)), "restarted after OOMKilled (exit code 137)"),
        (pod(phase="Failed", reason="Evicted", message="The node was low on\nresource: memory. "),
         "Evicted (The node was low on resource: memory)"),
        (pod(initContainerStatuses=[{"name": "i", "state": waiting("ErrImagePull")}]), "ErrImagePull"),
        (pod(**container(waiting("X", "y" * 300))), f"X ({'y' * 197}...)"),
    ],
)  # fmt: skip
def test_the_problem_of_a_pod(found: dict[str, Any], problem: str) -> None:
    assert pod_problem([found]) == (f"pod main-store-0: {problem}" if problem else "")


def test_the_first_of_several_is_named_and_the_others_are_counted() -> None:
    stuck = container(waiting("ImagePullBackOff"))
    pods = [pod(f"main-store-{number}", **stuck) for number in (2, 1, 3)]
    pods.append(pod("main-store-0", ready=True))
    leaving = pod("main-store-00", **stuck)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_problem([*pods, leaving]) == "pod main-store-1: ImagePullBackOff, and 2 more pods are not ready"
    assert pod_problem([]) == ""


def test_pods_that_end_and_whose_names_are_wanted_are_waited_for() -> None:
    """Those of a StreamCluster that had the name before, too: until they have ended theirs cannot be made."""

    def leaving(name: str) -> dict[str, Any]:
        found = pod(name, ready=True)
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return found

    pods = [leaving(f"main-store-{number}") for number in (1, 0, 2)]
    assert (
        terminating_pods(pods, ["main-store-0", "main-store-1"])
        == "waiting for terminating pods: main-store-0, main-store-1"
    )
    assert terminating_pods([*pods[:1], pod("main-store-0")], ["main-store-0", "main-store-1"]) == (
        "waiting for terminating pods: main-store-1"
    )
    assert terminating_pods([pod("main-store-0")], ["main-store-0"]) == ""
    assert terminating_pods(pods, []) == "", "no pods replace them"
    many = [leaving(f"m-store-{number}") for number in range(100)]
    problem = terminating_pods(many, [one["metadata"]["name"] for one in many])
    assert problem.endswith(", m-store-3, m-store-4, and 95 more")


def test_the_condition_contains_the_problem() -> None:
    workload = {
        "metadata": {"generation": 1},
        "status": {"observedGeneration": 1, "readyReplicas": 1, "updatedReplicas": 2},
    }
    found = pods_condition("SegmentStoreReady", "segment store", workload, 2, "pod p: OOMKilled (exit code 137)")
    assert found.reason == "PodsNotReady"
    assert found.message == "1 of 2 segment store pods are ready: pod p: OOMKilled (exit code 137)."
    begun = pods_condition("SegmentStoreReady", "segment store", workload, 3, "pod p: ErrImagePull")
    assert begun.reason == "PodsChanging"
    assert begun.message == ("1 of 3 segment store pods are ready, 2 are up to date: pod p: ErrImagePull.")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["state", "waiting", "reason", "type", "lastState", "terminated"]), inner)
    ),
)
FIELDS = ("phase", "reason", "message", "conditions", "containerStatuses", "initContainerStatuses")


@given(st.dictionaries(st.sampled_from(FIELDS), JUNK))
def test_whatever_a_status_holds_is_no_reason_to_fail(status: dict[str, Any]) -> None:
    problem = pod_problem([{"metadata": {"name": "p"}, "status": status}])
    assert "\n" not in problem
