"""Pipelines against resources in memory: children, what is refused, what is replaced, what is deleted."""

from typing import Any

import pytest

from harness.localobjects import NAMESPACE
from harness.localpipelines import CHILD, SPEC, TIER2, System
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.cluster.kubernetes import STREAM_CLUSTERS
from tailrace.common import limits
from tailrace_operator.cluster.tier2 import Tier2Error
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    CRON_JOBS,
    JOBS,
    PIPELINES,
    PODS,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
)
from tailrace_operator.pipeline import names
from tailrace_operator.pipeline.render import RUN_ANNOTATION


async def test_children_are_made_and_the_driver_is_asked() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    assert await system.look() == ("False", "Starting")
    for kind in (SERVICE_ACCOUNTS, CONFIG_MAPS, STATEFUL_SETS):
        assert system.objects.exists(kind, CHILD)
    assert system.probe.looked == [("lake", ""), ("lake", "orders")]
    system.driver(STATEFUL_SETS)
    assert await system.look() == ("True", "Running")
    assert system.drivers.asked == ["10.0.0.1"]
    assert system.hand.status(PIPELINES, "nightly")["progress"] == {"rows": 3}
    assert len(system.probe.looked) == 2, "checked once for a specification"


async def test_unchanged_children_are_not_read_each_time() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    before = system.objects.gets
    await system.look()
    assert system.objects.gets - before == 2, "the cluster and the workload"
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert system.objects._find(STATEFUL_SETS, NAMESPACE, CHILD)["spec"]["replicas"] == 0


async def test_a_workload_that_was_deleted_is_made_again() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    system.objects.remove(STATEFUL_SETS, CHILD)
    await system.look()
    assert system.objects.exists(STATEFUL_SETS, CHILD)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cluster": "none"}, "ClusterNotFound"),
        ({"output": "s3a://tailrace/trial/orders"}, "OutputInCluster"),
        ({"job": "replay"}, "InvalidSpec"),
        ({"objectStore": {"endpoint": "http://minio.n:9000", "credentialsSecret": "gone"}}, "SecretMissing"),
    ],
)
async def test_what_is_refused_starts_nothing(change: dict[str, Any], reason: str) -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | change)
    assert await system.look() == ("False", reason)
    assert not system.objects.exists(JOBS, CHILD)


async def test_a_folder_beside_the_cluster_s_prefix_is_taken() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"output": "s3a://tailrace/trial-archive/orders"})
    assert await system.look() == ("False", "Starting")


async def test_a_folder_of_another_cluster_is_refused() -> None:
    system = System()
    system.probe.said["lake"] = ClusterIdentity("other", 4)
    system.objects.make(PIPELINES, "nightly", SPEC)
    assert await system.look() == ("False", "OutputInCluster")


async def test_a_cluster_above_the_folder_is_found_by_whatever_name_its_store_has() -> None:
    system = System()
    system.probe.said["tailrace"] = ClusterIdentity("this", 4)
    store = {"endpoint": "http://minio.n.svc:9000", "credentialsSecret": "minio"}
    output = "s3a://tailrace/trial/deep/orders"
    system.objects.make(PIPELINES, "nightly", SPEC | {"objectStore": store, "output": output})
    assert await system.look() == ("False", "OutputInCluster")


async def test_credentials_that_are_limited_to_the_folder_are_taken() -> None:
    """What is above the folder cannot be looked at then: AccessDenied says nothing about the folder."""
    system = System()
    system.probe.denied = {"", "teams"}
    system.objects.make(PIPELINES, "nightly", SPEC | {"output": "s3a://lake/teams/orders"})
    assert await system.look() == ("False", "Starting")
    assert system.probe.looked == [("lake", ""), ("lake", "teams"), ("lake", "teams/orders")]


async def test_a_folder_that_the_credentials_may_not_read_is_refused() -> None:
    system = System()
    system.probe.denied = {"", "orders"}
    system.objects.make(PIPELINES, "nightly", SPEC)
    assert await system.look() == ("False", "AccessDenied")
    assert "spec.output" in system.message()


