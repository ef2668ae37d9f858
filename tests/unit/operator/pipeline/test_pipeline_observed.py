"""What workload and pods of a Pipeline say, and the conditions that follow."""

from typing import Any

import pytest

from tailrace.cluster.kubernetes import Kind
from tailrace_operator.kube.objects import CRON_JOBS, JOBS, STATEFUL_SETS
from tailrace_operator.pipeline import conditions
from tailrace_operator.pipeline.observed import Observed, observe
from tailrace_operator.reconcile.outcome import Outcome
from tailrace_operator.schema.pipeline_spec import PipelineSpec

NOW_MS = 1_767_323_045_000  # 2026-01-02T03:04:05Z
LONG_AGO = "2026-01-02T02:00:00Z"
JUST_NOW = "2026-01-02T03:04:00Z"
RUNNING: dict[str, Any] = {"running": {"startedAt": LONG_AGO}}


def spec(**fields: Any) -> PipelineSpec:
    own = {"cluster": "main", "job": "archive", "stream": "shop/orders", "output": "s3a://lake/orders", **fields}
    return PipelineSpec.parse({"metadata": {"name": "nightly"}, "spec": own})


def pod(
    role: str, name: str = "p", phase: str = "Running", created: str = LONG_AGO, ended: Any = None, **state: Any
) -> dict[str, Any]:
    container = {"name": "driver", "state": state, **({"lastState": {"terminated": ended}} if ended else {})}
    metadata = {"name": name, "labels": {"spark-role": role}, "creationTimestamp": created, "uid": name}
    return {"metadata": metadata, "status": {"phase": phase, "podIP": "10.0.0.1", "containerStatuses": [container]}}


def job(kind: str = "", message: str = "", created: str = LONG_AGO, failed: int = 0) -> dict[str, Any]:
    ended = [{"type": kind, "status": "True", "lastTransitionTime": JUST_NOW, "message": message}] if kind else []
    return {"metadata": {"name": "j", "creationTimestamp": created}, "status": {"conditions": ended, "failed": failed}}


def said(
    seen: Observed, of: PipelineSpec | None = None, progress: Any = None
) -> tuple[Outcome, dict[str, tuple[str, str]]]:
    outcome = conditions.outcome(of or spec(), seen, progress, NOW_MS)
    return outcome, {one.type: (one.status.value, one.reason) for one in outcome.conditions}


def test_a_running_driver_and_its_executors() -> None:
    pods = [pod("driver", "d", **RUNNING), pod("executor", "e1"), pod("executor", "e2", phase="Failed")]
    seen = observe(STATEFUL_SETS, None, (), pods)
    assert (seen.executors, [one["metadata"]["name"] for one in seen.ended_executors]) == (1, ["e2"])
    outcome, found = said(seen, spec(everySeconds=5), {"rows": 7})
    assert found["Ready"] == ("True", "Running")
    assert outcome.status["driver"] == "d"
    assert outcome.status["sparkUi"] == "http://10.0.0.1:4040"
    assert outcome.status["progress"] == {"rows": 7}


def test_a_run_that_succeeded_leaves_its_numbers() -> None:
    text = '{"batches": 2, "rows": 300}'
    pods = [pod("driver", phase="Succeeded", terminated={"exitCode": 0, "message": text})]
    seen = observe(JOBS, job("Complete"), (), pods)
    outcome, found = said(seen)
    assert found["Ready"] == ("True", "Complete")
    assert found["Running"] == ("False", "Complete")
    assert outcome.status["lastRun"] == {"result": "Succeeded", "time": JUST_NOW, "rows": 300, "batches": 2}


def test_a_run_that_failed_says_the_driver_s_last_line() -> None:
    text = "WARNING: of Java\n\ntailrace: stream lake/none does not exist\n"
    pods = [pod("driver", phase="Failed", terminated={"exitCode": 1, "message": text})]
    outcome, found = said(observe(JOBS, job("Failed", "Job has reached the limit", failed=7), (), pods))
    assert found["Ready"] == ("False", "Failed")
    assert outcome.status["lastRun"]["message"] == "stream lake/none does not exist"
    assert outcome.status["restarts"] == 7
    (ready,) = [one for one in outcome.conditions if one.type == "Ready"]
    assert ready.message == "The run has failed: stream lake/none does not exist."


