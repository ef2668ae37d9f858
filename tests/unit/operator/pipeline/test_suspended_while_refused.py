"""`suspend: true` stops what runs, also while the specification cannot be carried out."""

from collections.abc import Mapping
from typing import Any

import pytest

from harness.localobjects import NAMESPACE
from harness.localpipelines import CHILD, SPEC, TIER2, System
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, ForbiddenError, Kind, Manifest
from tailrace.common.errors import BadRequestError, UnavailableError, WriteConflictError
from tailrace_operator.cluster.tier2 import Tier2Error
from tailrace_operator.kube.objects import CONFIG_MAPS, CRON_JOBS, JOBS, PIPELINES, PODS, ROLES, STATEFUL_SETS
from tailrace_operator.pipeline import names

ENDLESS: dict[str, Any] = {"everySeconds": 5}
WHEN = [(STATEFUL_SETS, ENDLESS), (JOBS, {}), (CRON_JOBS, {"schedule": "@hourly"})]
REASONS = (
    "ClusterNotFound",
    "ClusterInvalid",
    "SecretMissing",
    "EndpointUnreachable",
    "PipelinesDisabled",
    "NameTaken",
    "OutputInCluster",
    "InvalidSpec",
)


def refuse(system: System, reason: str) -> None:
    """Make the Pipeline's specification one that is refused for that reason."""
    match reason:
        case "ClusterNotFound":
            system.objects.remove(STREAM_CLUSTERS, "main")
        case "ClusterInvalid":
            system.objects.edit(STREAM_CLUSTERS, "main", {"tier2": None})
        case "SecretMissing":
            store = {"endpoint": "http://other.n:9000", "credentialsSecret": "gone"}
            system.objects.edit(PIPELINES, "nightly", {"objectStore": store})
        case "EndpointUnreachable":  # after a restart of the operator, which has not found the folders usable yet
            system.start("spark:1")
            system.probe.said["lake"] = Tier2Error(reason, "spec.tier2: the store is away", transient=True)
        case "PipelinesDisabled":
            system.start(None)
        case "NameTaken":
            system.start("spark:1")  # before, children that were just applied are not read
            system.objects.remove(CONFIG_MAPS, CHILD)
            system.objects.make(CONFIG_MAPS, CHILD, {})
        case "OutputInCluster":
            system.objects.edit(STREAM_CLUSTERS, "main", {"tier2": TIER2 | {"bucket": "lake", "prefix": ""}})
        case "InvalidSpec":
            system.objects.edit(PIPELINES, "nightly", {"output": None})


def is_stopped(system: System, kind: Kind) -> bool:
    """Return whether the workload starts no pods."""
    spec = system.objects._find(kind, NAMESPACE, CHILD)["spec"]
    return bool(spec["replicas"] == 0 if kind is STATEFUL_SETS else spec["suspend"])


async def running(kind: Kind, when: dict[str, Any]) -> System:
    """Return a Pipeline whose workload has been made."""
    system = System()
    system.objects.make(PIPELINES, "nightly", SPEC | when)
    await system.look()
    assert not is_stopped(system, kind)
    return system


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(("kind", "when"), WHEN, ids=[kind.kind for kind, _ in WHEN])
async def test_a_refused_pipeline_is_stopped(kind: Kind, when: dict[str, Any], reason: str) -> None:
    system = await running(kind, when)
    refuse(system, reason)
    assert await system.look() == ("False", reason)
    assert not is_stopped(system, kind), "without suspend what runs goes on"
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("False", reason)
    assert is_stopped(system, kind)
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")
    version = system.objects._find(kind, NAMESPACE, CHILD)["metadata"]["resourceVersion"]
    await system.look()
    assert system.objects._find(kind, NAMESPACE, CHILD)["metadata"]["resourceVersion"] == version, "stopped once"


async def test_a_pod_that_has_not_ended_is_waited_for() -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    pod = system.driver(STATEFUL_SETS)
    refuse(system, "ClusterNotFound")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("False", "ClusterNotFound")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("Unknown", "Stopping")
    system.objects.remove(PODS, pod)
    await system.look()
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")


