"""Pipelines on the cluster: an archive survives kills of all its parts, stops and goes on; what is wrong is said."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import kubechart, kubecluster
from harness.figures import Figures
from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, Manifest, condition_of, until
from harness.kubeload import PROGRAM_FOLDER, Images, Load, Programs, pod_manifest
from harness.kubesystem import API_VERSION, StreamSystem, fixed, stream_manifest

pytestmark = pytest.mark.timeout(1800)

STARTED_S = 300.0
DRAINED_S = 300.0
GONE_S = 120.0
PROGRAMS = Path(__file__).parent / "programs"
SCOPE = "lake"
BUCKET = "archives"
MINIO = "http://tailrace-minio.{namespace}:9000"
SECRET = "tailrace-minio"
ACCOUNT = "lake-reader"
SMALL: Manifest = {"executors": {"instances": 0}}
"""The driver does all work."""


def pipeline_manifest(name: str, job: str, stream: str, **spec: Any) -> Manifest:
    """A Pipeline."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Pipeline",
        "metadata": {"name": name},
        "spec": {"cluster": CLUSTER, "job": job, "stream": f"{SCOPE}/{stream}"} | spec,
    }


def archive_manifest(name: str, stream: str, **spec: Any) -> Manifest:
    """A Pipeline that archives into a folder of its own."""
    return pipeline_manifest(name, "archive", stream, output=f"s3a://{BUCKET}/{name}", **spec)


@pytest.fixture
def spark(kube: Kubectl) -> Iterator[Kubectl]:
    """kubectl, with the image of pipelines on the cluster; pipelines that a test leaves are deleted."""
    kubecluster.load(kube, "tailrace-spark")
    yield kube
    names = [item["metadata"]["name"] for item in kube.list("pipelines")]
    if names:
        kube.delete("pipeline", *names, deadline_s=GONE_S)
    until("pods of pipelines are gone", lambda: not kube.list("pods", "tailrace.io/pipeline"), GONE_S)


def with_credentials(manifest: Manifest) -> Manifest:
    """A pod that has the keys of the object store."""
    keys = {"AWS_ACCESS_KEY_ID": "accessKey", "AWS_SECRET_ACCESS_KEY": "secretKey"}
    manifest["spec"]["containers"][0]["env"] += [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}
        for variable, key in keys.items()
    ]
    return manifest


def archived(kube: Kubectl, name: str) -> dict[str, Any]:
    """What an archive holds, as a pod reads it."""
    command = [
        "python3.11",
        f"{PROGRAM_FOLDER}/read_archive.py",
        MINIO.format(namespace=kube.namespace),
        f"{BUCKET}/{name}",
    ]
    kube.apply(with_credentials(pod_manifest("read-archive", kubechart.spark_image(), command, memory="1Gi")))
    phase = until("the archive is read", lambda: _ended(kube, "read-archive"), DRAINED_S)
    output = kube("logs", "read-archive")
    assert phase == "Succeeded", output[-4000:]
    kube("delete", "pod", "read-archive", "--force", "--grace-period=0")
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def _ended(kube: Kubectl, pod: str) -> str | None:
    phase = str(kube.get("pod", pod)["status"]["phase"])
    return phase if phase in ("Succeeded", "Failed") else None


def progress(kube: Kubectl, name: str) -> dict[str, Any]:
    """What the status says of the progress."""
    found: dict[str, Any] = kube.get("pipeline", name).get("status", {}).get("progress", {})
    return found


