"""Settings of Spark in the pods of a Pipeline; pure (docs/pipelines.md#settings-of-spark)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common import limits
from tailrace.pipelines.s3.settings import s3a_settings
from tailrace_operator.cluster.pods import ACCESS_KEY, SECRET_KEY
from tailrace_operator.pipeline import names

if TYPE_CHECKING:
    from tailrace_operator.pipeline.plan import Plan

FOLDER: Final = "/etc/tailrace"
"""Where the ConfigMap is mounted."""
SETTINGS_FILE: Final = "spark.conf"
EXECUTOR_FILE: Final = "executor.json"


def heap_mib(memory_bytes: int) -> int:
    """Return the MiB of Java's heap in a pod: half of its memory."""
    return memory_bytes // (2 * limits.MIB)


def master(plan: Plan) -> str:
    """Return where Spark runs: in pods of its own, or in the driver."""
    executors = plan.spec.executors
    return "k8s://https://kubernetes.default.svc" if executors.instances else f"local[{executors.cores}]"


def settings(plan: Plan) -> dict[str, str]:
    """Return the settings; those of the specification win, but for the ones that tie the job to its pods."""
    return {**_defaults(plan), **given(plan), **_of_pods(plan)}


def given(plan: Plan) -> dict[str, str]:
    """Return the settings of the specification, without those that tie the job to its pods."""
    found, of_pods = dict(item.split("=", 1) for item in plan.spec.spark_conf), _of_pods(plan)
    return {name: value for name, value in found.items() if name not in of_pods}


def text(plan: Plan) -> str:
    """Return the settings as a file of properties."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings(plan).items()))


def _defaults(plan: Plan) -> dict[str, str]:
    store = plan.store
    return {
        "spark.app.name": plan.name,
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "WARN",
        **s3a_settings(store.endpoint, store.region or ""),
    }


def _of_pods(plan: Plan) -> dict[str, str]:
    executors, driver = plan.spec.executors, plan.spec.driver
    found = {
        "spark.master": master(plan),
        "spark.driver.memory": f"{heap_mib(driver.memory_bytes)}m",
        "spark.ui.port": str(names.UI_PORT),  # the status, the container and network policies name it, too
    }
    if executors.instances == 0:
        return found
    heap = heap_mib(executors.pod.memory_bytes)
    overhead = executors.pod.memory_bytes // limits.MIB - heap
    cpu = f"{executors.pod.cpu_millis}m" if executors.pod.cpu_millis is not None else ""
    secret = plan.store.credentials_secret
    return {
        **found,
        "spark.driver.port": str(names.DRIVER_PORT),
        "spark.blockManager.port": str(names.BLOCKS_PORT),
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{overhead}m",
        "spark.kubernetes.executor.request.cores": cpu or "100m",
        **({"spark.kubernetes.executor.limit.cores": cpu} if cpu else {}),
        "spark.kubernetes.namespace": plan.namespace,
        "spark.kubernetes.container.image": plan.used_image,
        "spark.kubernetes.container.image.pullPolicy": plan.pull_policy,
        "spark.kubernetes.authenticate.serviceAccountName": plan.service_account,
        "spark.kubernetes.executor.podTemplateFile": f"{FOLDER}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.secretKeyRef.AWS_ACCESS_KEY_ID": f"{secret}:{ACCESS_KEY}",
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY": f"{secret}:{SECRET_KEY}",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
    }


def _escaped(value: str) -> str:
    """Return a value as a file of properties writes it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