async def test_runs_of_a_schedule_are_stopped_and_those_of_others_are_not() -> None:
    system = await running(CRON_JOBS, {"schedule": "@hourly"})
    system.scheduled("now")
    system.scheduled("before")
    ended = [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}]
    system.objects.put_status(JOBS, "before", {"conditions": ended})
    system.objects.make(JOBS, "of-others", {}, labels=names.labels("nightly"))
    refuse(system, "ClusterNotFound")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert not system.objects.exists(JOBS, "now")
    assert system.objects.exists(JOBS, "before")
    assert system.objects.exists(JOBS, "of-others")


async def test_a_job_that_has_ended_is_left() -> None:
    system = await running(JOBS, {})
    ended = [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}]
    system.objects.put_status(JOBS, CHILD, {"conditions": ended})
    refuse(system, "ClusterNotFound")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert not is_stopped(system, JOBS)


async def test_a_workload_of_others_is_left() -> None:
    system = System()
    system.objects.make(STATEFUL_SETS, CHILD, {"replicas": 1}, ownerReferences=[{"kind": "Pipeline", "uid": "other"}])
    refuse(system, "ClusterNotFound")
    system.objects.make(PIPELINES, "nightly", SPEC | ENDLESS | {"suspend": True})
    assert await system.look() == ("False", "ClusterNotFound")
    assert not is_stopped(system, STATEFUL_SETS)


@pytest.mark.parametrize("value", ["true", 1, None])
async def test_only_true_suspends_what_cannot_be_parsed(value: object) -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    system.objects.edit(PIPELINES, "nightly", {"output": None, "suspend": value})
    assert await system.look() == ("False", "InvalidSpec")
    assert not is_stopped(system, STATEFUL_SETS)


async def test_what_was_stopped_runs_again_once_accepted() -> None:
    """The children were applied before with the same content, less than `OPERATOR_PERIOD_S` ago."""
    system = await running(STATEFUL_SETS, ENDLESS)
    refuse(system, "ClusterNotFound")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert is_stopped(system, STATEFUL_SETS)
    system.objects.make(STREAM_CLUSTERS, "main", {"tier2": TIER2})
    system.objects.edit(PIPELINES, "nightly", {"suspend": False})
    assert await system.look() == ("False", "Starting")
    assert not is_stopped(system, STATEFUL_SETS)


async def test_a_suspended_pipeline_that_is_refused_later_stays_suspended() -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("False", "Suspended")
    refuse(system, "ClusterNotFound")
    assert await system.look() == ("False", "ClusterNotFound")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")


async def test_a_check_that_fails_without_a_result_does_not_keep_it_running(monkeypatch: pytest.MonkeyPatch) -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    system.start("spark:1")

    async def look(*arguments: object, **options: object) -> None:
        raise UnavailableError("the check waits for others")

    monkeypatch.setattr(system.probe, "look", look)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    with pytest.raises(UnavailableError):
        await system.look()
    assert is_stopped(system, STATEFUL_SETS)