async def test_another_store_of_the_cluster_is_looked_at_again() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC)
    await system.look()
    system.objects.edit(STREAM_CLUSTERS, "main", {"tier2": TIER2 | {"endpoint": "http://other.n:9000"}})
    await system.look()
    assert len(system.probe.looked) == 4


async def test_a_store_that_refuses_names_the_field() -> None:
    system = System()
    system.probe.said["lake"] = Tier2Error("BucketMissing", "spec.tier2.bucket: bucket lake does not exist")
    system.objects.make(PIPELINES, "nightly", SPEC)
    assert await system.look() == ("False", "BucketMissing")
    (ready,) = [one for one in system.hand.status(PIPELINES, "nightly")["conditions"] if one["type"] == "Ready"]
    assert ready["message"].startswith("spec.output: bucket lake")


async def test_without_an_image_nothing_runs() -> None:
    system = System(image=None)
    system.objects.make(PIPELINES, "nightly", SPEC)
    assert await system.look() == ("False", "PipelinesDisabled")


async def test_a_changed_job_is_replaced_when_its_driver_has_ended() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC)
    await system.look()
    first = system.objects._find(JOBS, NAMESPACE, CHILD)["metadata"]["uid"]
    system.driver(JOBS)
    assert await system.look() == ("True", "Running")
    system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    await system.look()
    assert not system.objects.exists(JOBS, CHILD)
    await system.look()
    assert not system.objects.exists(JOBS, CHILD), "its driver still runs"
    system.objects.remove(PODS, f"d-{first[:4]}")
    await system.look()
    assert system.objects._find(JOBS, NAMESPACE, CHILD)["metadata"]["uid"] != first


async def test_a_workload_of_another_kind_goes() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    system.objects.edit(PIPELINES, "nightly", {"everySeconds": None, "schedule": "@daily"})
    await system.look()
    assert await system.look() == ("True", "Scheduled")
    assert not system.objects.exists(STATEFUL_SETS, CHILD)
    assert system.objects.exists(CRON_JOBS, CHILD)


async def test_executors_that_have_ended_are_deleted() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    for name, phase in (("e1", "Failed"), ("e2", "Running")):
        system.objects.make(PODS, name, {}, labels={**names.labels("nightly"), "spark-role": "executor"})
        system.objects.put_status(PODS, name, {"phase": phase})
    await system.look()
    assert not system.objects.exists(PODS, "e1")
    assert system.objects.exists(PODS, "e2")


async def test_objects_of_others_with_its_names_are_left() -> None:
    system = System()
    system.objects.make(CONFIG_MAPS, CHILD, {})
    system.objects.make(PIPELINES, "nightly", SPEC)
    assert await system.look() == ("False", "NameTaken")
    assert not system.objects.exists(JOBS, CHILD)


async def test_suspension_stops_a_scheduled_run() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"schedule": "@hourly"})
    await system.look()
    system.scheduled("before")
    ended = [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}]
    system.objects.put_status(JOBS, "before", {"conditions": ended})
    system.objects.make(JOBS, "of-others", {}, labels=names.labels("nightly"))
    system.scheduled("now")
    pod = system.driver(JOBS, owner="now")
    assert await system.look() == ("True", "Running")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("Unknown", "Stopping")
    assert system.message() == f"Waiting for the end of pod {pod} on node n1."
    assert not system.objects.exists(JOBS, "now")
    assert system.objects.exists(JOBS, "before"), "its result is in the status"
    assert system.objects.exists(JOBS, "of-others")
    system.objects.remove(PODS, pod)
    assert await system.look() == ("False", "Suspended")


async def test_a_run_that_a_schedule_began_just_before_its_suspension_is_stopped_too() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"schedule": "@hourly", "suspend": True})
    assert await system.look() == ("False", "Suspended")
    system.scheduled("late")
    await system.look()
    assert not system.objects.exists(JOBS, "late")


