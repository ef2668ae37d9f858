"""Children of a Pipeline: one workload for the driver, settings that tie the job to its pods, few rights."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cluster.kubernetes import Kind
from tailrace_operator.kube.objects import CRON_JOBS, JOBS, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, STATEFUL_SETS
from tailrace_operator.pipeline import settings
from tailrace_operator.pipeline.plan import Plan
from tailrace_operator.pipeline.render import RUN_ANNOTATION, SPECIFICATION_ANNOTATION, children, workload_kind
from tailrace_operator.schema.pipeline_spec import PipelineSpec
from tailrace_operator.schema.specs import Tier2Spec

TIER2 = Tier2Spec("tailrace", "http://minio.n:9000", "minio", "trial")


APPLICATION = {"job": None, "stream": None, "output": None, "application": {"file": "/app/main.py"}}


def plan(run: str = "", **fields: Any) -> Plan:
    spec = {"cluster": "main", "job": "archive", "stream": "shop/orders", "output": "s3a://lake/orders", **fields}
    manifest = {"metadata": {"name": "nightly", "namespace": "n", "uid": "u"}, "spec": spec}
    return Plan("nightly", "n", "u", PipelineSpec.parse(manifest), TIER2, "spark:1", run)


def workload(of: Plan) -> dict[str, Any]:
    return children(of)[-1].manifest


def pod_of(of: Plan) -> dict[str, Any]:
    spec = workload(of)["spec"]
    found: dict[str, Any] = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
    return found


def executor_of(of: Plan) -> dict[str, Any]:
    data = next(child.manifest["data"] for child in children(of) if "data" in child.manifest)
    found: dict[str, Any] = json.loads(data[settings.EXECUTOR_FILE])
    return found


@pytest.mark.parametrize(
    ("fields", "kind", "restart"),
    [
        ({}, JOBS, "Never"),
        ({"schedule": "@daily"}, CRON_JOBS, "Never"),
        ({"everySeconds": 5}, STATEFUL_SETS, "Always"),
        (APPLICATION, JOBS, "Never"),
        (APPLICATION | {"continuous": True}, STATEFUL_SETS, "Always"),
    ],
)
def test_one_workload_runs_the_driver(fields: dict[str, Any], kind: Kind, restart: str) -> None:
    of = plan(**fields)
    assert workload_kind(of) is kind
    assert workload(of)["kind"] == kind.kind
    assert pod_of(of)["restartPolicy"] == restart


def test_suspension_is_the_workload_s_own() -> None:
    assert workload(plan(suspend=True))["spec"]["suspend"] is True
    assert workload(plan(suspend=True, schedule="@daily"))["spec"]["suspend"] is True
    assert workload(plan(suspend=True, everySeconds=5))["spec"]["replicas"] == 0
    assert workload(plan(everySeconds=5))["spec"]["replicas"] == 1


def test_a_job_is_made_again_only_when_its_pod_or_its_run_changes() -> None:
    def made_of(of: Plan) -> str:
        return str(workload(of)["metadata"]["annotations"][RUN_ANNOTATION])

    assert made_of(plan()) == made_of(plan(suspend=True))
    others = [plan("2"), plan(restarts=1), plan(options=["schema=id long"]), plan(sparkConf=["spark.a=b"])]
    assert len({made_of(plan()), *map(made_of, others)}) == 5


def test_the_specification_of_a_run_is_what_the_user_asks_for() -> None:
    def asked(of: Plan) -> str:
        return str(workload(of)["metadata"]["annotations"][SPECIFICATION_ANNOTATION])

    of = plan()
    moved = replace(of, image="spark:2", tier2=replace(TIER2, endpoint="http://other.n:9000", credentials_secret="s"))
    assert asked(of) == asked(moved) == asked(plan(suspend=True))
    assert asked(of) == "3269cb0db548ca9f", "another value runs all that have ended again after an upgrade"
    others = [plan("2"), plan(restarts=0), plan(image="spark:1"), plan(executors={"instances": 0})]
    assert len({asked(of), *map(asked, others)}) == 5


def test_arguments_are_taken_literally() -> None:
    (container,) = pod_of(plan(options=["schema=$(HOME) string"]))["containers"]
    assert "--schema=$$(HOME) string" in container["args"]
    assert container["args"][:4] == ["driver", "archive", "shop/orders", "s3a://lake/orders"]
    assert "--master=k8s://https://kubernetes.default.svc" in container["args"]


def test_settings_of_pods_cannot_be_overruled_and_others_can() -> None:
    given = ["spark.executor.instances=9", "spark.master=local", "spark.sql.session.timeZone=CET", "spark.x=a=b"]
    found = settings.settings(plan(sparkConf=given))
    assert found["spark.executor.instances"] == "1"
    assert found["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert found["spark.sql.session.timeZone"] == "CET"
    assert found["spark.x"] == "a=b"
    assert (found["spark.executor.memory"], found["spark.executor.memoryOverhead"]) == ("768m", "768m")


def test_the_port_of_spark_s_pages_is_the_one_that_the_status_names() -> None:
    """Also where there are no executors: the container's port and the network policy are of that number, too."""
    for instances in (0, 1):
        of = plan(sparkConf=["spark.ui.port=4999"], executors={"instances": instances})
        assert settings.settings(of)["spark.ui.port"] == "4040"
        assert "spark.ui.port" not in settings.given(of)


