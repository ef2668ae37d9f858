"""A schedule whose run has ended while the next one runs; executors of a driver that has ended."""

from __future__ import annotations

from typing import Any

from tailrace_operator.kube.objects import CRON_JOBS, JOBS
from tailrace_operator.pipeline import conditions
from tailrace_operator.pipeline.observed import observe
from tailrace_operator.schema.pipeline_spec import PipelineSpec

EARLIER, LATER, NOW = "2026-01-02T02:00:00Z", "2026-01-02T03:00:00Z", "2026-01-02T03:00:05Z"


def pod(role: str, name: str, owner: str, phase: str, created: str, **state: Any) -> dict[str, Any]:
    owners = [{"uid": owner, "controller": True}]
    metadata = {"name": name, "uid": name, "labels": {"spark-role": role}, "creationTimestamp": created}
    containers = [{"name": "driver", "state": state}]
    return {
        "metadata": {**metadata, "ownerReferences": owners},
        "status": {"phase": phase, "containerStatuses": containers},
    }


def job(name: str, created: str, *conditions: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "creationTimestamp": created}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def test_a_run_that_has_ended_is_the_last_one_also_when_the_next_one_runs() -> None:
    """Where runs are longer than the period, Kubernetes starts the next one before the operator looks again."""
    ended = job("a", EARLIER, {"type": "Failed", "status": "True", "lastTransitionTime": LATER, "message": "limit"})
    drivers = [
        pod("driver", "a-1", "a", "Failed", EARLIER, terminated={"exitCode": 3, "message": "the audit has findings"}),
        pod("driver", "b-1", "b", "Failed", LATER, terminated={"exitCode": 1, "message": "of the run that goes on"}),
        pod("driver", "b-2", "b", "Running", NOW, running={"startedAt": NOW}),
    ]
    seen = observe(CRON_JOBS, None, [ended, job("b", LATER)], drivers)
    assert seen.last is not None
    assert (seen.last.succeeded, seen.last.time, seen.last.message) == (False, LATER, "the audit has findings")


def test_a_run_that_waits_for_its_next_attempt_is_not_the_one_that_failed_before() -> None:
    own = {"cluster": "main", "job": "archive", "stream": "s/t", "output": "s3a://lake/out", "schedule": "@daily"}
    spec = PipelineSpec.parse({"metadata": {"name": "nightly"}, "spec": own})
    ended = job("a", EARLIER, {"type": "Failed", "status": "True", "lastTransitionTime": LATER, "message": "limit"})
    drivers = [
        pod("driver", "a-1", "a", "Failed", EARLIER, terminated={"exitCode": 1, "message": "of yesterday"}),
        pod("driver", "b-1", "b", "Failed", LATER, terminated={"exitCode": 1, "message": "bucket is away now"}),
    ]
    made = conditions.outcome(spec, observe(CRON_JOBS, None, [ended, job("b", LATER)], drivers), None, 0)
    (running,) = [one for one in made.conditions if one.type == "Running"]
    assert running.reason == "DriverFailed"
    assert "bucket is away now" in running.message
    assert made.status["lastRun"]["message"] == "of yesterday"


def test_executors_of_a_driver_that_has_ended_are_removed() -> None:
    """The pod of a killed driver stays with its Job, so nothing else takes an executor that waits for a node."""
    pods = [
        pod("driver", "d1", "j", "Failed", EARLIER, terminated={"exitCode": 137, "reason": "OOMKilled"}),
        pod("executor", "e1", "d1", "Pending", EARLIER),
        pod("driver", "d2", "j", "Running", LATER, running={"startedAt": LATER}),
        pod("executor", "e2", "d2", "Pending", LATER),
        pod("executor", "e3", "d2", "Running", LATER),
    ]
    seen = observe(JOBS, job("j", EARLIER), (), pods)
    assert [one["metadata"]["name"] for one in seen.ended_executors] == ["e1"]
