"""When a run that has ended is made again: when its own specification changes, not when what it is made of does."""

from typing import Any

import pytest

from harness.localobjects import NAMESPACE
from harness.localpipelines import CHILD, SPEC, TIER2, System
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, Kind, Manifest
from tailrace.common.errors import UnavailableError
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    CRON_JOBS,
    JOBS,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
)
from tailrace_operator.pipeline.render import RUN_ANNOTATION, SPECIFICATION_ANNOTATION

REPLAY = {
    "cluster": "main",
    "job": "replay",
    "stream": "shop/orders",
    "target": "shop/copy",
    "checkpoint": "s3a://lake/position",
}
OTHER_STORE = {"tier2": TIER2 | {"endpoint": "http://other.n:9000", "region": "eu-1", "credentialsSecret": "minio"}}


def job(system: System) -> dict[str, Any]:
    return system.objects._find(JOBS, NAMESPACE, CHILD)


def image_of(workload: dict[str, Any]) -> str:
    return str(workload["spec"]["template"]["spec"]["containers"][0]["image"])


async def ended(condition: str) -> tuple[System, str]:
    """A Pipeline whose run has ended; the Job's uid."""
    system = System("spark:1")
    system.objects.make(PIPELINES, "nightly", REPLAY)
    await system.look()
    end(system, condition)
    await system.look()
    return system, job(system)["metadata"]["uid"]