@pytest.mark.parametrize("error", [ForbiddenError, BadRequestError])
async def test_what_may_not_be_stopped_is_reported(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without pipelines has no rights on Jobs and CronJobs."""
    system = await running(JOBS, {})

    async def merge_spec(kind: Kind, manifest: Manifest, spec: object) -> Manifest:
        raise error("change jobs nightly-pipeline: no")

    monkeypatch.setattr(system.objects, "merge_spec", merge_spec, raising=False)
    refuse(system, "PipelinesDisabled")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    assert await system.look() == ("False", "PipelinesDisabled")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("Unknown", "NotStopped")
    (notice,) = [one for about, one in system.objects.events if one.reason == "NotStopped"]
    assert notice.warning
    assert "change jobs nightly-pipeline: no" in notice.message


async def test_without_rights_on_jobs_a_stateful_set_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    get = system.objects.get

    async def refusing(kind: Kind, namespace: str, name: str) -> Manifest:
        if kind in (JOBS, CRON_JOBS):
            raise ForbiddenError("not allowed")
        return await get(kind, namespace, name)

    monkeypatch.setattr(system.objects, "get", refusing)
    refuse(system, "PipelinesDisabled")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert is_stopped(system, STATEFUL_SETS)
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")


def without_rights_on_jobs(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the chart's pipelines.enabled is false: the operator may look at no Job, and has no image of Spark."""
    get, listed = system.objects.get, system.objects.list

    async def refusing(kind: Kind, namespace: str, name: str) -> Manifest:
        if kind in (JOBS, CRON_JOBS):
            raise ForbiddenError(f"get {kind.plural} {name}: the Kubernetes API answers 403 Forbidden")
        return await get(kind, namespace, name)

    async def refusing_list(kind: Kind, *arguments: Any) -> Any:
        if kind in (JOBS, CRON_JOBS):
            raise ForbiddenError(f"list {kind.plural}: the Kubernetes API answers 403 Forbidden")
        return await listed(kind, *arguments)

    monkeypatch.setattr(system.objects, "get", refusing)
    monkeypatch.setattr(system.objects, "list", refusing_list)
    system.start(None)


async def test_one_that_never_ran_is_suspended_where_pipelines_are_not_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System()
    without_rights_on_jobs(system, monkeypatch)
    system.objects.make(CONFIG_MAPS, CHILD, {}, ownerReferences=[{"kind": "Pipeline", "uid": "other"}])
    system.objects.make(PIPELINES, "nightly", SPEC | {"suspend": True})
    assert await system.look() == ("False", "PipelinesDisabled")
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")
    assert "NotStopped" not in system.objects.reasons("nightly")


@pytest.mark.parametrize("when", [{}, {"schedule": "@hourly"}])
async def test_one_that_was_stopped_before_stays_suspended_when_pipelines_are_disabled(
    when: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = await running(CRON_JOBS if when else JOBS, when)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    without_rights_on_jobs(system, monkeypatch)
    for edited in ({}, {"executors": {"instances": 1}}):  # also later, for another generation
        system.objects.edit(PIPELINES, "nightly", edited)
        await system.look()
        assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")


@pytest.mark.parametrize("when", [{}, {"schedule": "@hourly"}])
async def test_one_that_was_never_stopped_may_start_pods_when_pipelines_are_disabled(
    when: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = await running(CRON_JOBS if when else JOBS, when)
    without_rights_on_jobs(system, monkeypatch)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    for _ in range(2):
        await system.look()
        assert system.hand.condition(PIPELINES, "nightly", "Running") == ("Unknown", "NotStopped")
    (notice,) = [one for about, one in system.objects.events if one.reason == "NotStopped"]
    assert "pipelines.enabled" in notice.message

    for kind in (CRON_JOBS if when else JOBS, ROLES, CONFIG_MAPS):  # by hand, as docs/pipelines.md says
        system.objects.remove(kind, CHILD)
    await system.look()
    assert system.hand.condition(PIPELINES, "nightly", "Running") == ("False", "Suspended")


async def test_a_workload_that_changes_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of a StatefulSet whose driver keeps ending is written often."""
    system = await running(STATEFUL_SETS, ENDLESS)
    merge_spec = getattr(system.objects, "merge_spec", None)
    attempts = 0

    async def late(kind: Kind, manifest: Manifest, spec: Mapping[str, Any]) -> Manifest:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise WriteConflictError("it has been modified")
        assert merge_spec is not None
        changed: Manifest = await merge_spec(kind, manifest, spec)
        return changed

    monkeypatch.setattr(system.objects, "merge_spec", late, raising=False)
    refuse(system, "ClusterNotFound")
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    assert is_stopped(system, STATEFUL_SETS)
    assert attempts == 2


async def test_a_suspended_pipeline_reads_no_more_than_one_that_runs() -> None:
    system = await running(STATEFUL_SETS, ENDLESS)
    system.objects.edit(PIPELINES, "nightly", {"suspend": True})
    await system.look()
    before = system.objects.gets
    await system.look()
    assert system.objects.gets - before == 2, "the cluster and the workload"