def test_a_setting_is_one_line() -> None:
    of = plan()
    of = replace(of, spec=replace(of.spec, spark_conf=("spark.x=a\\b\nspark.master=local",)))
    assert "spark.x=a\\\\b\\nspark.master=local\n" in settings.text(of)


def test_no_credentials_are_in_the_settings() -> None:
    text = settings.text(plan())
    assert "minio:accessKey" in text
    assert "fs.s3a.access.key" not in text


def test_executors_are_restricted_and_have_no_token() -> None:
    template = executor_of(plan())
    (container,) = template["spec"]["containers"]
    assert template["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True


def test_a_driver_without_executors_has_no_rights() -> None:
    of = plan(executors={"instances": 0, "cores": 2})
    rules = next(child.manifest["rules"] for child in children(of) if child.kind is ROLES)
    assert rules == []
    assert pod_of(of)["automountServiceAccountToken"] is False
    assert settings.settings(of)["spark.master"] == "local[2]"


def test_pods_run_where_the_specification_says() -> None:
    tolerations = [{"key": "spark", "operator": "Exists"}]
    of = plan(nodeSelector={"disk": "ssd"}, tolerations=tolerations)
    for spec in (pod_of(of), executor_of(of)["spec"]):
        assert spec["nodeSelector"] == {"disk": "ssd"}
        assert spec["tolerations"] == tolerations
    assert "nodeSelector" not in pod_of(plan())
    assert "tolerations" not in executor_of(plan())["spec"]


def test_a_service_account_of_the_user_gets_the_rights_and_is_not_written() -> None:
    of = plan(serviceAccountName="lake-writer")
    assert pod_of(of)["serviceAccountName"] == executor_of(of)["spec"]["serviceAccountName"] == "lake-writer"
    assert settings.settings(of)["spark.kubernetes.authenticate.serviceAccountName"] == "lake-writer"
    assert SERVICE_ACCOUNTS not in [child.kind for child in children(of)]
    (subject,) = next(child.manifest["subjects"] for child in children(of) if child.kind is ROLE_BINDINGS)
    assert subject["name"] == "lake-writer"
    (own,) = next(child.manifest["subjects"] for child in children(plan()) if child.kind is ROLE_BINDINGS)
    assert own["name"] == "nightly-pipeline"
    alone = plan(serviceAccountName="lake-writer", executors={"instances": 0})
    assert pod_of(alone)["automountServiceAccountToken"] is True


AUDIT = {"job": "audit", "stream": None, "output": "s3a://lake/audits"}


@pytest.mark.parametrize(
    ("fields", "codes"), [({}, [2]), (APPLICATION, [2]), (AUDIT, [2, 3])], ids=["job", "application", "audit"]
)
def test_a_run_that_no_restart_mends_ends_at_once(fields: dict[str, Any], codes: list[int]) -> None:
    """The findings of an audit are one; a program may use the same code for what a restart can mend."""
    first, _ = workload(plan(**fields))["spec"]["podFailurePolicy"]["rules"]
    assert first["action"] == "FailJob"
    assert first["onExitCodes"]["values"] == codes


def test_another_object_store_is_used_with_its_own_credentials() -> None:
    store = {"endpoint": "https://s3.example", "credentialsSecret": "other", "region": "eu-1"}
    of = plan(objectStore=store)
    found = settings.settings(of)
    assert found["spark.hadoop.fs.s3a.endpoint"] == "https://s3.example"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-1"
    assert found["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    (container,) = pod_of(of)["containers"]
    secrets = [
        one["valueFrom"]["secretKeyRef"]["name"]
        for one in container["env"]
        if "secretKeyRef" in one.get("valueFrom", {})
    ]
    assert secrets == ["other", "other"]