def test_a_driver_that_fails_again_and_again_is_not_running() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "tailrace: no bucket"}
    again = pod("driver", ended=ended, running={"startedAt": JUST_NOW})
    seen = observe(STATEFUL_SETS, None, (), [again])
    outcome, found = said(seen, spec(everySeconds=5))
    assert found["Ready"] == ("False", "DriverFailed")
    assert "no bucket" in outcome.conditions[-1].message
    assert said(seen, spec(everySeconds=5), {"batches": 1})[1]["Ready"] == ("True", "Running")
    settled = observe(STATEFUL_SETS, None, (), [pod("driver", ended=ended, **RUNNING)])
    assert said(settled, spec(everySeconds=5))[1]["Ready"] == ("True", "Running")


def test_a_driver_that_cannot_start_says_why() -> None:
    waiting = pod("driver", phase="Pending", waiting={"reason": "ErrImageNeverPull", "message": "not present"})
    outcome, found = said(observe(JOBS, job(), (), [waiting]))
    assert found["Ready"] == ("False", "DriverFailed")
    assert "ErrImageNeverPull (not present)" in outcome.conditions[-1].message


@pytest.mark.parametrize(("kind", "of"), [(STATEFUL_SETS, spec(everySeconds=5)), (CRON_JOBS, spec(schedule="@daily"))])
def test_a_driver_that_is_being_deleted_holds_up_the_next_one(kind: Kind, of: PipelineSpec) -> None:
    """On a lost node it stays, and its workload starts no other."""
    going = pod("driver", "d", **RUNNING) | {"spec": {"nodeName": "n1"}}
    going["metadata"]["deletionTimestamp"] = JUST_NOW
    outcome, found = said(observe(kind, None, (), [pod("executor", "e"), going]), of)
    assert found["Ready"] == ("Unknown", "Stopping")
    assert outcome.conditions[-1].message == "Waiting for the end of pod d on node n1."


@pytest.mark.parametrize(
    ("kind", "of", "reason", "ready"),
    [
        (STATEFUL_SETS, spec(everySeconds=5, suspend=True), "Suspended", "False"),
        (CRON_JOBS, spec(schedule="@daily"), "Scheduled", "True"),
        (JOBS, spec(), "Starting", "False"),
    ],
)
def test_without_pods(kind: Kind, of: PipelineSpec, reason: str, ready: str) -> None:
    _, found = said(observe(kind, None, (), ()), of)
    assert found["Running"] == ("False", reason)
    assert found["Ready"] == (ready, reason)


def test_the_newest_job_of_a_schedule_counts() -> None:
    jobs = [job("Failed", "old", created=LONG_AGO), job("Complete", created=JUST_NOW)]
    pods = [pod("driver", phase="Succeeded", terminated={"exitCode": 0, "message": "no JSON"})]
    outcome, found = said(observe(CRON_JOBS, None, jobs, pods), spec(schedule="@hourly"))
    assert found["Ready"] == ("True", "Scheduled")
    assert outcome.status["lastRun"] == {"result": "Succeeded", "time": JUST_NOW}


def test_a_failed_run_before_one_that_succeeded_is_history() -> None:
    """Kubernetes keeps the last failed pod of a schedule."""
    jobs = [job("Failed", "old", created=LONG_AGO), job("Complete", created=JUST_NOW)]
    pods = [
        pod("driver", "old", phase="Failed", created=LONG_AGO, terminated={"exitCode": 1, "message": "why"}),
        pod("driver", "new", phase="Succeeded", created=JUST_NOW, terminated={"exitCode": 0, "message": "{}"}),
    ]
    assert said(observe(CRON_JOBS, None, jobs, pods), spec(schedule="@hourly"))[1]["Ready"] == ("True", "Scheduled")


def test_a_scheduled_run_that_failed_is_said_until_the_next_one_runs() -> None:
    failed = observe(CRON_JOBS, None, [job("Failed", "why")], ())
    assert said(failed, spec(schedule="@hourly"))[1]["Ready"] == ("False", "Failed")
    again = observe(CRON_JOBS, None, [job("Failed", "why"), job(created=JUST_NOW)], [pod("driver", **RUNNING)])
    assert said(again, spec(schedule="@hourly"))[1]["Ready"] == ("True", "Running")