async def test_a_suspension_does_not_wait_for_an_old_driver_and_the_next_run_does() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"schedule": "@hourly"})
    await system.look()
    system.scheduled("lost")
    pod = system.driver(JOBS, owner="lost")
    system.objects.remove(JOBS, "lost")
    for suspend in (True, False):
        system.objects.edit(PIPELINES, "nightly", {"suspend": suspend})
        assert await system.look() == ("Unknown", "Stopping")
        assert system.objects._find(CRON_JOBS, NAMESPACE, CHILD)["spec"]["suspend"] is True
    system.objects.remove(PODS, pod)
    assert await system.look() == ("True", "Scheduled")
    assert system.objects._find(CRON_JOBS, NAMESPACE, CHILD)["spec"]["suspend"] is False


async def test_a_pipeline_is_suspended_when_its_last_pod_has_ended() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    pod = system.driver(STATEFUL_SETS)
    found = system.objects._find(PODS, NAMESPACE, pod)
    found["metadata"] |= {"deletionTimestamp": "2026-01-02T03:00:00Z", "finalizers": ["kept"]}
    system.objects._store(PODS, found)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("Unknown", "Stopping")
    system.objects.put_status(PODS, pod, {"phase": "Failed"})
    assert await system.look() == ("False", "Suspended")


async def test_a_driver_on_a_lost_node_is_waited_for_with_growing_pauses_and_named() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC)
    await system.look()
    pod = system.driver(JOBS)
    assert await system.look() == ("True", "Running")
    system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    first = len(system.hand.outcomes)
    for _ in range(10):
        assert await system.look() == ("Unknown", "Stopping")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("Unknown", "Stopping")
    assert system.message() == f"Waiting for the end of pod {pod} on node n1."
    pauses = [one.retry_after_s or 0 for one in system.hand.outcomes[first:]]
    assert pauses[:3] == [limits.OPERATOR_CHILD_PAUSE_S * factor for factor in (1, 2, 4)]
    assert pauses[-1] == limits.OPERATOR_WAIT_S
    assert system.hand.status(PIPELINES, "nightly").keys() == {"conditions", "observedGeneration"}
    system.objects.remove(PODS, pod)
    await system.look()
    assert system.objects.exists(JOBS, CHILD)
    system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="3")
    await system.look()
    assert system.hand.outcomes[-1].retry_after_s == limits.OPERATOR_CHILD_PAUSE_S, "a wait of its own"


async def test_a_job_whose_deletion_takes_long_is_deleted_once_and_named() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC)
    await system.look()
    job = system.objects._find(JOBS, NAMESPACE, CHILD)
    job["metadata"]["finalizers"] = ["of.others/kept"]
    system.objects._store(JOBS, job)
    system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    assert await system.look() == ("Unknown", "Stopping")
    version = system.objects._find(JOBS, NAMESPACE, CHILD)["metadata"]["resourceVersion"]
    assert await system.look() == ("Unknown", "Stopping")
    assert system.message() == f"Waiting for the deletion of Job {CHILD}."
    assert system.objects._find(JOBS, NAMESPACE, CHILD)["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("why", ["silent", "suspended", "crashed", "refused"])
async def test_what_is_not_known_any_more_of_a_driver_is_not_shown(why: str) -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    pod = system.driver(STATEFUL_SETS)
    await system.look()
    assert system.hand.status(PIPELINES, "nightly")["progress"] == {"rows": 3}
    if why == "silent":
        system.drivers.said = None
    elif why == "suspended":
        system.objects.edit(PIPELINES, "nightly", {"suspend": True})
        system.objects.remove(PODS, pod)
    elif why == "crashed":
        waiting = {"name": "driver", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        system.objects.put_status(PODS, pod, {"phase": "Running", "containerStatuses": [waiting]})
    else:
        system.objects.remove(STREAM_CLUSTERS, "main")
    await system.look()
    status = system.hand.status(PIPELINES, "nightly")
    assert "progress" not in status
    assert ("sparkUi" in status) is (why == "silent")


async def test_whether_the_driver_runs_is_not_known_while_the_specification_is_refused() -> None:
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    system.driver(STATEFUL_SETS)
    await system.look()
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("True", "Running")
    system.objects.remove(STREAM_CLUSTERS, "main")
    assert await system.look() == ("False", "ClusterNotFound")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("Unknown", "ClusterNotFound")
    (away,) = system.reconciler.away({}, "the API server does not answer")
    assert (away.type, away.status, away.reason) == ("Running", "Unknown", "Unavailable")