def until_more_rows(kube: Kubectl, name: str, what: str) -> None:
    """Wait until a batch with rows has ended that began after now, or was not complete."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def probe() -> bool:
        found = progress(kube, name)
        return found.get("lastBatchTime", "") > now and found.get("rows", 0) > 0

    until(f"{name} writes rows {what}", probe, STARTED_S)


def until_drained(kube: Kubectl, name: str) -> None:
    """Wait until the lag is 0."""
    until(f"the lag of {name} is 0", lambda: progress(kube, name).get("lagBytes") == 0, DRAINED_S)


def suspend(kube: Kubectl, name: str) -> None:
    """Suspend a Pipeline, and wait until it is."""
    kube.patch("pipeline", name, {"spec": {"suspend": True}})
    until("no pod runs", lambda: not kube.list("pods", f"tailrace.io/pipeline={name}"), GONE_S)
    found = kube.until_condition("pipeline", name, "Running", "False", GONE_S)
    assert found["reason"] == "Suspended"


def pods_of(kube: Kubectl, name: str, role: str) -> list[str]:
    """Its pods that run."""
    listed = kube.list("pods", f"tailrace.io/pipeline={name},spark-role={role}")
    return [pod["metadata"]["name"] for pod in listed if pod["status"].get("phase") == "Running"]


def restarted(kube: Kubectl, pod: str, uid: str) -> bool:
    """Whether another pod has the name, and runs."""
    found = kube.find("pod", pod)
    return found is not None and found["metadata"]["uid"] != uid and found["status"].get("phase") == "Running"


def test_an_archive_survives_kills_of_all_its_parts(
    healthy: StreamSystem, spark: Kubectl, images: Images, figures: Figures
) -> None:
    """Driver, executor and segment store are killed under load, and it is suspended: each event is there once.

    Meanwhile it joins the folders of its batches.
    """
    spark.apply(stream_manifest("flow", CLUSTER, SCOPE, scaling=fixed(3), deletionPolicy="Delete"))
    spark.until_condition("stream", "flow", "Ready", "True", STARTED_S)
    load = Load(spark, images, healthy.controller_uri, f"{SCOPE}/flow", rate=100)
    load.start()
    load.until_flowing()
    spark.apply(archive_manifest("flow", "flow", everySeconds=2, options=["compact=1MiB"]))
    until_more_rows(spark, "flow", "at first")

    (driver,) = pods_of(spark, "flow", "driver")
    uid = spark.get("pod", driver)["metadata"]["uid"]
    spark.kill_pod(driver)
    until("another driver runs", lambda: restarted(spark, driver, uid), STARTED_S)
    until("it has an executor", lambda: pods_of(spark, "flow", "executor"), STARTED_S)
    until_more_rows(spark, "flow", "after its driver was killed")

    killed = pods_of(spark, "flow", "executor")
    spark.kill_pod(*killed)
    until("another executor runs", lambda: set(pods_of(spark, "flow", "executor")) - {*killed}, STARTED_S)
    until_more_rows(spark, "flow", "after its executor was killed")

    healthy.kill_pods(healthy.pods("segmentstore")[0])
    until_more_rows(spark, "flow", "after a store was killed")

    suspend(spark, "flow")
    load.until_more(STARTED_S)
    spark.patch("pipeline", "flow", {"spec": {"suspend": False}})
    total = load.finish()
    until_more_rows(spark, "flow", "after it was resumed")
    until_drained(spark, "flow")
    suspend(spark, "flow")  # a reader beside it might miss what a join moves
    read = archived(spark, "flow")
    load.agrees(read, load.wrote["keys"])
    assert read["folders"] <= read["newest"], "no folders were joined"
    figures.add("events archived over three kills and a stop", "pipeline", total, "events")
    columns = spark("get", "pl").splitlines()
    assert columns[0].split()[:5] == ["NAME", "READY", "REASON", "JOB", "STREAM"]
    assert not [item for item in spark.list("pods", "tailrace.io/pipeline=flow") if item["status"]["phase"] == "Failed"]
    spark.delete("pipeline", "flow", deadline_s=GONE_S)
    until("its pods are gone", lambda: not spark.list("pods", "tailrace.io/pipeline=flow"), GONE_S)
    until("its children are gone", lambda: spark.find("configmap", "flow-pipeline") is None, GONE_S)


def test_a_run_ends_and_is_repeated_and_scheduled(spark: Kubectl, programs: Programs) -> None:
    """A Pipeline without an end of its own writes what there is; a new run goes on behind it."""
    spark.apply(stream_manifest("once", CLUSTER, SCOPE, scaling=fixed(2), deletionPolicy="Delete"))
    spark.until_condition("stream", "once", "Ready", "True", STARTED_S)
    written = programs.write(f"{SCOPE}/once", 200, name="w")
    spark.apply(archive_manifest("once", "once", **SMALL))

    def last_run() -> dict[str, Any]:
        found: dict[str, Any] = spark.get("pipeline", "once").get("status", {}).get("lastRun", {})
        return found

    first = until("the run has ended", last_run, STARTED_S)
    assert (first["result"], first["rows"]) == ("Succeeded", sum(written.values()))
    ready = spark.until_condition("pipeline", "once", "Ready", "True", STARTED_S)
    assert ready["reason"] == "Complete"

    written |= programs.write(f"{SCOPE}/once", 100, name="x")
    spark("annotate", "pipeline", "once", "tailrace.io/run=2")

    def later_run() -> dict[str, Any] | None:
        found = last_run()
        return found if found["time"] != first["time"] else None

    second = until("the second run has ended", later_run, STARTED_S)
    assert (second["result"], second["rows"]) == ("Succeeded", 100)

    written |= programs.write(f"{SCOPE}/once", 50, name="y")
    # One time today: a run after it would have nothing to write, and soon be the last one in the status.
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
    spark.patch("pipeline", "once", {"spec": {"schedule": f"{due.minute} {due.hour} * * *"}})
    until("the scheduled run has ended", lambda: last_run().get("rows") == 50, STARTED_S)
    read = archived(spark, "once")
    assert not read["violations"], read
    assert read["keys"] == written
    assert spark.find("job", "once-pipeline") is None


def stored(kube: Kubectl, name: str, key: str, text: str) -> str:
    """Write a text into the bucket of archives, from a pod, and return its URL."""
    command = [
        "python3.11",
        f"{PROGRAM_FOLDER}/store_text.py",
        MINIO.format(namespace=kube.namespace),
        f"{BUCKET}/{key}",
        text,
    ]
    kube.apply(with_credentials(pod_manifest(name, kubechart.spark_image(), command, memory="1Gi")))
    phase = until("the object is stored", lambda: _ended(kube, name), DRAINED_S)
    assert phase == "Succeeded", kube("logs", name)
    kube("delete", "pod", name, "--force", "--grace-period=0")
    return f"s3a://{BUCKET}/{key}"


def test_an_application_runs_and_the_cluster_is_audited(spark: Kubectl, programs: Programs) -> None:
    """A program from the object store reads a stream and writes files; what it raises is the reason in the status."""
    spark.apply(stream_manifest("counted", CLUSTER, SCOPE, scaling=fixed(2), deletionPolicy="Delete"))
    spark.until_condition("stream", "counted", "Ready", "True", STARTED_S)
    written = sum(programs.write(f"{SCOPE}/counted", 200, name="w").values())
    text = (PROGRAMS / "count_events.py").read_text()
    file = stored(spark, "store-program", "programs/count_events.py", text)

    def application(name: str, expected: int, **fields: Any) -> Manifest:
        arguments = [f"{SCOPE}/counted", f"s3a://{BUCKET}/{name}", str(expected)]
        spec = {"cluster": CLUSTER, "application": {"file": file, "arguments": arguments}, **fields}
        return {"apiVersion": API_VERSION, "kind": "Pipeline", "metadata": {"name": name}, "spec": spec}

    audit = {"job": "audit", "output": f"s3a://{BUCKET}/audits", "options": ["ignore-orphans"], **SMALL}
    spark.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}},
        application("counts", written, nodeSelector={"kubernetes.io/os": "linux"}, serviceAccountName=ACCOUNT),
        application("miscounts", written + 1, restarts=0, **SMALL),
        {
            "apiVersion": API_VERSION,
            "kind": "Pipeline",
            "metadata": {"name": "audits"},
            "spec": {"cluster": CLUSTER, **audit},
        },
    )

    def last_run(name: str) -> dict[str, Any]:
        found: dict[str, Any] = spark.get("pipeline", name).get("status", {}).get("lastRun", {})
        return found

    ended = until("the program has ended", lambda: last_run("counts"), STARTED_S)
    assert ended["result"] == "Succeeded", ended
    (driver,) = spark.list("pods", "tailrace.io/pipeline=counts,spark-role=driver")
    assert driver["spec"]["serviceAccountName"] == ACCOUNT  # whose token made the executors
    assert spark.find("serviceaccount", "counts-pipeline") is None
    failed = until("the other program has failed", lambda: last_run("miscounts"), STARTED_S)
    assert failed["result"] == "Failed"
    assert failed["message"] == f"ValueError: {written} events, not {written + 1}"
    audited = until("the audit has ended", lambda: last_run("audits"), STARTED_S)
    assert audited["result"] == "Succeeded", audited


def test_what_is_wrong_is_a_condition(spark: Kubectl) -> None:
    """A bad image, option, stream, cluster or folder; nothing is retried as if it could help."""
    spark.apply(stream_manifest("there", CLUSTER, SCOPE, deletionPolicy="Delete"))
    spark.until_condition("stream", "there", "Ready", "True", STARTED_S)
    spark.apply(
        archive_manifest(
            "bad-image", "there", image="localhost/none:1", imagePullPolicy="Never", everySeconds=5, **SMALL
        ),
        archive_manifest("bad-option", "there", options=["colour=red"], **SMALL),
        archive_manifest("bad-stream", "none", restarts=0, **SMALL),
        pipeline_manifest("bad-place", "archive", "there", output="s3a://tailrace/trial/x"),
        archive_manifest("no-cluster", "there", cluster="none"),
    )
    expected = {
        "bad-image": ("DriverFailed", "ErrImageNeverPull"),
        "bad-option": ("Failed", "no such option: --colour"),
        "bad-stream": ("Failed", f"stream {SCOPE}/none does not exist"),
        "bad-place": ("OutputInCluster", "spec.output"),
        "no-cluster": ("ClusterNotFound", "spec.cluster"),
    }
    for name, (reason, text) in expected.items():

        def said(name: str = name, reason: str = reason, text: str = text) -> bool:
            found = condition_of(spark.get("pipeline", name), "Ready")
            return found.get("reason") == reason and text.lower() in found["message"].lower()

        until(f"{name} is {reason}: {text}", said, STARTED_S)
    spark.patch("pipeline", "bad-image", {"spec": {"image": None, "imagePullPolicy": None}})
    spark.until_condition("pipeline", "bad-image", "Ready", "True", STARTED_S)
    assert spark.get("job", "bad-option-pipeline")["status"].get("failed") == 1
    refused = spark.refusal(archive_manifest("neither", "there", target=f"{SCOPE}/there"))
    assert "target is required by replay, only" in refused