def end(system: System, condition: str) -> None:
    conditions = [{"type": condition, "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}]
    system.objects.put_status(JOBS, CHILD, {"conditions": conditions})


async def looked(system: System) -> str:
    """Reconcile until a Job of the Pipeline exists; return its uid."""
    for _ in range(3):
        await system.look()
    return str(job(system)["metadata"]["uid"])


@pytest.mark.parametrize(("condition", "reason"), [("Complete", "Complete"), ("Failed", "Failed")])
async def test_an_upgrade_leaves_a_run_that_has_ended(condition: str, reason: str) -> None:
    system, uid = await ended(condition)
    system.start("spark:2")
    system.objects.edit(STREAM_CLUSTERS, "main", OTHER_STORE)
    assert await looked(system) == uid
    assert image_of(job(system)) == "spark:1", "a Job's template cannot be changed"
    assert (await system.look())[1] == reason
    assert "eu-1" in system.objects._find(CONFIG_MAPS, NAMESPACE, CHILD)["data"]["spark.conf"]


async def test_what_the_api_server_added_to_a_run_that_has_ended_stays_when_the_image_comes_back() -> None:
    """It takes away what was applied before and is not applied again, and refuses that of a Job's selector."""
    system, uid = await ended("Complete")
    spec = job(system)["spec"] | {"selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}}
    system.objects._store(JOBS, job(system) | {"spec": spec})
    applied: list[Any] = []
    apply = system.objects.apply

    async def spying(kind: Kind, namespace: str, manifest: Manifest, **options: Any) -> Manifest:
        if kind is JOBS:
            applied.append(manifest["spec"])
        return await apply(kind, namespace, manifest, **options)

    system.objects.apply = spying  # type: ignore[method-assign]
    for image in ("spark:2", "spark:1"):
        system.start(image)
        assert await looked(system) == uid
        assert applied.pop() == spec


@pytest.mark.parametrize("is_old", [False, True], ids=["", "of the version before"])
@pytest.mark.parametrize("change", ["annotation", "specification"])
async def test_a_change_by_the_user_runs_it_again_after_an_upgrade(change: str, is_old: bool) -> None:
    system, uid = await ended("Complete")
    if is_old:
        system.objects.annotate(JOBS, CHILD, RUN_ANNOTATION, value="of the version before")
    system.start("spark:2")
    assert await looked(system) == uid
    assert SPECIFICATION_ANNOTATION in job(system)["metadata"]["annotations"]
    if change == "annotation":
        system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    else:
        system.objects.edit(PIPELINES, "nightly", {"options": ["from=1"]})
    assert await looked(system) != uid
    assert image_of(job(system)) == "spark:2"


async def test_an_edit_from_before_the_upgrade_is_carried_out() -> None:
    system, uid = await ended("Complete")
    system.objects.annotate(JOBS, CHILD, RUN_ANNOTATION, value="of the version before")
    system.objects.edit(PIPELINES, "nightly", {"options": ["from=1"]})
    system.start("spark:2")
    cluster = system.objects._find(STREAM_CLUSTERS, NAMESPACE, "main")["spec"]
    system.objects.remove(STREAM_CLUSTERS, "main")
    assert await system.look() == ("False", "ClusterNotFound"), "the edit is not carried out yet"
    system.objects.make(STREAM_CLUSTERS, "main", cluster)
    assert await looked(system) != uid


async def test_suspension_leaves_a_run_that_has_ended() -> None:
    system, uid = await ended("Complete")
    system.start("spark:2")
    for suspend in (True, False):
        system.objects.edit(PIPELINES, "nightly", {"suspend": suspend})
        assert await looked(system) == uid


async def test_a_run_that_goes_on_takes_up_the_new_image() -> None:
    system = System("spark:1")
    system.objects.make(PIPELINES, "nightly", REPLAY)
    await system.look()
    uid = job(system)["metadata"]["uid"]
    system.start("spark:2")
    assert await looked(system) != uid
    assert image_of(job(system)) == "spark:2"


async def test_a_run_without_end_takes_up_the_new_image_and_a_schedule_for_its_next_run() -> None:
    system = System("spark:1")
    system.objects.make(PIPELINES, "nightly", SPEC | {"everySeconds": 5})
    await system.look()
    system.start("spark:2")
    await system.look()
    assert image_of(system.objects._find(STATEFUL_SETS, NAMESPACE, CHILD)) == "spark:2"
    system.objects.edit(PIPELINES, "nightly", {"everySeconds": None, "schedule": "@daily"})
    for _ in range(2):
        await system.look()
    system.start("spark:3")
    await system.look()
    scheduled = system.objects._find(CRON_JOBS, NAMESPACE, CHILD)["spec"]["jobTemplate"]
    assert image_of(scheduled) == "spark:3"
    assert not system.objects.exists(PODS, CHILD)


@pytest.mark.parametrize(("condition", "reason"), [("Complete", "Complete"), ("Failed", "Failed")])
@pytest.mark.parametrize("restarted", [False, True], ids=["", "the operator was away"])
async def test_a_run_that_has_ended_is_not_repeated_when_its_job_is_removed(
    condition: str, reason: str, restarted: bool
) -> None:
    """As the TTL of Jobs, kubectl and clean-ups of nodes do."""
    system, _ = await ended(condition)
    before = system.hand.status(PIPELINES, "nightly")["lastRun"]
    system.objects.remove(JOBS, CHILD)
    if restarted:
        system.start("spark:2")
        system.objects.edit(STREAM_CLUSTERS, "main", OTHER_STORE)
    for _ in range(3):
        assert (await system.look())[1] == reason
    assert not system.objects.exists(JOBS, CHILD)
    assert system.hand.status(PIPELINES, "nightly")["lastRun"] == before
    gets = system.objects.gets
    await system.look()
    assert system.objects.gets - gets == 2, "unchanged children are not read each time: the cluster and the workload"


async def test_a_run_of_an_earlier_version_is_remembered_while_its_job_exists() -> None:
    system, _ = await ended("Complete")
    system.objects.annotate(JOBS, CHILD, RUN_ANNOTATION, value="of the version before")
    status = system.hand.status(PIPELINES, "nightly")
    status["lastRun"].pop("specification")
    system.objects.put_status(PIPELINES, "nightly", status)
    system.start("spark:2")
    await system.look()
    system.objects.remove(JOBS, CHILD)
    assert (await system.look())[1] == "Complete"
    assert not system.objects.exists(JOBS, CHILD)


@pytest.mark.parametrize("change", ["annotation", "specification"])
async def test_a_change_by_the_user_runs_it_again_when_its_job_is_removed(change: str) -> None:
    system, uid = await ended("Complete")
    system.objects.remove(JOBS, CHILD)
    await system.look()
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert (await system.look())[1] == "Suspended"
    system.objects.edit(PIPELINES, "nightly", {"suspend": False})
    assert (await system.look())[1] == "Complete"
    if change == "annotation":
        system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    else:
        system.objects.edit(PIPELINES, "nightly", {"options": ["from=1"]})
    assert await looked(system) != uid
    assert (await system.look())[1] == "Starting"


@pytest.mark.parametrize("before", [False, True], ids=["the first run", "behind a run that has ended"])
async def test_a_run_that_is_deleted_before_its_end_starts_again(before: bool) -> None:
    if before:
        system, _ = await ended("Complete")
        system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="2")
    else:
        system = System("spark:1")
        system.objects.make(PIPELINES, "nightly", REPLAY)
    uid = await looked(system)
    pod = system.driver(JOBS)
    assert (await system.look())[1] == "Running"
    system.objects.remove(JOBS, CHILD)
    system.objects.remove(PODS, pod)
    assert await looked(system) != uid


async def test_a_specification_that_comes_back_runs_again() -> None:
    """What another run has begun to write, a run of the first specification has not."""
    system, _ = await ended("Complete")
    system.objects.edit(PIPELINES, "nightly", {"options": ["from=1"]})
    uid = await looked(system)
    assert system.hand.status(PIPELINES, "nightly")["lastRun"]["result"] == "Succeeded"
    system.objects.edit(PIPELINES, "nightly", {"options": []})
    assert await looked(system) != uid
    system.objects.edit(PIPELINES, "nightly", {"schedule": "@daily"})
    for _ in range(2):
        await system.look()
    system.objects.edit(PIPELINES, "nightly", {"schedule": None})
    assert await looked(system) != uid


async def test_a_specification_that_comes_back_runs_again_when_the_look_at_the_other_one_broke_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the API server goes away after the other run's Job was made: that one may have begun to write."""
    system, _ = await ended("Complete")
    system.objects.remove(JOBS, CHILD)
    system.objects.edit(PIPELINES, "nightly", {"options": ["from=1"]})
    list_objects = system.objects.list

    async def away(kind: Kind, *arguments: Any, **options: Any) -> Any:
        if kind is PODS and system.objects.exists(JOBS, CHILD):
            raise UnavailableError("the API server is away")
        return await list_objects(kind, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(system.objects, "list", away)
        with pytest.raises(UnavailableError):
            await looked(system)
    uid = str(job(system)["metadata"]["uid"])
    system.objects.edit(PIPELINES, "nightly", {"options": []})
    assert await looked(system) != uid


@pytest.mark.parametrize(("condition", "result"), [("Complete", "Succeeded"), ("Failed", "Failed")])
async def test_a_run_that_ended_and_was_removed_before_it_was_read_is_not_repeated(condition: str, result: str) -> None:
    """As by a TTL of 0 s, or while the operator was busy: the watch has shown its end, also with its deletion."""
    system = System("spark:1")
    system.objects.make(PIPELINES, "nightly", REPLAY)
    await system.look()
    end(system, condition)
    gone = job(system)
    system.objects.remove(JOBS, CHILD)
    system.reconciler.heard_job(gone)
    assert (await system.look())[1] == condition
    assert not system.objects.exists(JOBS, CHILD)
    last = system.hand.status(PIPELINES, "nightly")["lastRun"]
    assert (last["result"], last["time"]) == (result, "2026-01-02T03:00:00Z")
    system.start("spark:1")  # the next operator knows it from the status
    await system.look()
    assert not system.objects.exists(JOBS, CHILD)

    system.objects.annotate(PIPELINES, "nightly", RUN_ANNOTATION, value="again")
    system.reconciler.heard_job(gone)
    await looked(system)


async def test_what_was_heard_is_of_that_pipeline_that_specification_and_ended() -> None:
    system = System("spark:1")
    system.objects.make(PIPELINES, "nightly", REPLAY)
    await system.look()
    runs_still = job(system)
    end(system, "Complete")
    ended_run = job(system)
    others = ended_run["metadata"] | {"ownerReferences": [{"kind": "CronJob", "apiVersion": "batch/v1", "uid": "o"}]}
    system.objects.remove(JOBS, CHILD)
    for heard in (runs_still, ended_run | {"metadata": others}):
        system.reconciler.heard_job(heard)
    uid = await looked(system)
    assert uid != ended_run["metadata"]["uid"], "it begins again"

    for kind in (JOBS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CONFIG_MAPS):
        system.objects.remove(kind, CHILD)
    system.objects.remove(PIPELINES, "nightly")
    system.objects.make(PIPELINES, "nightly", REPLAY)  # another one of the same name
    system.reconciler.heard_job(ended_run)
    await looked(system)
